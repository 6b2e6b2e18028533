"""The agent: fixed rules in place of a model. Its only source of information are the answers of the proxy's tools.

It searches with the words of its task. It takes the first tool whose signature can be filled with the facts of the task
and whose `call_with` matches the task (read or change), and calls it as the answer says. If a call is refused, it
corrects the call using only the text of the refusal. If that text does not help, it takes the next tool that fits. The
number of steps is limited. Its prior knowledge is about language, not about tools: LEXICON lists the words by which the
name of a parameter may denote a thing.

It does not read descriptions, knows no tool's name, and never sees what the check of a task examines.
"""

import difflib
import json
import re
from dataclasses import dataclass, field

from session import Client, RpcError
from signature import Offer, Parameter, Shape, of_schema, offers

# Maximum number of calls for one task, and of searches among them.
MAX_CALLS = 6
# Share of the words in a parameter's name that the label of a fact must match.
LEAST_ALIKE = 0.6
# Required similarity of a name to an intended one.
LEAST_NEAR = 0.6
TYPES = ("array", "boolean", "integer", "number", "string")
OPERATIONS = {"call_tool_read": "read", "call_tool_write": "write", "call_tool_destructive": "destructive"}

# Words in the name of a parameter that carry no meaning next to others.
NEUTRAL = {"name", "id", "value", "max", "by", "of", "in", "input"}
# User's words for things, and for each the words that occur in the names of matching parameters.
LEXICON = {
    "file": "file path filename document", "document": "file path document",
    "folder": "folder directory dir path", "repository": "repository repo path", "page": "url uri page link",
    "text": "text content body message string", "sentence": "message text content", "old": "old from before",
    "new": "new to after", "from": "from source start origin", "to": "to destination target end",
    "against": "target against base", "zone": "timezone zone tz", "place": "timezone place location city",
    "city": "city location place", "time": "time hour", "word": "query search word text topic",
    "pattern": "pattern glob match", "branch": "branch", "commit": "commit revision sha hash ref",
    "message": "message text comment", "count": "count limit number", "kind": "kind type",
    "person": "entity name person node", "observation": "observation content fact note",
    "relation": "relation type link", "last": "tail last", "order": "sort order", "unprocessed": "raw",
    "output": "output format type", "data": "data content",
}


@dataclass
class Fact:
    """A fact stated by the user: the label used for it, and the value."""

    label: str
    value: object


@dataclass
class Task:
    """`says` is the request in the user's words. `slip` is the mistake of the first call, if any."""

    name: str
    says: str
    facts: list[Fact]
    # Returns, given the text of the last answer, whether the world has the requested state. Hidden from the agent.
    check: object
    # Whether the task only reads, so that nothing may be changed.
    reads: bool = False
    slip: str = ""


@dataclass
class Step:
    """One step: the text that was written, the text that was read, and the purpose."""

    purpose: str
    written: str
    read: str


@dataclass
class Told:
    """Outcome of a task. `answer` is that of the last call that was not refused."""

    steps: list[Step] = field(default_factory=list)
    answer: "str | None" = None
    why: str = ""


@dataclass
class Call:
    """One call of a tool through one of the call tools."""

    variant: str
    arguments: dict

    def written(self) -> str:
        return compact({"name": self.variant, "arguments": self.arguments})


def compact(value) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Agent:
    def __init__(self, client: Client):
        self.client = client

    def do(self, task: Task) -> Told:
        told = Told()
        seen = self.search(told, task.says)
        fitting = fits(seen, task)
        if not fitting and task.facts:
            # Another attempt with the tools found so far.
            seen = self.search(told, " ".join([task.says, *(fact.label for fact in task.facts)]))
            fitting = fits(seen, task)
        if not fitting:
            told.why = "no tool in the answer fits"
        slip = task.slip
        for offer, args in fitting:
            call = slipped(slip, Call(offer.variant, {
                "name": offer.name, "args": args, "intent": {"operation_type": OPERATIONS[offer.variant]}}), offer)
            if self.carry_through(told, task, seen, call) or len(told.steps) >= MAX_CALLS:
                break
            slip = ""
        return told

    def carry_through(self, told: Told, task: Task, seen: list[Offer], call: Call) -> bool:
        """Makes a call, and corrects it as long as the refusals say how. Returns whether it was answered in the end."""
        made = []
        while len(told.steps) < MAX_CALLS:
            text, refused = self.ask(told, "mended call" if made else "call", call)
            made.append(call.written())
            if not refused:
                told.answer, told.why = text, ""
                return True
            told.why = f"cannot mend: {text[:300]}"
            call = Mending(self, told, task.facts, seen, call, text).mended()
            if not call or call.written() in made:
                return False
        told.why = "too many calls"
        return False

    def search(self, told: Told, words: str) -> list[Offer]:
        text, refused = self.ask(told, "search", Call("retrieve_tools", {"query": words}))
        return [] if refused else offers(text)

    def ask(self, told: Told, purpose: str, call: Call) -> tuple[str, bool]:
        try:
            result = self.client.ask("tools/call", {"name": call.variant, "arguments": call.arguments})
        except RpcError as error:
            text, refused = str(error), True
        else:
            text = "\n".join(block["text"] if block["type"] == "text" else compact(block)
                             for block in result["content"])
            refused = result.get("isError", False)
        told.steps.append(Step(purpose, call.written(), text))
        return text, refused


