"""Reads recordings of connections: the bytes that answered each call.

Everything here works on the recorded bytes and returns slices of them. Nothing is parsed and serialized again, so the
compared bytes are those that were sent.
"""

import bisect
import json
import re
from dataclasses import dataclass, field

MODERN = "io.modelcontextprotocol/protocolVersion"
SPACE = b" \t\r\n"
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]', re.DOTALL)
EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass
class Call:
    """A `tools/call` and the raw value of its answer's `result` or `error`."""

    tool: str
    arguments: object
    modern: bool
    member: str = ""
    raw: bytes = b""


@dataclass
class Stream:
    """One direction of a connection, with the time of each piece."""

    data: bytearray = field(default_factory=bytearray)
    marks: list = field(default_factory=list)

    def add(self, moment: int, piece: bytes):
        self.marks.append((len(self.data), moment))
        self.data += piece

    def moment(self, offset: int) -> int:
        return self.marks[bisect.bisect(self.marks, (offset, float("inf"))) - 1][1]


def members(message: bytes) -> dict[str, bytes]:
    """The members of a JSON object, each as the bytes of its value, including the first and the last."""
    found, depth, key, start, name = {}, 0, None, None, None
    for token in TOKEN.finditer(message):
        text = token.group()
        if text[:1] == b'"':
            key = text
        elif text in b"{[":
            depth += 1
        elif text == b":" and depth == 1 and start is None:
            name, start = json.loads(key), token.end()
        elif text in b",}]":
            if depth == 1 and start is not None:
                found[name] = message[start : token.start()].strip(SPACE)
                start = None
            depth -= text in b"}]"
    return found


def paired(requests: list[bytes], answers: list[bytes]) -> list[Call]:
    """The tool calls among the requests, in order, each with its answer."""
    calls = {}
    for message in requests:
        parts = members(message)
        if parts.get("method") == b'"tools/call"':
            params = json.loads(parts["params"])
            modern = MODERN in params.get("_meta", {})
            calls[parts["id"]] = Call(params["name"], params.get("arguments"), modern)
    for message in answers:
        parts = members(message)
        call = calls.get(parts.get("id"))
        for member in ("result", "error"):
            if call and member in parts:
                call.member, call.raw = member, parts[member]
    return list(calls.values())


def stdio_calls(sent: bytes, received: bytes) -> list[Call]:
    """The tool calls of a stdio recording."""
    return paired(
        [line for line in sent.splitlines() if line.strip()],
        [line for line in received.split(b"\n") if line.strip()],
    )


def http_calls(connections: list[tuple[Stream, Stream]]) -> list[Call]:
    """The tool calls of recorded HTTP connections, in the order in which they were made."""
    found = []
    for up, down in connections:
        requests = http_messages(bytes(up.data))
        for (offset, _, body), (_, kind, answer) in zip(requests, http_messages(bytes(down.data))):
            answers = events(answer) if b"text/event-stream" in kind else [answer]
            found += [(up.moment(offset), call) for call in paired([body], answers)]
    return [call for _, call in sorted(found, key=lambda item: item[0])]


def http_messages(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Offset, content type and body of each HTTP/1.1 message; the last one may be incomplete."""
    found, at = [], 0
    while (end := data.find(b"\r\n\r\n", at)) >= 0:
        start, head = at, data[at:end].split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head[1:] if b": " in line)
        at = end + 4
        if re.match(rb"HTTP/1.1 1\d\d", head[0]):
            continue
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            body, at = chunked(data, at)
        elif b"content-length" in headers:
            length = int(headers[b"content-length"])
            body, at = data[at : at + length], at + length
        elif head[0].startswith(b"HTTP/") and not re.match(rb"HTTP/1.1 (202|204|304)", head[0]):
            body, at = data[at:], len(data)
        else:
            body = b""
        found.append((start, headers.get(b"content-type", b""), body))
    return found


def chunked(data: bytes, at: int) -> tuple[bytes, int]:
    """A chunked body and its end."""
    body = b""
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].split(b";")[0], 16)
        body += data[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
        if size == 0:
            break
    return body, at


def events(body: bytes) -> list[bytes]:
    """The data of each server-sent event."""
    found = []
    for block in EVENT_END.split(body):
        lines = [line[5:] for line in re.split(rb"\r\n|\n|\r", block) if line.startswith(b"data:")]
        if lines:
            found.append(b"\n".join(line.removeprefix(b" ") for line in lines))
    return found
