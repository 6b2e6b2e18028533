"""The parts of tools/fleet/storm: the started processes, the clients, the proxy in front of the store, and the final
checks.
"""
