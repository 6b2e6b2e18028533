"""corpus_client.py PLAN.json: lists everything with a PyPI client, and uses what is listed and what the plan names.

The plan: `client` (`mcp` or `fastmcp`), `url`, `mode` (legacy, or a revision), `calls` (tool calls made after the lists),
`call_listed` (whether listed tools are called), `output` (a file). Writes there as JSON `lists` (names by kind, or why the client rejects the list) and
`outcomes`: (kind, name, outcome), where an outcome is `result`, `failed` (a result that reports an error), `error` (JSON-RPC),
`refused …` (the client does not accept the answer) or `hung`.
"""

import asyncio
import json
import sys

import fastmcp
import mcp

# Longer than any request takes, except one that never ends.
CALL_SECONDS = 10
ARGUMENTS = {"a": "x"}


class Sdk(mcp.Client):
    """The client of the SDK."""

    def __init__(self, plan: dict):
        super().__init__(plan["url"], mode=plan["mode"], read_timeout_seconds=2 * CALL_SECONDS)


class Fast(fastmcp.Client):
    """FastMCP's client, under the names of the SDK's."""

    def __init__(self, plan: dict):
        super().__init__(plan["url"], mode=plan["mode"], timeout=2 * CALL_SECONDS)
        self.list_tools, self.list_resources = self.list_tools_mcp, self.list_resources_mcp
        self.list_resource_templates = self.list_resource_templates_mcp
        self.list_prompts, self.call_tool = self.list_prompts_mcp, self.call_tool_mcp
        self.read_resource, self.get_prompt = self.read_resource_mcp, self.get_prompt_mcp


async def pages(ask, member: str) -> list:
    items, cursor = [], None
    while True:
        page = await asyncio.wait_for(ask(cursor=cursor), CALL_SECONDS)
        items += getattr(page, member)
        cursor = page.next_cursor
        if not cursor:
            return items


async def outcome(asked) -> str:
    try:
        result = await asyncio.wait_for(asked, CALL_SECONDS)
        return "failed" if getattr(result, "is_error", False) else "result"
    except TimeoutError:
        return "hung"
    except mcp.MCPError:
        return "error"
    except Exception as error:  # the client's own refusals have many types
        return f"refused {type(error).__name__} {error}"[:300]


async def main():
    plan = json.load(open(sys.argv[1]))
    lists, outcomes = {}, []
    async with {"mcp": Sdk, "fastmcp": Fast}[plan["client"]](plan) as client:
        for kind, ask, member, key in (
            ("tool", client.list_tools, "tools", "name"),
            ("resource", client.list_resources, "resources", "uri"),
            ("template", client.list_resource_templates, "resource_templates", "uri_template"),
            ("prompt", client.list_prompts, "prompts", "name"),
        ):
            try:
                items = await pages(ask, member)
            except Exception as error:  # as above
                lists[kind] = f"{type(error).__name__} {error}"[:1000]
                continue
            lists[kind] = [str(getattr(item, key)) for item in items]
            for item, name in zip(items, lists[kind]):
                if kind == "resource":
                    asked = client.read_resource(name)
                elif kind == "prompt":
                    given = {each.name: "x" for each in item.arguments or []}
                    asked = client.get_prompt(name, given)
                elif kind == "tool" and plan["call_listed"]:
                    asked = client.call_tool(name, ARGUMENTS)
                else:
                    continue
                outcomes.append((kind, name, await outcome(asked)))
        for call in plan["calls"]:
            outcomes.append(("tool", call["id"], await outcome(client.call_tool(call["name"], call["arguments"]))))
    with open(plan["output"], "w") as file:
        json.dump({"lists": lists, "outcomes": outcomes}, file)


asyncio.run(main())
