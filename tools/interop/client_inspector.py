"""client_inspector.py INSPECTOR… PLAN.json: makes the plan's calls with the Inspector's CLI.

Each call is a separate process and session, over HTTP. For the plan and the output see client.py; in addition, the
output has the result as printed by the Inspector.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

CALL_SECONDS = 60


def main():
    *inspector, path = sys.argv[1:]
    plan = json.loads(Path(path).read_text())
    command = [*inspector, plan["url"], "--protocol-era", plan["mode"], "--format", "json", "-q"]
    # The Inspector's own files are stored beside the plan.
    env = os.environ | {"HOME": str(Path(path).parent)}
    print(json.dumps([call(command, env, each) for each in plan["calls"]]))


def call(command: list[str], env: dict, params: dict) -> dict:
    arguments = json.dumps(params["arguments"], ensure_ascii=False)
    asked = ["--method", "tools/call", "--tool-name", params["name"], "--tool-args-json", arguments]
    done = subprocess.run([*command, *asked], env=env, capture_output=True, timeout=CALL_SECONDS)
    if not done.stdout.strip():
        return {"as": "error", "message": done.stderr.decode()}
    result = json.loads(done.stdout)["result"]
    return {"as": "result", "isError": result.get("isError") is True, "result": result}


if __name__ == "__main__":
    main()
