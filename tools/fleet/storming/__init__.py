"""The parts of tools/fleet/storm: what is started, what is called, what stands between, and what is asked afterwards."""
