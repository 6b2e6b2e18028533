"""The features that tools/interop/matrix checks: the items that servers offer, one check for each feature, and the
pairs for which a feature is impossible.

A check controls one client (matrix_peer.Peer) through a View, which writes names and URIs as its interface shows them.
It returns nothing, or raises an exception: Missed with the difference, or the exception of the client.
"""

import json
import time
from dataclasses import dataclass

UI = "io.modelcontextprotocol/ui"
SKILLS = "io.modelcontextprotocol/skills"
TASKS = "io.modelcontextprotocol/tasks"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
APP = "ui://show/page.html"
APP_TYPE = "text/html;profile=mcp-app"
SKILL = "skill://greet/SKILL.md"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
ICONS = [{"src": "https://example.invalid/icon.png", "mimeType": "image/png", "sizes": ["48x48"]}]
INSTRUCTIONS = "Use the matrix with care."
NAMES = ("echo", "content", "fail", "rpc_error", "structured", "progress", "slow", "seen", "log", "touch", "change", "elicit_form")
NAMES += ("elicit_decline", "elicit_url", "sample", "sample_tools", "roots", "ask_twice", "task", "show", "client_extensions")

# Interfaces that show the tools of the proxy, and interfaces that merge all servers.
SEARCH = ("/mcp", "stdio")
MERGED = (*SEARCH, "/mcp/all")
CHANGE_SECONDS = 5
TASK_POLLS = 20


class Missed(Exception):
    """A feature does not work as required."""


def expect(condition, *found):
    if not condition:
        raise Missed(" ".join(str(each) for each in found)[:300])


# --- items that both servers offer


def offer(era: str) -> dict:
    tools = [tool(name) for name in NAMES + (("values",) if era == "modern" else ())]
    skill = {"uri": SKILL, "frontmatter": {"name": "greet", "description": "Greets."}, "resources": "dynamic"}
    page = {"uri": APP, "mimeType": APP_TYPE, "text": "<!doctype html><p>shown</p>"}
    contents = {
        "doc://text": {"uri": "doc://text", "mimeType": "text/plain", "text": "plain text"},
        "doc://blob": {"uri": "doc://blob", "mimeType": "image/png", "blob": PIXEL},
        SKILL: {"uri": SKILL, "mimeType": "text/markdown", "text": "---\nname: greet\ndescription: Greets.\n---\nSay hello."},
        APP: page,
    }
    plain = [{"uri": uri, "name": each["uri"].split("/")[-1], "mimeType": each["mimeType"]} for uri, each in contents.items()]
    described = {"title": "Text", "description": "A text.", "icons": ICONS, "size": 10, "_meta": {"acme/kept": True}}
    described["annotations"] = {"audience": ["user"], "priority": 0.5}
    named = {"name": "name", "description": "Whom.", "required": True}
    return {
        "name": f"matrix-{era}",
        "title": "The matrix",
        "version": "1",
        "instructions": INSTRUCTIONS,
        "extensions": {UI: {"mimeTypes": [APP_TYPE]}, SKILLS: {}},
        "tools": tools,
        "resources": [plain[0] | described, *plain[1:]],
        "templates": [{"uriTemplate": "doc://item/{id}", "name": "item", "title": "An item"}],
        "prompts": [
            {"name": "greet", "title": "Greet", "icons": ICONS, "arguments": [named]},
            {"name": "ask", "description": "Asks whom to greet."},
        ],
        "contents": {uri: {"contents": [each]} for uri, each in contents.items()},
        "skills": [skill],
        "blocks": [
            {"type": "text", "text": "é", "annotations": {"audience": ["assistant"]}},
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "doc://text", "name": "text"},
            {"type": "resource", "resource": contents["doc://text"]},
        ],
        "questions": questions(),
    }


def tool(name: str) -> dict:
    made = {"name": name, "description": f"Checks {name}.", "inputSchema": {"type": "object", "properties": {}}}
    made["annotations"] = {"readOnlyHint": True}
    if name == "echo":
        made |= {"title": "Echo", "icons": ICONS, "_meta": {"acme/kept": True}}
        made["inputSchema"] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    for key, names in (("key", ("slow", "seen")), ("kind", ("change",))):
        if name in names:
            made["inputSchema"] = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    if name == "structured":
        made["outputSchema"] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    if name == "values":
        made["outputSchema"] = {"type": "array", "items": {"type": "integer"}}
    if name == "task":
        made["execution"] = {"taskSupport": "optional"}
    if name == "show":
        made["_meta"] = {"ui": {"resourceUri": APP}}
    return made


