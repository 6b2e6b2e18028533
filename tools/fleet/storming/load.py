"""Clients of both protocol families that call continuously, each call with a unique mark, and the outcomes of these
calls.
"""

import asyncio
import collections
import itertools
import json
import random
import time

ANSWER_SECONDS = 60
MODERN = "2026-07-28"
LEGACY = "2025-06-18"
# One in this number of legacy clients has an open GET stream.
STREAM_OF = 3


class Lost(Exception):
    """The session is no longer known."""


class Http:
    """A connection that is kept open, and opened again when it breaks."""

    def __init__(self, host, port, key):
        self.where, self.key, self.streams = (host, port), key, None

    async def send(self, method, headers, body=b""):
        if self.streams is None:
            self.streams = await asyncio.open_connection(*self.where, limit=1 << 20)
        reader, writer = self.streams
        lines = [f"{method} /mcp HTTP/1.1", f"Host: {self.where[0]}:{self.where[1]}", f"X-API-Key: {self.key}",
                 "Content-Type: application/json", "Accept: application/json, text/event-stream",
                 f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        return int(head[0].split()[1]), found

    async def chunk(self):
        """The next piece of a chunked body; empty at its end."""
        reader = self.streams[0]
        length = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        return (await reader.readexactly(length + 2))[:-2]

    async def body(self, headers):
        if "chunked" in headers.get("transfer-encoding", ""):
            chunks = []
            while chunk := await self.chunk():
                chunks.append(chunk)
            body = b"".join(chunks)
        else:
            body = await self.streams[0].readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return body

    async def ask(self, headers, message):
        """Status, headers and the message with the answer."""
        status, headers = await self.send("POST", headers, json.dumps(message).encode())
        body = await self.body(headers)
        if headers.get("content-type", "").startswith("text/event-stream"):
            data = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:") and line[5:].strip()]
            body = data[-1] if data else b""
        try:
            return status, headers, json.loads(body) if body else None
        except ValueError:
            return status, headers, None

    def close(self):
        if self.streams:
            self.streams[1].close()
        self.streams = None


BROKEN = (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError, asyncio.TimeoutError)


class Call:
    """Outcome of a call: `ended` is the time at which its answer was complete, by the monotonic clock; `node` is the
    node that answered.
    """

    __slots__ = ("mark", "began", "ended", "node", "acknowledged", "why")

    def __init__(self, mark):
        self.mark, self.began, self.ended = mark, time.monotonic(), None
        self.node, self.acknowledged, self.why = None, False, None


class Load:
    def __init__(self, host, port, key, clients, pause, seed):
        self.where, self.pause, self.random = (host, port, key), pause, random.Random(seed)
        self.calls, self.lost, self.breaks, self.opened, self.errors = [], [], [], 0, collections.Counter()
        self.goes, self.under_way, self.numbers = asyncio.Event(), 0, itertools.count()
        self.marks = f"{seed}-{time.time_ns():x}"
        self.tasks = [asyncio.ensure_future(self.client(at)) for at in range(clients)]

    async def rest(self):
        """Stops the clients, and waits until all calls have been answered or given up."""
        self.goes.clear()
        end = time.monotonic() + ANSWER_SECONDS + 5
        while self.under_way and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def go(self):
        self.goes.set()

    async def end(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def client(self, at):
        is_legacy = at % 2 == 0
        http, session, stream = Http(*self.where), None, None
        try:
            while True:
                await self.goes.wait()
                if is_legacy and session is None:
                    session = await self.begin(http, at)
                    if session and at // 2 % STREAM_OF == 0:
                        stream = stream or asyncio.ensure_future(self.stream(session))
                    continue
                call = Call(f"{self.marks}-{at}-{next(self.numbers)}")
                self.calls.append(call)
                self.under_way += 1
                try:
                    await asyncio.wait_for(self.one(http, call, session), ANSWER_SECONDS)
                except Lost:
                    self.lost.append((time.monotonic(), session["id"][:12], session["node"], call.node))
                    session, call.why = None, "session lost"
                except BROKEN as error:
                    http.close()
                    call.why = type(error).__name__
                finally:
                    self.under_way -= 1
                if call.why:
                    self.errors[call.why] += 1
                await asyncio.sleep(self.pause * self.random.uniform(0.5, 1.5))
        finally:
            http.close()
            if stream:
                stream.cancel()
                await asyncio.gather(stream, return_exceptions=True)

    async def begin(self, http, at):
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": f"storm-{at}", "version": "1"}}}
        try:
            status, headers, _ = await asyncio.wait_for(http.ask({}, hello), ANSWER_SECONDS)
            if status == 200 and "mcp-session-id" in headers:
                self.opened += 1
                return {"id": headers["mcp-session-id"], "node": served(headers)}
            self.errors[f"initialize: {status}"] += 1
        except BROKEN as error:
            http.close()
            self.errors[f"initialize: {type(error).__name__}"] += 1
        await asyncio.sleep(0.2)

    async def one(self, http, call, session):
        params = {"name": "call_tool_write", "arguments": {
            "name": "stub:write_item", "args": {"note": call.mark}, "intent": {"operation_type": "write"}}}
        if session:
            headers = {"Mcp-Session-Id": session["id"], "MCP-Protocol-Version": LEGACY}
        else:
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "call_tool_write"}
            params["_meta"] = {"io.modelcontextprotocol/protocolVersion": MODERN,
                               "io.modelcontextprotocol/clientInfo": {"name": "storm", "version": "1"},
                               "io.modelcontextprotocol/clientCapabilities": {}}
        message = {"jsonrpc": "2.0", "id": call.mark, "method": "tools/call", "params": params}
        status, headers, answer = await http.ask(headers, message)
        call.ended, call.node = time.monotonic(), served(headers)
        result = answer.get("result") if isinstance(answer, dict) else None
        if session and status == 404:
            raise Lost
        if status == 200 and result is not None and not result.get("isError") and answer.get("id") == call.mark:
            call.acknowledged = True
        elif isinstance(answer, dict):
            text = answer.get("error", {}).get("message") if "error" in answer and isinstance(answer["error"], dict) else None
            text = text or str((result or {}).get("content", answer))
            call.why = f"{status}: {text[:90]}"
        else:
            call.why = str(status)

    async def stream(self, session):
        """A GET stream that is opened again whenever it ends."""
        while True:
            http, node = Http(*self.where), None
            try:
                status, headers = await asyncio.wait_for(
                    http.send("GET", {"Mcp-Session-Id": session["id"], "MCP-Protocol-Version": LEGACY}), ANSWER_SECONDS)
                node = served(headers)
                if status == 404:
                    self.lost.append((time.monotonic(), session["id"][:12], session["node"], node))
                    return
                if status == 200:
                    while await http.chunk():
                        pass
                else:
                    self.errors[f"GET: {status}"] += 1
            except BROKEN:
                pass
            finally:
                http.close()
            if node:
                self.breaks.append((time.monotonic(), session["node"], node))
            await asyncio.sleep(0.5)


def served(headers):
    """The node's address as stated by the balancer: the last one that it tried."""
    return headers.get("x-served-by", "").split(",")[-1].strip().split(":")[0]


def quantile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0
