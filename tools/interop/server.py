"""server.py PORT json|sse: a small server on PyPI `mcp`, over streamable HTTP on 127.0.0.1."""

import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("interop")
shelf: dict[str, str] = {}

READ = ToolAnnotations(read_only_hint=True)
WRITE = ToolAnnotations(read_only_hint=False, destructive_hint=False)
DESTRUCTIVE = ToolAnnotations(destructive_hint=True)


class Report(BaseModel):
    title: str
    mean: float
    large: int
    rows: list[dict[str, Any]]


@server.tool(annotations=READ)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(annotations=READ)
def report(rows: int) -> Report:
    """A report with numbers and letters that can be spelled in several ways."""
    made = [{"n": n, "third": n / 3, "text": "é\u2028\U0001f4d6\\/\"\n"} for n in range(rows)]
    return Report(title="Über", mean=1e-7, large=2**63, rows=made)


@server.tool(annotations=READ)
async def announced(ctx: Context) -> str:
    """Reports progress and logs before it answers."""
    await ctx.report_progress(1, 2)
    return "done"


@server.tool(annotations=WRITE)
def put(key: str, value: str) -> str:
    """Stores a value under a key."""
    shelf[key] = value
    return f"{key} holds {value}"


@server.tool(annotations=DESTRUCTIVE)
def drop(key: str) -> str:
    """Deletes the value of a key."""
    return f"gone: {shelf.pop(key, None)}"


@server.tool(annotations=READ)
def fail() -> str:
    """Fails."""
    raise ToolError("there is no such thing")


port, setting = sys.argv[1:]
server.run("streamable-http", port=int(port), json_response=setting == "json")
