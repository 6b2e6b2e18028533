"""Parameters of a tool, parsed from either form in which an agent sees them: a signature line, or an input schema.

`files(path: string, labels?: string[] = [], state?: "open"|"closed")` is the form in the text of `retrieve_tools`; a
schema is JSON. Both are parsed into `Shape`s. A part that cannot be parsed is `any`, and a truncated line is `cut`.
"""

import json
from dataclasses import dataclass, field

DECODER = json.JSONDecoder()
CUT = "…"
WORDS = ("string", "number", "integer", "boolean", "null", "object", "any")
# Maximum depth to which a schema is followed, because it may contain itself.
MAX_DEPTH = 6


@dataclass
class Shape:
    """One of WORDS, or `array` of `item`, `object` of `fields`, `literal` with `choices`, `union` of `either`."""

    kind: str
    item: "Shape | None" = None
    fields: "list[Parameter]" = field(default_factory=list)
    choices: list = field(default_factory=list)
    either: "list[Shape]" = field(default_factory=list)


@dataclass
class Parameter:
    name: str
    shape: Shape
    required: bool


@dataclass
class Offer:
    """A tool as an answer describes it."""

    name: str
    parameters: list[Parameter]
    variant: str
    cut: bool = False


def offers(text: str) -> list[Offer]:
    """The tools in the text of an answer of `retrieve_tools`, in order; the text consists of lines, or is JSON."""
    if text.startswith("{"):
        found = json.loads(text)["tools"]
        return [Offer(each["name"], of_schema(each.get("inputSchema", {})).fields, each["call_with"])
                for each in found]
    return [offer for line in text.splitlines() if (offer := of_line(line))]


def of_line(line: str) -> "Offer | None":
    """`server:name(parameters) -> call_tool_read`; None if a line has another form."""
    head, arrow, variant = line.rpartition(" -> ")
    if not arrow or line.startswith(" ") or not head.endswith(")"):
        return None
    server, colon, rest = head.partition(":")
    if not colon:
        return None
    try:
        reader = Reader(rest)
        name = reader.name()
        reader.take("(")
        parameters = reader.fields(")")
    except (ValueError, IndexError):
        return None
    return Offer(f"{server}:{name}", parameters, variant, CUT in rest)


class Reader:
    """Reads a signature from left to right."""

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def sees(self, start: str) -> bool:
        return self.text.startswith(start, self.at)

    def take(self, expected: str):
        if not self.sees(expected):
            raise ValueError(f"{expected} is missing in {self.text} at {self.at}")
        self.at += len(expected)

    def skip(self, start: str) -> bool:
        seen = self.sees(start)
        self.at += len(start) * seen
        return seen

    def value(self):
        value, self.at = DECODER.raw_decode(self.text, self.at)
        return value

    def name(self) -> str:
        if self.sees('"'):
            return self.value()
        start = self.at
        while self.text[self.at].isalnum() or self.text[self.at] in "_-$./":
            self.at += 1
        return self.text[start:self.at]

    def fields(self, end: str) -> list[Parameter]:
        found = []
        while not self.skip(end):
            if self.skip(CUT):
                continue
            name = self.name()
            required = not self.skip("?")
            self.take(": ")
            found.append(Parameter(name, self.shape(), required))
            if self.skip(" = "):
                self.value()
            self.skip(", ")
        return found

    def shape(self) -> Shape:
        either = [self.primary()]
        while self.skip(" | ") or self.skip("|"):
            either.append(self.primary())
        literals = [each for each in either if each.kind == "literal"]
        if len(literals) == len(either):
            return Shape("literal", choices=[choice for each in literals for choice in each.choices])
        return either[0] if len(either) == 1 else Shape("union", either=either)

    def primary(self) -> Shape:
        shape = self.plain()
        while self.skip("[]"):
            shape = Shape("array", item=shape)
        return shape

    def plain(self) -> Shape:
        if self.skip(CUT):
            return Shape("any")
        if self.skip("("):
            shape = self.shape()
            self.take(")")
            return shape
        if self.skip("{[key: string]: "):
            self.shape()
            self.take("}")
            return Shape("object")
        if self.skip("{"):
            return Shape("object", fields=self.fields("}"))
        for word in WORDS:
            if self.skip(word):
                return Shape(word)
        return Shape("literal", choices=[self.value()])


def of_schema(schema, depth: int = 0) -> Shape:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return Shape("any")
    if "enum" in schema:
        return Shape("literal", choices=schema["enum"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return Shape("union", either=[of_schema(each, depth + 1) for each in schema[word]])
    kind = schema.get("type", "object" if "properties" in schema else "any")
    if isinstance(kind, list):
        return Shape("union", either=[of_schema({**schema, "type": each}, depth + 1) for each in kind])
    if kind == "array":
        return Shape("array", item=of_schema(schema.get("items", {}), depth + 1))
    if kind == "object":
        required = schema.get("required", [])
        fields = [Parameter(name, of_schema(each, depth + 1), name in required)
                  for name, each in schema.get("properties", {}).items()]
        return Shape("object", fields=sorted(fields, key=lambda each: not each.required))
    return Shape(kind)