def questions() -> dict:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    said = [{"role": "user", "content": {"type": "text", "text": "Say a word."}}]
    look_up = {"name": "look_up", "inputSchema": {"type": "object", "properties": {}}}
    with_tools = {"messages": said, "maxTokens": 10, "tools": [look_up], "toolChoice": {"mode": "required"}}
    form = {"mode": "form", "message": "Who are you?", "requestedSchema": schema}
    url = {"mode": "url", "message": "Open the page.", "url": "https://example.invalid/open"}
    return {
        "form": {"method": "elicitation/create", "params": form},
        "decline": {"method": "elicitation/create", "params": form | {"message": "decline this"}},
        "url": {"method": "elicitation/create", "params": url},
        "sample": {"method": "sampling/createMessage", "params": {"messages": said, "maxTokens": 10}},
        "sample_tools": {"method": "sampling/createMessage", "params": with_tools},
        "roots": {"method": "roots/list"},
    }


# --- names at an interface


@dataclass
class View:
    """A client connected to an interface, or directly to a server; the names of one server as that interface shows
    them.
    """

    peer: object
    interface: str
    server: str
    modern: bool

    def tool(self, name: str, arguments: dict | None = None) -> dict:
        if self.interface in SEARCH:
            asked = {"name": f"{self.server}:{name}", "args": arguments or {}, "intent": {"operation_type": "read"}}
            return {"name": "call_tool_read", "arguments": asked}
        prefix = f"{self.server}__" if self.interface in MERGED else ""
        return {"name": prefix + name, "arguments": arguments or {}}

    def call(self, name: str, arguments: dict | None = None, **more) -> dict:
        return self.peer.ask("call", **self.tool(name, arguments), **more)

    def text(self, name: str, arguments: dict | None = None, **more) -> str:
        result = self.call(name, arguments, **more)
        expect(not result.get("isError"), result)
        return result["content"][0]["text"]

    def uri(self, uri: str) -> str:
        return f"mcpproxy://{self.server}/{uri}" if self.interface in MERGED else uri

    def prompt(self, name: str) -> str:
        return f"{self.server}__{name}" if self.interface in MERGED else name

    def read(self, uri: str) -> dict:
        return self.peer.ask("read", uri=uri)["contents"][0]

    def list(self, kind: str) -> list[dict]:
        items, cursor = [], None
        for _ in range(100):
            page = self.peer.ask("list", kind=kind, **({"cursor": cursor} if cursor else {}))
            items += page[kind]
            cursor = page.get("nextCursor")
            if not cursor:
                return items
        raise Missed("a list without end")

    def find(self, kind: str, key: str, value: str) -> dict:
        found = [each for each in self.list(kind) if each[key] == value]
        expect(len(found) == 1, f"{len(found)} of {value}")
        return found[0]

    def listen(self):
        """Subscribes to changes, once for each client."""
        if self.modern and not self.peer.listening:
            self.peer.listening = True
            self.peer.ask("listen", uris=[self.uri("doc://text")])


# --- the checks, in the order in which they run


def tools_list(view: View):
    if view.interface in SEARCH:
        expect("call_tool_read" in [each["name"] for each in view.list("tools")], "no call_tool_read")
        asked = {"query": "echo", "limit": 50}
        found = json.dumps(view.peer.ask("call", name="retrieve_tools", arguments=asked))
        expect(f"{view.server}:echo" in found, found)
        return
    listed = {each["name"] for each in view.list("tools")}
    expect({view.tool(name)["name"] for name in NAMES} <= listed, sorted(listed))


def tools_call(view: View):
    expect(view.text("echo", {"text": "é\u2028"}) == "é\u2028", "another text")


def content_kinds(view: View):
    blocks = view.call("content")["content"]
    kinds = [each["type"] for each in blocks]
    expect(kinds == ["text", "image", "audio", "resource_link", "resource"], kinds)
    expect(blocks[1]["data"] == PIXEL and blocks[4]["resource"]["text"] == "plain text", blocks)


def tool_error(view: View):
    result = view.call("fail")
    expect(result.get("isError") and result["content"][0]["text"] == "it failed", result)


