"""client.py PLAN.json: makes the plan's calls with the PyPI `mcp` client, one after another.

The plan: `url` or `command`, `mode` (legacy, auto, or a revision), `until` (calls that are repeated until they succeed,
which means that their servers are ready), `calls`, `offers` (whether there are items other than tools, to be read by
client_both.mjs). Prints the client's interpretation of each answer, as JSON. The bytes are taken from the recordings,
not from this output.
"""

import asyncio
import json
import sys
import time

from mcp import Client, MCPError, StdioServerParameters

CALL_SECONDS = 30
READY_SECONDS = 60


async def main():
    plan = json.load(open(sys.argv[1]))
    server = plan.get("url")
    if server is None:
        command, *args = plan["command"]
        server = StdioServerParameters(command=command, args=args, env=plan.get("env"))
    client = Client(server, mode=plan["mode"], read_timeout_seconds=CALL_SECONDS)
    async with client:
        deadline = time.monotonic() + READY_SECONDS
        for call in plan["until"]:
            while not ready(await read(client, call)) and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
        seen = [await read(client, call) for call in plan["calls"]]
    print(json.dumps(seen))


async def read(client: Client, call: dict) -> dict:
    try:
        result = await client.call_tool(**call)
        return {"as": "result", "isError": bool(result.is_error)}
    except MCPError as error:
        return {"as": "error", "message": str(error)}
    except Exception as error:  # the client's own refusals have many types
        return {"as": "refused by the client", "message": str(error)}


def ready(answer: dict) -> bool:
    """Whether the server answered; an answer that the client refuses to read counts as one."""
    return answer["as"] == "refused by the client" or answer.get("isError") is False


asyncio.run(main())
