"""client_fastmcp.py PLAN.json: makes the plan's calls with FastMCP's client, one after another.

For the plan and the output see client.py.
"""

import asyncio
import json
import sys
import time

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp import MCPError

CALL_SECONDS = 30
READY_SECONDS = 60


async def main():
    plan = json.load(open(sys.argv[1]))
    server = plan.get("url")
    if server is None:
        command, *args = plan["command"]
        server = StdioTransport(command=command, args=args, env=plan.get("env"))
    async with Client(server, timeout=CALL_SECONDS, mode=plan["mode"]) as client:
        deadline = time.monotonic() + READY_SECONDS
        for call in plan["until"]:
            while (await client.call_tool_mcp(**call)).is_error and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
        seen = [await read(client, call) for call in plan["calls"]]
    print(json.dumps(seen))


async def read(client: Client, call: dict) -> dict:
    try:
        result = await client.call_tool_mcp(**call)
        return {"as": "result", "isError": bool(result.is_error)}
    except MCPError as error:
        return {"as": "error", "message": str(error)}
    except Exception as error:  # the client's own refusals have many types
        return {"as": "refused by the client", "message": str(error)}


asyncio.run(main())