def protocol_error(view: View):
    error = view.peer.error("call", **view.tool("rpc_error"))
    expect(error.get("code") == -32050 and "it broke" in error["message"], error)
    expect(error.get("data") == {"detail": "matrix"}, error)


def structured_object(view: View):
    expect(view.call("structured").get("structuredContent") == {"n": 1}, "no object")


def structured_value(view: View):
    expected = [1, 2] if view.modern else {"result": [1, 2]}
    found = view.call("values").get("structuredContent")
    expect(found == expected, found)


def tool_metadata(view: View):
    if view.interface in SEARCH:
        asked = {"name": f"{view.server}:echo"}
        found = json.dumps(view.peer.ask("call", name="describe_tool", arguments=asked))
        expect("Checks echo." in found and "call_tool_read" in found, found)
        return
    found = view.find("tools", "name", view.tool("echo")["name"])
    expect(found.get("title") == "Echo" and found.get("icons") == ICONS, found)
    expect(found["annotations"].get("readOnlyHint") is True and found["_meta"].get("acme/kept"), found)


def progress(view: View):
    view.peer.forget("progress")
    view.text("progress", progress=True)
    found = view.peer.events("progress", 3)
    expect([each["progress"] for each in found] == [1, 2, 3] and found[2].get("message") == "step 3", found)


def cancel(view: View):
    key = f"{view.server} {view.interface} {time.monotonic()}"
    view.peer.error("call", **view.tool("slow", {"key": key}), cancel_after=0.5)
    deadline = time.monotonic() + CHANGE_SECONDS
    while (seen := view.text("seen", {"key": key})) != "cancelled":
        expect(time.monotonic() < deadline, seen)
        time.sleep(0.1)


def resources_list(view: View):
    page = view.peer.ask("list", kind="resources")
    expect(view.uri("doc://text") in [each["uri"] for each in page["resources"]], page)


def pages(view: View):
    listed = {each["uri"] for each in view.list("resources")}
    expect({view.uri(uri) for uri in ("doc://text", "doc://blob")} <= listed, listed)
    expect(len([each for each in listed if each.endswith(("/SKILL.md", "/page.html"))]) >= 2, listed)


def resource_metadata(view: View):
    found = view.find("resources", "uri", view.uri("doc://text"))
    expect(found.get("title") == "Text" and found.get("icons") == ICONS and found.get("size") == 10, found)
    expect(found["annotations"] == {"audience": ["user"], "priority": 0.5} and found["_meta"].get("acme/kept"), found)


def templates(view: View):
    found = view.find("resourceTemplates", "uriTemplate", view.uri("doc://item/{id}"))
    expect(found.get("title") == "An item", found)


def read_resource(view: View):
    expect(view.read(view.uri("doc://text"))["text"] == "plain text", "another text")
    expect(view.read(view.uri("doc://blob"))["blob"] == PIXEL, "another blob")


def read_template(view: View):
    expect(view.read(view.uri("doc://item/7"))["text"] == "item 7", "another item")


def missing_resource(view: View):
    error = view.peer.error("read", uri=view.uri("doc://nothing"))
    # A client of both families reports the newer code to its users.
    expect(error.get("code") in ((-32602,) if view.modern else (-32002, -32602)), error)


def subscribe(view: View):
    view.listen()
    if not view.modern:
        view.peer.ask("subscribe", uri=view.uri("doc://text"))
    view.peer.forget("notifications/resources/updated")
    view.text("touch")
    found = view.peer.events("notifications/resources/updated", 1)
    expect(found[0]["uri"] == view.uri("doc://text"), found)


def prompts_list(view: View):
    found = view.find("prompts", "name", view.prompt("greet"))
    expect(found.get("title") == "Greet" and found["arguments"][0]["required"] is True, found)


def get_prompt(view: View):
    messages = view.peer.ask("prompt", name=view.prompt("greet"), arguments={"name": "Ada"})["messages"]
    expect(messages[0]["content"]["text"] == "hello Ada", messages)
    expect(messages[1]["content"]["resource"]["text"] == "plain text", messages)


def complete_prompt(view: View):
    ref = {"type": "ref/prompt", "name": view.prompt("greet")}
    found = view.peer.ask("complete", ref=ref, argument={"name": "name", "value": "a"})
    expect(found["completion"]["values"] == ["ada", "alan"], found)


