"""Odd items of MCP servers, generated: whole items in which one member has a value of another type, and odd forms of
whole answers.

Every item has a number, which is part of its name. The server that offers the items and the driver that counts them
generate the same ones.
"""

import copy
import json
from dataclasses import dataclass

# Values of every JSON type, to replace members of other types.
ODD = [None, True, 7, -1.5, "x", [], [None], {}, {"a": None}]
LEGACY, MODERN = "2025-11-25", "2026-07-28"
# Patterns in the syntax of languages other than ECMAScript.
PATTERNS = ["(?i)a", "(?P<n>a)", "\\Aa\\Z", "\\-", "a++", "[[:alpha:]]", "\\pL", "\\x{41}", "(?x) a", "]", "\\_"]
COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
TEXT = {"type": "text", "text": "t"}
ICONS = [{"src": "data:,", "mimeType": "image/png", "sizes": ["any"], "theme": "dark"}]


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer; `ID` in the body is the id of the request."""

    body: str
    status: int = 200
    content_type: str = "application/json"


def replaced(whole: dict, members: list[str]) -> list[dict]:
    """Copies of `whole` with each odd value at each of these paths, and one copy without the path."""
    made = []
    for path in members:
        *outer, last = path.split(".")
        for value in ODD:
            item = copy.deepcopy(whole)
            inner(item, outer)[last] = value
            made.append(item)
        item = copy.deepcopy(whole)
        del inner(item, outer)[last]
        made.append(item)
    return made


def inner(item: dict, path: list[str]) -> dict:
    for name in path:
        item = item[name]
        item = item[0] if isinstance(item, list) else item
    return item


def named(items: list[dict], key: str, prefix: str) -> list[dict]:
    """The items, each under a unique name unless the name itself is odd."""
    for number, item in enumerate(items):
        if isinstance(item.get(key), str) and item[key] != "x":
            item[key] = f"{prefix}{number}"
    return items


def tools() -> list[dict]:
    whole = {
        "name": "t",
        "title": "T",
        "description": "d",
        "icons": ICONS,
        "_meta": {"k": 1},
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "outputSchema": {"type": "object", "properties": {"b": {}}, "required": []},
        "annotations": {"title": "x", "readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": True},
        "execution": {"taskSupport": "optional"},
    }
    members = list(whole) + [f"annotations.{name}" for name in whole["annotations"]]
    members += [f"icons.{name}" for name in ICONS[0]] + ["execution.taskSupport"]
    members += [f"{schema}.{name}" for schema in ("inputSchema", "outputSchema") for name in ("type", "properties", "required")]
    made = replaced(whole, members)
    for schema in (
        {"anyOf": [{"type": "object"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"type": "array", "items": {"type": "string"}},
        {"type": ["object", "null"]},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}},
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": {"a": {"pattern": "(?<"}}},
        {"type": "object", "$schema": "http://json-schema.org/draft-04/schema#"},
        {"type": "object", "$schema": "urn:nothing"},
        {"type": "object", "$schema": 7},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"type": "object", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]},
        {"type": "object", "$id": "urn:a"},
        {"type": "object", "$id": "http://a/b", "required": ["b"]},
        {"type": "object", "$id": "http://a/b", "required": ["c"]},
        {"type": "object", "properties": {"a": {"$id": "urn:a"}}},
        {"type": "object", "properties": {"a": {"nullable": True}}},
        {"type": "object", "properties": {"a": {"nullable": None, "type": "string"}}},
        {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "properties": {"a": {"id": "x"}}},
        {"type": "object", "properties": {"a": {"formatMinimum": "2026-01-01"}}},
        {"type": "object", "properties": {"a": {"additionalItems": 7}}},
        {"type": "object", "patternProperties": {"^[a-z": {"type": "string"}}},
        {"type": "object", "required": ["a", "a"]},
        {"type": "object", "additionalProperties": None},
    ):
        made += [whole | {at: schema} for at in ("inputSchema", "outputSchema")]
    for pattern in PATTERNS:
        made.append(whole | {"outputSchema": {"type": "object", "properties": {"a": {"pattern": pattern}}}})
    return named(made, "name", "odd")


def resources(key: str) -> list[dict]:
    whole = {
        key: "x:y",
        "name": "n",
        "title": "T",
        "description": "d",
        "mimeType": "text/plain",
        "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"},
        "icons": ICONS,
        "_meta": {"k": 1},
        "size": 1,
    }
    members = list(whole) + [f"annotations.{name}" for name in whole["annotations"]]
    members += [f"icons.{name}" for name in ICONS[0]]
    made = replaced(whole, members)
    for address in ("", "no scheme", "http://[", "x:é", "x:{", "x:{a}", "http://a/%zz"):
        made.append(whole | {key: address})
    for number, item in enumerate(made):
        if item.get(key) == "x:y":
            item[key] = f"odd:{number}" + ("/{a}" if key == "uriTemplate" else "")
    return made


def prompts() -> list[dict]:
    whole = {
        "name": "p",
        "title": "T",
        "description": "d",
        "arguments": [{"name": "a", "title": "A", "description": "x", "required": True}],
        "icons": ICONS,
        "_meta": {"k": 1},
    }
    members = list(whole) + [f"arguments.{name}" for name in whole["arguments"][0]]
    return named(replaced(whole, members), "name", "odd")


def blocks() -> list[dict]:
    annotations = {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"}
    whole = [
        (TEXT | {"annotations": annotations, "_meta": {}}, ["type", "text", "annotations", "_meta", "annotations.priority"]),
        ({"type": "image", "data": "AA==", "mimeType": "image/png"}, ["data", "mimeType"]),
        ({"type": "audio", "data": "AA==", "mimeType": "audio/wav"}, ["data", "mimeType"]),
        ({"type": "resource_link", "uri": "x:y", "name": "n"}, ["uri", "name"]),
        ({"type": "resource", "resource": {"uri": "x:y", "text": "t"}}, ["resource", "resource.uri", "resource.text"]),
    ]
    return [block for item, members in whole for block in replaced(item, members)]


def results() -> list[Answer]:
    """Results of tools/call."""
    whole = {"content": [TEXT], "structuredContent": {"b": 1}, "isError": False, "_meta": {}, "resultType": "complete"}
    made = replaced(whole, list(whole))
    made += [{"content": [TEXT, block], "resultType": "complete"} for block in blocks()]
    return [answer({"result": result}) for result in made] + [
        answer_of('"result":{"content":[{"type":"text","text":"\\ud800"}]}'),
        answer_of('"result":{"content":[],"structuredContent":{"n":1E400}}'),
        answer_of('"result":{"content":[],"structuredContent":{"n":123456789012345678901234567890}}'),
        answer_of('"result":{"content":[],"content":[{"type":"text","text":"2"}]}'),
    ]


def contents() -> list[Answer]:
    """Results of resources/read."""
    whole = {"contents": [{"uri": "x:y", "mimeType": "text/plain", "text": "t", "_meta": {}}]} | COMPLETE
    members = ["contents", "contents.uri", "contents.mimeType", "contents.text", "contents._meta"]
    return [answer({"result": result}) for result in replaced(whole, members + list(COMPLETE))]


def messages() -> list[Answer]:
    """Results of prompts/get."""
    whole = {"description": "d", "messages": [{"role": "user", "content": TEXT}], "resultType": "complete"}
    members = ["description", "messages", "messages.role", "messages.content", "messages.content.text"]
    return [answer({"result": result}) for result in replaced(whole, members)]


def errors() -> list[Answer]:
    """Answers to tools/call that are errors, or are not answers."""
    error = {"code": -32000, "message": "m", "data": {"k": 1}}
    made = [answer({"error": each}) for each in replaced(error, list(error))]
    made += [answer({"error": value}) for value in ODD]
    made += [answer({"result": value}) for value in ODD]
    made += [answer({"result": {"content": []}, "error": value}) for value in ODD]
    made += [answer({"result": value, "error": error}) for value in ODD]
    made += [Answer(json.dumps({"jsonrpc": version, "id": 0, "error": error}).replace('"id": 0', '"id":ID')) for version in ODD]
    for id in ("null", '"x"', '"server-error"', "7", "-1", "1.5", "true", "[]", "{}", '"ID"', "ID.0", "IDe0"):
        made.append(Answer(f'{{"jsonrpc":"2.0","id":{id},"error":{json.dumps(error)}}}'))
    for body in ("", "null", "7", "[]", "{}", "{", "x", '{"jsonrpc":"2.0"}', '{"jsonrpc":"2.0","id":ID}', "[{}]", "\ufeff", "\0"):
        made.append(Answer(body))
    usual = f'{{"jsonrpc":"2.0","id":ID,"error":{json.dumps(error)}}}'
    for status in (202, 204, 301, 400, 401, 403, 404, 405, 408, 409, 410, 413, 418, 422, 429, 500, 501, 502, 503, 504, 599):
        made += [Answer(usual, status), Answer("<h1>no</h1>", status, "text/html"), Answer("", status, "")]
        made.append(Answer(f'{{"jsonrpc":"2.0","id":7,"error":{json.dumps(error)}}}', status))
    for event in ("data: ID\n\n", "data:\n\n", "event: x\ndata: {}\n\n", ": nothing\n\n", "", f"data: {usual}\n\n", f"data: {usual}"):
        made.append(Answer(event, content_type="text/event-stream"))
    for kind in ("", "text/plain", "application/octet-stream", "application/json; charset=latin1", "APPLICATION/JSON"):
        made.append(Answer(usual, content_type=kind))
    # The last ones make the proxy wait before it sends further requests: a required login, a requested delay.
    return sorted(made, key=lambda each: each.status)


def initializations() -> list[Answer]:
    """Answers to initialize."""
    whole = {
        "protocolVersion": LEGACY,
        "capabilities": {"tools": {"listChanged": False}, "logging": {}, "completions": {}, "experimental": {"a": {}}},
        "serverInfo": {"name": "odd", "version": "1", "title": "T", "websiteUrl": "http://a/", "icons": ICONS},
        "instructions": "i",
        "_meta": {},
    }
    members = [*whole, "capabilities.tools", "capabilities.tools.listChanged", "capabilities.logging"]
    members += ["capabilities.experimental", "serverInfo.name", "serverInfo.version", "serverInfo.title", "serverInfo.icons"]
    made = [answer({"result": result}) for result in replaced(whole, members)]
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", MODERN, "2030-01-01", "", "1.0"):
        made.append(answer({"result": whole | {"protocolVersion": version}}))
    return made + refusals()


def discoveries() -> list[Answer]:
    """Answers to server/discover."""
    whole = {
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "experimental": {"a": {}}},
        "serverInfo": {"name": "odd", "version": "1"},
        "instructions": "i",
        "_meta": {},
    } | COMPLETE
    members = [*whole, "capabilities.tools", "capabilities.experimental", "serverInfo.name", "serverInfo.version"]
    made = [answer({"result": result}) for result in replaced(whole, members)]
    for versions in (["2030-01-01"], [LEGACY], [MODERN, 7], [None, MODERN], ["1.0", MODERN, LEGACY]):
        made.append(answer({"result": whole | {"supportedVersions": versions}}))
    return made + refusals()


def refusals() -> list[Answer]:
    """Refusals of the first request."""
    made = [answer({"error": value}) for value in ODD]
    made += [answer({"result": value}) for value in ODD]
    supported = [LEGACY, "2025-06-18"]
    for code in (-32602, -32022, -32000, -32601, -32001):
        error = {"code": code, "message": "Unsupported protocol version", "data": {"supported": supported}}
        made += [answer({"error": error}), answer({"error": error}, 400)]
    made += [Answer("", status, "") for status in (202, 400, 401, 403, 404, 405, 410, 429, 500, 503)]
    return made + [Answer("<h1>no</h1>", content_type="text/html"), Answer("{")]


def answer(members: dict, status: int = 200) -> Answer:
    return answer_of(json.dumps(members)[1:-1], status)


def answer_of(members: str, status: int = 200) -> Answer:
    return Answer(f'{{"jsonrpc":"2.0","id":ID,{members}}}', status)


@dataclass(frozen=True)
class Corpus:
    """All items, or every `step`-th of each class."""

    step: int = 1

    def lists(self) -> dict[str, tuple[str, list[dict]]]:
        """(member, items) by the list's method."""
        made = {
            "tools/list": ("tools", tools()),
            "resources/list": ("resources", resources("uri")),
            "resources/templates/list": ("resourceTemplates", resources("uriTemplate")),
            "prompts/list": ("prompts", prompts()),
        }
        return {method: (member, items[:: self.step]) for method, (member, items) in made.items()}

    def answers(self) -> dict[str, list[Answer]]:
        """Whole answers by class."""
        made = {
            "results": results() + errors(),
            "contents": contents(),
            "messages": messages(),
            "initialize": initializations(),
            "discover": discoveries(),
        }
        return {name: answers[:: self.step] for name, answers in made.items()}

    def size(self) -> int:
        """Number of items."""
        counts = [len(items) for _, items in self.lists().values()]
        return sum(counts) + sum(len(answers) for answers in self.answers().values())