# Choice of a tool, and of the arguments for its parameters.


def fits(seen: list[Offer], task: Task) -> list[tuple[Offer, dict]]:
    """The tools for which the facts suffice. Tools that use more facts come first; among equal ones, the first
    found."""
    wanted = [each for each in seen if (each.variant == "call_tool_read") == task.reads]
    filled = [(offer, *fill(offer.parameters, task.facts)) for offer in wanted]
    enough = [each for each in filled if each[1] is not None and (not task.facts or len(each[2]) < len(task.facts))]
    return [(offer, args) for offer, args, left in sorted(enough, key=lambda each: len(each[2]))]


def fill(parameters: list[Parameter], facts: list[Fact]) -> tuple["dict | None", list[Fact]]:
    """The arguments, and the facts that match no parameter; None if a required argument is missing."""
    args, left = {}, list(facts)
    pairs = [(alike(fact.label, each.name), -at, each, fact) for at, each in enumerate(parameters) for fact in facts]
    for likeness, _, parameter, fact in sorted(pairs, key=lambda pair: pair[:2], reverse=True):
        taken = parameter.name in args or not any(fact is each for each in left)
        value = None if taken or likeness < LEAST_ALIKE else as_shape(fact.value, parameter.shape)
        if value is not None:
            args[parameter.name] = value
            left = [each for each in left if each is not fact]
    for parameter in parameters:
        inner = parameter.shape.item if parameter.shape.kind == "array" else parameter.shape
        if parameter.required and parameter.name not in args and inner and inner.kind == "object" and inner.fields:
            value, rest = fill(inner.fields, left)
            if value:
                args[parameter.name] = [value] if parameter.shape.kind == "array" else value
                left = rest
    missing = [each for each in parameters if each.required and each.name not in args]
    if missing and len(missing) == len(left) and all(isinstance(each.value, (int, float)) for each in left):
        # Numbers are assigned in their order.
        for parameter, fact in zip(missing, left):
            args[parameter.name] = as_shape(fact.value, parameter.shape)
        missing, left = [each for each in missing if args[each.name] is None], []
    return (None, left) if missing else (args, left)