def complete_template(view: View):
    ref = {"type": "ref/resource", "uri": view.uri("doc://item/{id}")}
    found = view.peer.ask("complete", ref=ref, argument={"name": "id", "value": ""}, context={"kind": "given"})
    expect(found["completion"]["values"] == ["given"], found)


def logging(view: View):
    view.peer.forget("notifications/message")
    if view.modern:
        view.text("log", meta={LOG_LEVEL: "info"})
    else:
        view.peer.ask("level", level="info")
        view.text("log")
    found = view.peer.events("notifications/message", 1)
    expect(found[0]["data"] == "logged" and found[0]["level"] == "warning", found)


def elicit_form(view: View):
    answer = json.loads(view.text("elicit_form"))
    expect(answer == {"action": "accept", "content": {"name": "Ada"}}, answer)


def elicit_decline(view: View):
    answer = json.loads(view.text("elicit_decline"))
    expect(answer["action"] == "decline", answer)


def elicit_url(view: View):
    view.peer.forget("asked")
    answer = json.loads(view.text("elicit_url"))
    expect(answer["action"] == "accept", answer)
    asked = view.peer.events("asked", 1)
    expect(asked[0]["params"].get("url") == "https://example.invalid/open", asked)


def elicit_complete(view: View):
    view.peer.forget("asked")
    view.peer.forget("notifications/elicitation/complete")
    view.text("elicit_url")
    asked = view.peer.events("asked", 1)[0]["params"]
    # The notification of an earlier question may still be in transit.
    view.peer.events("notifications/elicitation/complete", 1, elicitationId=asked["elicitationId"])


def sampling(view: View):
    answer = json.loads(view.text("sample"))
    expect(answer["content"] == {"type": "text", "text": "sampled"} and answer["model"] == "matrix", answer)


def sampling_tools(view: View):
    answer = json.loads(view.text("sample_tools"))
    content = answer["content"]
    block = content[0] if isinstance(content, list) else content
    expect(block["type"] == "tool_use" and block["name"] == "look_up", answer)


def roots(view: View):
    answer = json.loads(view.text("roots"))
    expect(answer["roots"][0]["uri"] == "file:///matrix", answer)


def two_questions(view: View):
    expect(view.text("ask_twice") == "Ada sampled", "other answers")


def prompt_question(view: View):
    messages = view.peer.ask("prompt", name=view.prompt("ask"), arguments={})["messages"]
    expect(messages[0]["content"]["text"] == "hello Ada", messages)


def task(view: View):
    made = view.peer.ask("task", **view.tool("task"))
    taken = made.get("task", made)
    for _ in range(TASK_POLLS):
        found = view.peer.ask("request", method="tasks/get", params={"taskId": taken["taskId"]})
        if found["status"] == "completed":
            break
        time.sleep(0.1)
    if not view.modern:
        found = {"result": view.peer.ask("request", method="tasks/result", params={"taskId": taken["taskId"]})}
    expect(found["result"]["content"][0]["text"] == "task done", found)


def client_extensions(view: View):
    found = json.loads(view.text("client_extensions"))
    expect(UI in found, found)


def apps(view: View):
    declared = view.peer.about["capabilities"].get("extensions") or {}
    expect(UI in declared, f"declared: {sorted(declared)}")
    found = view.find("tools", "name", view.tool("show")["name"])
    page = view.read(found["_meta"]["ui"]["resourceUri"])
    expect(page["mimeType"] == APP_TYPE and "<p>shown</p>" in page["text"], page)


def skills(view: View):
    declared = view.peer.about["capabilities"].get("extensions") or {}
    expect(SKILLS in declared, f"declared: {sorted(declared)}")
    listed = view.peer.ask("request", method="skills/list", params={})["skills"]
    expect(listed, "no skill is listed")
    uris = [each["uri"] for each in listed if view.interface not in MERGED or view.server in each["uri"]]
    expect(len(uris) == 1 and uris[0].startswith("skill://"), listed)
    expect("Say hello." in view.read(uris[0])["text"], "another skill")


def extension_method(view: View):
    found = view.peer.ask("request", method="acme/greet", params={"name": "Ada"})
    expect(found.get("greeting") == "hello Ada", found)


def unknown_method(view: View):
    error = view.peer.error("request", method="tools/nothing", params={})
    # Over HTTP a client may report only the error's text.
    expect("-32601" in json.dumps(error), error)


def instructions(view: View):
    found = view.peer.about.get("instructions") or ""
    expect(found if view.interface in MERGED else INSTRUCTIONS in found, found)


