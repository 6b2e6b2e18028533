"""matrix_server.py PORT|stdio OFFER: the modern server of tools/interop/matrix, on PyPI `mcp` 2.x.

It refuses `initialize`, so that it has no second family. matrix_server.mjs is its legacy twin. OFFER is a JSON file with what both
offer: tools, resources, templates, prompts, contents, questions and extensions.
"""

import asyncio
import json
import sys
import time
import uuid

import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp_types import METHOD_NOT_FOUND, RequestParams
from pydantic import ConfigDict

OFFER = json.load(open(sys.argv[2]))
SLOW_SECONDS = 30
# A pause so that a client reads each progress message before the result, after which it ignores them.
STEP_SECONDS = 0.02
TASK_SECONDS = 0.3
PAGE = 3
INVALID_PARAMS = -32602
CACHE = {"ttlMs": 0, "cacheScope": "private"}
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"

bus = InMemorySubscriptionBus()
slow: dict[str, str] = {}
tasks: dict[str, float] = {}
# Lists with one additional item.
extra: set[str] = set()


class AnyParams(RequestParams):
    """Params of a method of an extension."""

    model_config = ConfigDict(extra="allow")


def text(value: str) -> dict:
    return {"content": [{"type": "text", "text": value}]}


def page(member: str, items: list, cursor: str | None) -> dict:
    start = int(cursor or 0)
    more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(items) else {}
    return {member: items[start : start + PAGE], **more, **CACHE}


def more(kind: str, key: str) -> list:
    """The listed items, with an additional one after every other call of `change`."""
    items = OFFER[kind]
    return [*items, {**items[0], key: items[0][key] + "2"}] if kind in extra else items


async def list_tools(ctx, params):
    return page("tools", more("tools", "name"), params and params.cursor)


async def list_resources(ctx, params):
    return page("resources", more("resources", "uri"), params and params.cursor)


async def list_templates(ctx, params):
    return {"resourceTemplates": OFFER["templates"], **CACHE}


async def list_prompts(ctx, params):
    return {"prompts": more("prompts", "name"), **CACHE}


async def read_resource(ctx, params):
    uri = str(params.uri)
    if uri.startswith("doc://item/"):
        return {"contents": [{"uri": uri, "text": f"item {uri.removeprefix('doc://item/')}"}], **CACHE}
    if uri not in OFFER["contents"]:
        raise MCPError(INVALID_PARAMS, "no such resource", {"uri": uri})
    return OFFER["contents"][uri] | CACHE


async def get_prompt(ctx, params):
    if params.name == "ask":
        answers, asked = ask(params, "form")
        return asked or prompt([{"type": "text", "text": f"hello {answers['form']['content']['name']}"}])
    greeting = {"type": "text", "text": f"hello {params.arguments['name']}"}
    return prompt([greeting, {"type": "resource", "resource": OFFER["contents"]["doc://text"]["contents"][0]}])


def prompt(contents: list) -> dict:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


async def complete(ctx, params):
    known = params.context.arguments if params.context else None
    values = ["ada", "alan"] if params.ref.type == "ref/prompt" else [(known or {}).get("kind", "none")]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def ask(params, *names: str) -> tuple[dict, dict | None]:
    """The answers to these questions if the client has given them, otherwise the result that asks them."""
    given = {key: dumped(value) for key, value in (params.input_responses or {}).items()}
    if all(name in given for name in names) and params.request_state == "asked":
        return given, None
    asked = {name: OFFER["questions"][name] for name in names}
    return {}, {"resultType": "input_required", "inputRequests": asked, "requestState": "asked"}


def dumped(value) -> dict:
    return value if isinstance(value, dict) else value.model_dump(by_alias=True, mode="json", exclude_none=True)


def asks(name: str):
    async def tool(ctx, params, arguments):
        answers, asked = ask(params, name)
        return asked or text(json.dumps(answers[name]))

    return tool


async def ask_twice(ctx, params, arguments):
    answers, asked = ask(params, "form", "sample")
    return asked or text(f"{answers['form']['content']['name']} {answers['sample']['content']['text']}")


async def echo(ctx, params, arguments):
    return text(arguments["text"])


async def content(ctx, params, arguments):
    return {"content": OFFER["blocks"]}


async def fail(ctx, params, arguments):
    return text("it failed") | {"isError": True}


async def rpc_error(ctx, params, arguments):
    raise MCPError(-32050, "it broke", {"detail": "matrix"})


async def structured(ctx, params, arguments):
    return text('{"n":1}') | {"structuredContent": {"n": 1}}


async def values(ctx, params, arguments):
    return text("[1,2]") | {"structuredContent": [1, 2]}


async def progress(ctx, params, arguments):
    for step in (1, 2, 3):
        await ctx.session.report_progress(step, 3, f"step {step}")
        await asyncio.sleep(STEP_SECONDS)
    return text("done")


