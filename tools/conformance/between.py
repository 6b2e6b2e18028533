"""between.py BINARY NODE CLIENT URL: runs the client with mcpproxy between the client and the server at URL."""

import os
import subprocess
import sys

import suite


def main() -> int:
    binary, node, client, url = sys.argv[1:]
    name = f"client-{os.environ['MCP_CONFORMANCE_SCENARIO'].replace('/', '-')}-{os.getpid()}"
    with suite.proxy(binary, url, name) as all_tools:
        env = os.environ | {"PREFIX": f"{suite.SERVER}__"}
        return subprocess.run([node, client, all_tools], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