def ping(view: View):
    view.peer.ask("ping")


def changed(kind: str):
    def check(view: View):
        view.listen()
        method = f"notifications/{kind}/list_changed"
        view.peer.forget(method)
        before = len(view.list(kind))
        view.text("change", {"kind": kind})
        view.peer.events(method, 1)
        deadline = time.monotonic() + CHANGE_SECONDS
        while len(view.list(kind)) == before:
            expect(time.monotonic() < deadline, f"still {before} {kind}")
            time.sleep(0.1)

    return check


FEATURES = {
    "list tools": tools_list,
    "call a tool": tools_call,
    "content of all kinds": content_kinds,
    "error of a tool": tool_error,
    "protocol error": protocol_error,
    "structured object": structured_object,
    "structured value": structured_value,
    "metadata of tools": tool_metadata,
    "progress": progress,
    "list resources": resources_list,
    "pages": pages,
    "metadata of resources": resource_metadata,
    "resource templates": templates,
    "read a resource": read_resource,
    "read a template": read_template,
    "missing resource": missing_resource,
    "subscribe": subscribe,
    "list prompts": prompts_list,
    "get a prompt": get_prompt,
    "complete a prompt": complete_prompt,
    "complete a template": complete_template,
    "logging": logging,
    "elicitation: form": elicit_form,
    "elicitation: decline": elicit_decline,
    "elicitation: URL": elicit_url,
    "elicitation: complete": elicit_complete,
    "sampling": sampling,
    "sampling with tools": sampling_tools,
    "roots": roots,
    "two questions": two_questions,
    "question in a prompt": prompt_question,
    "tasks": task,
    "client's extensions": client_extensions,
    "apps": apps,
    "skills": skills,
    "method of an extension": extension_method,
    "unknown method": unknown_method,
    "instructions": instructions,
    "ping": ping,
    "tools change": changed("tools"),
    "resources change": changed("resources"),
    "prompts change": changed("prompts"),
    "cancel": cancel,
}

ANY = ("legacy", "modern")
# Used in place of the reason of a failure if a feature was not tried.
NOT_POSSIBLE = "not possible"


@dataclass(frozen=True)
class Impossible:
    """Cells that a revision does not provide: features, families of the client and of the server, interfaces; the
    reason, and the section that states it.
    """

    feature: str
    clients: tuple
    servers: tuple
    reason: str
    section: str
    interfaces: tuple = (*MERGED, "/mcp/server/NAME", "direct")


IMPOSSIBLE = [
    Impossible(
        "structured value",
        ANY,
        ("legacy",),
        "`structuredContent` is an object",
        "2025-11-25, server/tools, Structured Content",
    ),
    Impossible(
        "ping", ("modern",), ANY, "`ping` was removed", "2026-07-28, Key Changes, major 5"
    ),
    *(
        Impossible(
            "elicitation: complete",
            clients,
            servers,
            "`notifications/elicitation/complete` was removed",
            "2026-07-28, Key Changes, minor 11",
        )
        for clients, servers in ((("modern",), ANY), (("legacy",), ("modern",)))
    ),
    Impossible(
        "tasks",
        ("legacy",),
        ("modern",),
        "the extension's tasks need a client that declares it; the core's tasks were removed",
        "2026-07-28, Key Changes, major 6",
    ),
    Impossible(
        "tasks",
        ("modern",),
        ("legacy",),
        "a task of the core has its result in `tasks/result`, which was removed",
        "2026-07-28, Key Changes, major 6",
    ),
    Impossible(
        "method of an extension",
        ANY,
        ANY,
        "a request names no server, and several servers may have the method",
        "2026-07-28, basic, Requests",
        MERGED,
    ),
    Impossible(
        "apps",
        ANY,
        ANY,
        "a page is found in `tools/list`, which has the proxy's five tools",
        "SEP-1865, Resource Discovery",
        SEARCH,
    ),
    Impossible(
        "tools change",
        ANY,
        ANY,
        "the proxy's tools do not change",
        "2026-07-28, server/tools, List Changed Notification",
        SEARCH,
    ),
]


def impossible(feature: str, client: str, server: str, interface: str) -> Impossible | None:
    for each in IMPOSSIBLE:
        if each.feature == feature and client in each.clients and server in each.servers and interface in each.interfaces:
            return each
    return None
