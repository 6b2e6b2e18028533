"""Compares the recordings of three taps for one call."""

import json

import peers
import wire

SHOWN = 300
COMPLETE = b'"resultType":"complete"}'


def compare(server, route: str, direct: list, through):
    """For each check of a server: the check, the number of bytes that the client got, and the problem."""
    direct, gave = list(direct), list(through.gave[server.name])
    rows = zip(server.checks, through.got[server.name], through.read[server.name])
    for check, got, read in rows:
        plain = direct.pop(0) if check.direct else None
        # A call that did not arrive must not shift the others.
        sent = gave.pop(0) if gave and gave[0].tool == check.tool else None
        yield check, len(got.raw), list(differences(check, plain, sent, got, read, route))


def differences(check, plain, sent, got, read, route):
    """The problem of one call. `plain`, `sent`, `got`: direct, upstream, downstream."""
    if not got.raw:
        yield "the client got no answer"
        return
    if check.outcome == peers.REFUSED:
        if sent:
            yield "refused, but upstream was asked"
        yield from not_a_refusal(check.text, got, exact=True)
        return
    if sent is None or not sent.raw:
        yield f"no answer upstream, downstream {got.raw[:SHOWN]}"
        return
    if sent.tool != check.tool or sent.arguments != check.arguments:
        yield f"upstream was asked {sent.tool} {sent.arguments}"
    if plain and (plain.member, plain.raw) != (sent.member, sent.raw):
        yield f"directly {first_difference(plain.raw, sent.raw)}"
    if check.outcome == peers.BLOCKED:
        yield from not_a_refusal("output schema validation failed: ", got, exact=False)
        return
    # A line contains no line breaks; a line-framed transport may change nothing else.
    breaks = bytes.maketrans(b"\r\n", b"  ") if route == "stdio" else None
    expected = sent.raw.translate(breaks)
    if sent.member == "result":
        expected = completed(expected) if got.modern else adapted(expected)
    if (sent.member, expected) != (got.member, got.raw):
        yield f"downstream {first_difference(expected, got.raw)}"
    if check.readable and read["as"] != got.member:
        yield f"the client read {read}"
    if "result" in read and understood(json.dumps(read["result"])) != understood(got.raw):
        yield f"the client printed {str(read)[:SHOWN]}"


def adapted(result: bytes) -> bytes:
    """A result as a client of 2025-11-25 must get it: structured content that is not an object is wrapped."""
    value = wire.members(result).get("structuredContent", b"{")
    if not result.startswith(b"{") or value.startswith(b"{"):
        return result
    at = result.index(value, result.index(b'structuredContent"'))
    return result[:at] + b'{"result":' + value + b"}" + result[at + len(value) :]


def completed(result: bytes) -> bytes:
    """A result as a client of 2026-07-28 must get it: with its type, if the server did not state one."""
    members = wire.members(result)
    if not result.startswith(b"{") or "resultType" in members:
        return result
    return result[:-1] + (b"," if members else b"") + COMPLETE


def understood(result) -> dict:
    """A result as a JavaScript client returns it: without the members about the result that the protocol defines."""
    value = json.loads(result, parse_int=float)
    value.pop("resultType", None)
    return value


# Beginning of the text that states the corrected call.
MENDED = ("Call again with call_tool_", "Nearest tools: ")


def not_a_refusal(text: str, got, exact: bool):
    try:
        refusal = json.loads(got.raw)
    except ValueError:
        refusal = {}
    blocks = refusal.get("content", [])
    said = blocks[0].get("text", "") if blocks else ""
    right = said == text if exact else said.startswith(text)
    # A separate block contains the corrected call.
    right &= all(block.get("text", "").startswith(MENDED) for block in blocks[1:])
    if not right or got.member != "result" or refusal.get("isError") is not True:
        yield f"not refused as it should be: {got.raw[:SHOWN]}"
    if peers.CANARY in got.raw:
        yield f"tells what it keeps back: {got.raw[:SHOWN]}"


def first_difference(one: bytes, other: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    shown = slice(max(at - 20, 0), at + 40)
    return f"other bytes from {at} on: {one[shown]} against {other[shown]}"