async def be_slow(ctx, params, arguments):
    key = arguments["key"]
    slow[key] = "running"
    try:
        await asyncio.sleep(SLOW_SECONDS)
    except asyncio.CancelledError:
        slow[key] = "cancelled"
        raise
    return text("late")


async def seen(ctx, params, arguments):
    return text(slow.get(arguments["key"], "unknown"))


async def log(ctx, params, arguments):
    await ctx.session.send_log_message("warning", "logged", "matrix", ctx.request_id)
    return text("logged")


async def touch(ctx, params, arguments):
    await bus.publish(ResourceUpdated(uri="doc://text"))
    return text("touched")


async def change(ctx, params, arguments):
    kind = arguments["kind"]
    extra.symmetric_difference_update({kind})
    await bus.publish({"tools": ToolsListChanged, "resources": ResourcesListChanged, "prompts": PromptsListChanged}[kind]())
    return text("changed")


async def make_task(ctx, params, arguments):
    if TASKS_EXTENSION not in extensions_of(ctx):
        return text("no task")
    task_id = uuid.uuid4().hex
    tasks[task_id] = time.time()
    return {"resultType": "task", **task(task_id)}


def task(task_id: str) -> dict:
    if task_id not in tasks:
        raise MCPError(INVALID_PARAMS, "no such task")
    done = time.time() - tasks[task_id] > TASK_SECONDS
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(tasks[task_id]))
    result = {"result": text("task done") | {"resultType": "complete"}} if done else {}
    status = "completed" if done else "working"
    times = {"createdAt": when, "lastUpdatedAt": when, "ttlMs": 60_000, "pollIntervalMs": 100}
    return {"taskId": task_id, "status": status, **times, **result}


async def get_task(ctx, params):
    return {"resultType": "complete", **task(params.model_extra["taskId"])}


async def show(ctx, params, arguments):
    return text("shown")


def extensions_of(ctx) -> dict:
    declared = ctx.session.client_capabilities
    return (declared and declared.extensions) or {}


async def client_extensions(ctx, params, arguments):
    return text(json.dumps(extensions_of(ctx)))


async def greet(ctx, params):
    return {"greeting": f"hello {params.model_extra['name']}"}


async def list_skills(ctx, params):
    return {"skills": OFFER["skills"], **CACHE}


TOOLS = {
    "ask_twice": ask_twice,
    "change": change,
    "client_extensions": client_extensions,
    "content": content,
    "echo": echo,
    "elicit_decline": asks("decline"),
    "elicit_form": asks("form"),
    "elicit_url": asks("url"),
    "fail": fail,
    "log": log,
    "progress": progress,
    "roots": asks("roots"),
    "rpc_error": rpc_error,
    "sample": asks("sample"),
    "sample_tools": asks("sample_tools"),
    "seen": seen,
    "show": show,
    "slow": be_slow,
    "structured": structured,
    "task": make_task,
    "touch": touch,
    "values": values,
}


async def call_tool(ctx, params):
    if params.name not in TOOLS:
        raise MCPError(INVALID_PARAMS, f"unknown tool {params.name}")
    return await TOOLS[params.name](ctx, params, params.arguments or {})


async def set_level(ctx, params):
    """Never called: it exists so that `logging` is declared. The level is part of each request."""
    raise MCPError(METHOD_NOT_FOUND, "Method not found")


async def modern_only(ctx, call_next):
    if ctx.method == "initialize":
        raise MCPError(METHOD_NOT_FOUND, "Method not found")
    return await call_next(ctx)


def complete_result(handler):
    """The handler, whose result gets a type if it states none."""

    async def handle(ctx, params):
        return {"resultType": "complete"} | await handler(ctx, params)

    return handle


def make() -> Server:
    server = Server(
        OFFER["name"],
        title=OFFER["title"],
        version=OFFER["version"],
        instructions=OFFER["instructions"],
        on_list_tools=complete_result(list_tools),
        on_call_tool=complete_result(call_tool),
        on_list_resources=complete_result(list_resources),
        on_list_resource_templates=complete_result(list_templates),
        on_read_resource=complete_result(read_resource),
        on_list_prompts=complete_result(list_prompts),
        on_get_prompt=complete_result(get_prompt),
        on_completion=complete_result(complete),
        on_set_logging_level=set_level,
        on_subscriptions_listen=ListenHandler(bus),
    )
    server.extensions = OFFER["extensions"] | {TASKS_EXTENSION: {}}
    server.middleware.append(modern_only)
    for method, handler in (("acme/greet", greet), ("skills/list", list_skills), ("tasks/get", get_task)):
        server.add_request_handler(method, AnyParams, handler)
    return server


async def serve_stdio(server: Server):
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if sys.argv[1] == "stdio":
    asyncio.run(serve_stdio(make()))
else:
    uvicorn.run(make().streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
