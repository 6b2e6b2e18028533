"""matrix_client.py PLAN: a PyPI client of tools/interop/matrix: `mcp` 2.x or `fastmcp`, in either family.

PLAN is JSON: `client` (`mcp` or `fastmcp`), `mode` (legacy, or automatic), `url` or `command`. The client is controlled
over its pipes: see matrix_peer.py.
"""

import asyncio
import json
import sys
import warnings
from typing import Any, Literal

import mcp
import mcp_types as types
from mcp import MCPError, StdioServerParameters
from mcp.client import advertise
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.subscriptions import listen
from mcp.shared.subscriptions import event_to_notification
from pydantic import ConfigDict, TypeAdapter

from matrix_pipes import answers, drive, dump, say

CALL_SECONDS = 10
EXTENSIONS = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}, "io.modelcontextprotocol/skills": {}}
ANY = TypeAdapter(dict[str, Any])


class AnyRequest(types.Request[dict[str, Any], str]):
    """A request with any method."""


class TaskRequest(AnyRequest):
    name_param = "taskId"


class TaskMade(types.Result):
    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"


class Tasks(ClientExtension):
    """Returns the result that creates a task, so that the driver can poll the task."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self):
        return [ResultClaim(result_type="task", model=TaskMade, resolve=self.resolve)]

    async def resolve(self, made: TaskMade, _) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(dump(made)))])


elicit, sample, list_roots = answers(types)


async def fast_elicit(message, response_type, params, context):
    return await elicit(context, params)


async def fast_sample(messages, params, context):
    return await sample(context, params)


async def on_message(message):
    if isinstance(message, Exception):
        return
    message = dump(message)
    if "method" in message and not message["method"].endswith("/progress"):
        say(event=message["method"], params=message.get("params"))


async def nothing(_):
    """Passes log messages to `on_message` as well."""


async def on_progress(progress, total, message):
    say(event="progress", params={"progress": progress, "total": total, "message": message})


def sdk(plan: dict, server):
    modern = plan["mode"] != "legacy"
    client = mcp.Client(
        server if isinstance(server, str) else StdioServerParameters(command=server[0], args=server[1:]),
        mode=plan["mode"],
        read_timeout_seconds=CALL_SECONDS,
        sampling_callback=sample,
        sampling_capabilities=types.SamplingCapability(tools=types.SamplingToolsCapability()),
        list_roots_callback=list_roots,
        elicitation_callback=elicit,
        message_handler=on_message,
        extensions=[advertise(*each) for each in EXTENSIONS.items()] + [Tasks()] * modern,
    )
    client.progress = "progress_callback"
    return client


def fast(plan: dict, server):
    import fastmcp
    from fastmcp.client.transports import StdioTransport

    client = fastmcp.Client(
        server if isinstance(server, str) else StdioTransport(command=server[0], args=server[1:]),
        mode=plan["mode"],
        timeout=CALL_SECONDS,
        sampling_handler=fast_sample,
        sampling_capabilities=types.SamplingCapability(tools=types.SamplingToolsCapability()),
        roots=["file:///matrix"],
        elicitation_handler=fast_elicit,
        message_handler=on_message,
        log_handler=nothing,
        extensions=[advertise(*each) for each in EXTENSIONS.items()] + [Tasks()],
    )
    for name in ("list_tools", "list_resources", "list_resource_templates", "list_prompts"):
        setattr(client, name, getattr(client, f"{name}_mcp"))
    for name in ("call_tool", "read_resource", "get_prompt", "complete"):
        setattr(client, name, getattr(client, f"{name}_mcp"))
    client.progress = "progress_handler"
    return client


class Operations:
    """Operations that the driver can request."""

    def __init__(self, client):
        self.client = client

    async def list(self, kind, cursor=None):
        names = {"resourceTemplates": "list_resource_templates"}
        return await getattr(self.client, names.get(kind, f"list_{kind}"))(cursor=cursor, cache_mode="refresh")

    async def call(self, name, arguments, progress=False, meta=None, cancel_after=None):
        more = {self.client.progress: on_progress} if progress else {}
        called = self.client.call_tool(name, arguments, meta=meta, **more)
        return await asyncio.wait_for(called, cancel_after or CALL_SECONDS)

    async def task(self, name, arguments):
        if self.client.session.protocol_version >= "2026":
            return json.loads((await self.client.call_tool(name, arguments)).content[0].text)
        return await self.request("tools/call", {"name": name, "arguments": arguments, "task": {"ttl": 60_000}})

    async def read(self, uri):
        return await self.client.read_resource(uri)

    async def prompt(self, name, arguments):
        return await self.client.get_prompt(name, arguments)

    async def complete(self, ref, argument, context=None):
        kind = types.PromptReference if ref["type"] == "ref/prompt" else types.ResourceTemplateReference
        return await self.client.complete(kind.model_validate(ref), argument, context_arguments=context)

    async def subscribe(self, uri):
        return await self.client.session.subscribe_resource(uri)

    async def listen(self, uris):
        kinds = dict.fromkeys(("tools_list_changed", "prompts_list_changed", "resources_list_changed"), True)
        listening = asyncio.get_running_loop().create_future()

        async def follow():
            async with listen(self.client.session, **kinds, resource_subscriptions=uris) as subscription:
                listening.set_result({})
                async for event in subscription:
                    notice = dump(event_to_notification(event, {}))
                    say(event=notice["method"], params=notice.get("params"))

        self.follower = asyncio.ensure_future(follow())
        await asyncio.wait({self.follower, listening}, return_when=asyncio.FIRST_COMPLETED)
        return listening.result() if listening.done() else self.follower.result()

    async def level(self, level):
        return await self.client.session.set_logging_level(level)

    async def ping(self):
        return await self.client.session.send_ping()

    async def request(self, method, params):
        kind = TaskRequest if method.startswith("tasks/") else AnyRequest
        return await self.client.session.send_request(kind(method=method, params=params), ANY)


async def main():
    plan = json.loads(sys.argv[1])
    client = {"mcp": sdk, "fastmcp": fast}[plan["client"]](plan, plan.get("url") or plan["command"])
    async with client:
        session = client.session
        about = {"instructions": session.instructions, "capabilities": dump(session.server_capabilities)}
        about["version"] = session.protocol_version
        await drive(Operations(client), about, MCPError, dump)


warnings.simplefilter("ignore")
asyncio.run(main())