def parts(name: str) -> list[str]:
    """The words of a name, in lower case and singular."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    found = [each.lower() for each in re.split(r"[^A-Za-z]+", apart) if each]
    singular = lambda word: re.sub(r"ies$", "y", word) if word.endswith("ies") else re.sub(r"(?<=\w\w)s$", "", word)
    return [singular(word) for word in found]


def alike(label: str, name: str) -> float:
    """The share of the words of a parameter's name that the words of a label match; slightly more if the label has no
    other words.
    """
    words = parts(name)
    words = [word for word in words if word not in NEUTRAL] or words
    labels = [[label, *LEXICON.get(label, "").split()] for label in parts(label)]
    meant = sum(any(word in of_label for of_label in labels) for word in words)
    used = sum(any(word in of_label for word in words) for of_label in labels)
    return (meant / len(words) + 0.1 * used / len(labels)) if words and labels else 0.0


def as_shape(value, shape: Shape):
    """The value in the form that the shape requires, or None."""
    match shape.kind:
        case "any":
            return value
        case "string":
            return value if isinstance(value, str) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "integer" | "number":
            kinds = (int,) if shape.kind == "integer" else (int, float)
            return value if isinstance(value, kinds) and not isinstance(value, bool) else None
        case "literal":
            return value if value in shape.choices else None
        case "array":
            values = value if isinstance(value, list) else [value]
            values = [as_shape(each, shape.item) for each in values]
            return None if None in values else values
        case "union":
            return next((found for each in shape.either if (found := as_shape(value, each)) is not None), None)
    return None


# Mistakes that models make, for the first call.


def slipped(slip: str, call: Call, offer: Offer) -> Call:
    arguments, args = dict(call.arguments), dict(call.arguments["args"])
    # The last required parameter: the first one is often a path that all tools of a server have.
    required = [each.name for each in offer.parameters if each.required][-1:]
    match slip:
        case "wrong variant":
            other = "call_tool_read" if call.variant != "call_tool_read" else "call_tool_write"
            return Call(other, {**arguments, "intent": {"operation_type": OPERATIONS[other]}})
        case "no intent":
            del arguments["intent"]
        case "other intent":
            arguments["intent"] = {"operation_type": "write" if call.variant == "call_tool_read" else "read"}
        case "misspelled tool":
            arguments["name"] = misspelled(arguments["name"])
        case "no server":
            arguments["name"] = arguments["name"].partition(":")[2]
        case "args misnamed":
            arguments["arguments"] = arguments.pop("args")
        case "misspelled parameter":
            arguments["args"] = {misspelled(name) if name in required else name: args[name] for name in args}
        case "misspelled optional":
            optional = [each.name for each in offer.parameters if not each.required]
            arguments["args"] = {misspelled(name) if name in optional else name: args[name] for name in args}
        case "missing parameter":
            arguments["args"] = {name: args[name] for name in args if name not in required}
        case "wrong type":
            arguments["args"] = {name: wrong_type(value) for name, value in args.items()}
        case "":
            pass
        case _:
            raise ValueError(slip)
    return Call(call.variant, arguments)


def misspelled(name: str) -> str:
    """Exchanges two letters near the end, or doubles the last letter if the two are equal."""
    end = name[-3:]
    swapped = end[1] + end[0] + end[2]
    return name[:-3] + (swapped if swapped != end else end + end[-1])


def wrong_type(value):
    """Quotes numbers and booleans, and removes the brackets of a list with one item; other values are unchanged."""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


# Correction of a call using the text of its refusal.


@dataclass
class Fault:
    """A place in the arguments and its problem: missing, unknown, type, or any of these."""

    path: list
    wrong: str
    expected: str = ""


class Mending:
    def __init__(self, agent: Agent, told: Told, facts: list[Fact], seen: list[Offer], call: Call, text: str):
        self.agent, self.told, self.facts, self.seen, self.call, self.text = agent, told, facts, seen, call, text

    def mended(self) -> "Call | None":
        for rule in (self.spelled_out, self.variant, self.nearest, self.own_parameter, self.named, self.intent,
                     self.arguments, self.searched):
            call = rule()
            if call:
                return call
        return None

    def but(self, **changed) -> Call:
        return Call(self.call.variant, {**self.call.arguments, **changed})

    def spelled_out(self) -> "Call | None":
        """`Call again with call_tool_write: {…}`"""
        found = re.search(r"[Cc]all again with (call_tool_\w+): (?=\{)", self.text)
        if not found:
            return None
        try:
            arguments, _ = json.JSONDecoder().raw_decode(self.text, found.end())
        except ValueError:
            # The refusal omits the arguments if they are long.
            arguments = self.call.arguments
        return Call(found[1], {**arguments, "intent": {"operation_type": OPERATIONS[found[1]]}})

    def variant(self) -> "Call | None":
        found = re.search(r"use (call_tool_\w+)", self.text)
        if not found or found[1] not in OPERATIONS:
            return None
        return Call(found[1], self.but(intent={"operation_type": OPERATIONS[found[1]]}).arguments)

    def nearest(self) -> "Call | None":
        found = re.search(r"Nearest tools: '([^']+)'", self.text)
        return found and self.but(name=found[1])

    def own_parameter(self) -> "Call | None":
        """`Unknown parameter 'x': known are a, b`"""
        found = re.search(r"Unknown parameter '([^']+)': known are (.+)", self.text)
        if not found or found[1] not in self.call.arguments:
            return None
        known = re.findall(r"\w+", found[2])
        meant = near(found[1], [each for each in known if each not in self.call.arguments])
        arguments = dict(self.call.arguments)
        value = arguments.pop(found[1])
        return meant and Call(self.call.variant, {**arguments, meant: value})

    def named(self) -> "Call | None":
        """A name without its server belongs to a tool that was found before."""
        if "must be server:tool" not in self.text:
            return None
        wanted = self.call.arguments["name"]
        full = [offer.name for offer in self.seen if offer.name.partition(":")[2] == wanted]
        return self.but(name=full[0]) if full else None

    def intent(self) -> "Call | None":
        """The refusal is about the intent: adds the one that the description of the call tool requires."""
        right = {"operation_type": OPERATIONS[self.call.variant]}
        speaks = re.search(r"\b[Ii]ntent\b", self.text) and self.call.arguments.get("intent") != right
        return self.but(intent=right) if speaks else None

    def searched(self) -> "Call | None":
        """The refusal suggests a search: searches for the words of the unknown name."""
        if "retrieve_tools" not in self.text or "not found" not in self.text:
            return None
        wanted = self.call.arguments["name"]
        words = " ".join(parts(wanted.partition(":")[2]))
        found = {offer.name: offer for offer in self.agent.search(self.told, words)}
        name = near(wanted, list(found))
        return Call(found[name].variant, self.but(
            name=name, intent={"operation_type": OPERATIONS[found[name].variant]}).arguments) if name else None

    def arguments(self) -> "Call | None":
        faults = read_faults(self.text)
        args = json.loads(json.dumps(self.call.arguments.get("args", {})))
        changed = [self.set_right(args, fault, faults) for fault in faults]
        return self.but(args=args) if any(changed) else None

    def set_right(self, args: dict, fault: Fault, faults: list[Fault]) -> bool:
        path = fault.path or self.place_of(args, fault)
        *way, last = path or [None]
        inside = args
        for key in way:
            try:
                inside = inside[key]
            except (KeyError, IndexError, TypeError):
                return False
        if last is None or not isinstance(inside, (dict, list)):
            return False
        if fault.wrong == "unknown":
            if last not in inside or not fault.expected:
                return False
            inside[fault.expected] = inside.pop(last)
            return True
        there = last in inside if isinstance(inside, dict) else isinstance(last, int) and last < len(inside)
        if not there:
            return self.supply(inside, last, fault)
        value = retyped(inside[last], fault.expected)
        if value is None:
            return False
        inside[last] = value
        return True

    def supply(self, inside: dict, name: str, fault: Fault) -> bool:
        """A missing argument: either given under a similar name, or one of the facts."""
        if isinstance(inside, list):
            return False
        if name in inside:
            return False
        unasked = near(name, [key for key in inside if key != name])
        if unasked and not any(alike(fact.label, unasked) >= LEAST_ALIKE for fact in self.facts):
            inside[name] = inside.pop(unasked)
            return True
        shape = of_schema({"type": fault.expected}) if fault.expected in TYPES else Shape("any")
        args, _ = fill([Parameter(name, shape, True)], self.facts)
        if args:
            inside[name] = args[name]
        elif unasked:
            inside[name] = inside.pop(unasked)
        return name in inside

    @staticmethod
    def place_of(args: dict, fault: Fault) -> list:
        """If the refusal quotes a value without its place, finds the place of that value."""
        return next(([name] for name, value in args.items() if repr(value) == fault.wrong), [])


def near(word: str, known: list[str]) -> "str | None":
    found = difflib.get_close_matches(word, known, 1, LEAST_NEAR)
    # A part of a word is treated like the word.
    return found[0] if found else next((each for each in known if word.startswith(each)), None)


def retyped(value, expected: str):
    """The value in the expected type, if only its form differs."""
    kinds = re.findall(r"array|list|integer|int|number|float|boolean|bool|string|str", expected)
    for kind in kinds:
        if kind in ("array", "list") and not isinstance(value, list):
            return [value]
        if isinstance(value, str) and kind in ("integer", "int", "number", "float", "boolean", "bool"):
            try:
                return json.loads(value)
            except ValueError:
                continue
        if kind in ("string", "str") and not isinstance(value, str):
            return json.dumps(value)
    return None


def read_faults(text: str) -> list[Fault]:
    """Problems of arguments in the messages of mcpproxy, zod, pydantic and Python's jsonschema, because a model
    understands all of them.
    """
    faults = []
    for pointer, wrong in re.findall(r"(/[^\s:]*): (missing|unknown \(did you mean '[^']+'|expected [^;(]+)", text):
        path = [int(part) if part.isdigit() else part for part in pointer[1:].split("/")]
        if wrong.startswith("unknown"):
            faults.append(Fault(path, "unknown", wrong.split("'")[1]))
        else:
            faults.append(Fault(path, "missing" if wrong == "missing" else "type", wrong.removeprefix("expected ")
                                if wrong != "missing" else ""))
    if faults:
        # Misspelled names first, because one of them may be the missing argument.
        renamed = {fault.expected for fault in faults if fault.wrong == "unknown"}
        kept = [fault for fault in faults if not (fault.wrong == "missing" and fault.path[-1] in renamed)]
        return sorted(kept, key=lambda fault: fault.wrong != "unknown")
    for kind, got, place in re.findall(r"expected (\w+), received (\w+) at ([\w.\[\]]+)", text):
        path = [int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", place) if part]
        faults.append(Fault(path, "missing" if got == "undefined" else "type", kind))
    for name, message, kind in re.findall(r"(?m)^(\w+)\n  (.+?) \[type=(\w+)", text):
        faults.append(Fault([name], "missing" if kind == "missing" else "type", message))
    faults += [Fault([name], "missing") for name in re.findall(r"'(\w+)' is a required property", text)]
    faults += [Fault([], value, kind) for value, kind in re.findall(r"('[^']*'|\S+) is not of type '(\w+)'", text)]
    return faults
