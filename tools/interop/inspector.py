"""inspector.py NPM PLAN.json: makes the plan's calls with the Inspector's CLI, a process each.

The plan and what is printed: see client.py. Values that are no strings go as JSON, as its users
would write them.
"""

import json
import subprocess
import sys

CALL_SECONDS = 60


def main():
    npm, plan = sys.argv[1], json.load(open(sys.argv[2]))
    print(json.dumps([read(npm, plan["url"], call) for call in plan["calls"]]))


def read(npm: str, url: str, call: dict) -> dict:
    argv = ["node", f"{npm}/node_modules/@modelcontextprotocol/inspector/cli/build/cli.js"]
    argv += ["--cli", url, "--transport", "http"]
    argv += ["--method", "tools/call", "--tool-name", call["name"]]
    for name, value in call["arguments"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        argv += ["--tool-arg", f"{name}={text}"]
    done = subprocess.run(argv, capture_output=True, timeout=CALL_SECONDS, text=True)
    if done.returncode != 0:
        return {"as": "error", "message": done.stderr}
    return {"as": "result", "isError": json.loads(done.stdout).get("isError") is True}


if __name__ == "__main__":
    main()
