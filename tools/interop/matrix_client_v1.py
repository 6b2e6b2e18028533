"""matrix_client_v1.py PLAN: the client of PyPI `mcp` 1.x of tools/interop/matrix. PLAN is JSON: `url` or `command`. See matrix_peer.py."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import mcp.types as types
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from pydantic import RootModel

from matrix_pipes import answers, drive, dump, say

CALL_SECONDS = 10


class AnyRequest(types.Request[dict[str, Any], str]):
    """A request with any method."""


class AnyResult(RootModel[dict[str, Any]]):
    """A result as it was received."""


elicit, sample, list_roots = answers(types)


async def on_message(message):
    if isinstance(message, types.ServerNotification):
        notice = dump(message)
        if not notice["method"].endswith("/progress"):
            say(event=notice["method"], params=notice.get("params"))


async def on_progress(progress, total, message):
    say(event="progress", params={"progress": progress, "total": total, "message": message})


class Operations:
    """Operations that the driver can request."""

    def __init__(self, session: ClientSession):
        self.session = session

    async def list(self, kind, cursor=None):
        name = {"resourceTemplates": "resource_templates"}.get(kind, kind)
        return await getattr(self.session, f"list_{name}")(params=types.PaginatedRequestParams(cursor=cursor))

    async def call(self, name, arguments, progress=False, meta=None, cancel_after=None):
        request_id = self.session._request_id
        called = self.session.call_tool(name, arguments, progress_callback=on_progress if progress else None)
        try:
            return await asyncio.wait_for(called, cancel_after or CALL_SECONDS)
        except TimeoutError:
            # The SDK leaves cancellation to its users.
            cancelled = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=request_id))
            await self.session.send_notification(types.ClientNotification(cancelled))
            raise

    async def task(self, name, arguments):
        return await self.session.experimental.call_tool_as_task(name, arguments, ttl=60_000)

    async def read(self, uri):
        return await self.session.read_resource(uri)

    async def prompt(self, name, arguments):
        return await self.session.get_prompt(name, arguments)

    async def complete(self, ref, argument, context=None):
        kind = types.PromptReference if ref["type"] == "ref/prompt" else types.ResourceTemplateReference
        return await self.session.complete(kind.model_validate(ref), argument, context_arguments=context)

    async def subscribe(self, uri):
        return await self.session.subscribe_resource(uri)

    async def level(self, level):
        return await self.session.set_logging_level(level)

    async def ping(self):
        return await self.session.send_ping()

    async def request(self, method, params):
        return await self.session.send_request(AnyRequest(method=method, params=params), AnyResult)


async def main():
    plan = json.loads(sys.argv[1])
    async with AsyncExitStack() as stack:
        if "url" in plan:
            read, write, _ = await stack.enter_async_context(streamablehttp_client(plan["url"]))
        else:
            command, *args = plan["command"]
            server = StdioServerParameters(command=command, args=args)
            read, write = await stack.enter_async_context(stdio_client(server))
        session = ClientSession(
            read,
            write,
            read_timeout_seconds=timedelta(seconds=CALL_SECONDS),
            sampling_callback=sample,
            sampling_capabilities=types.SamplingCapability(tools=types.SamplingToolsCapability()),
            elicitation_callback=elicit,
            list_roots_callback=list_roots,
            message_handler=on_message,
        )
        await stack.enter_async_context(session)
        known = await session.initialize()
        about = {"instructions": known.instructions, "capabilities": dump(known.capabilities)}
        about["version"] = known.protocolVersion
        await drive(Operations(session), about, McpError, dump)


asyncio.run(main())
