"""Proxy between one node and the store, which applies `fault` to the node's requests.

One request per connection, with its body in memory (a segment has some megabytes at most).
"""

import asyncio
import re

PATIENCE_SECONDS = 60
SLOW_SECONDS = 2
MAX_BODY = 64 << 20

# Effect of each fault, for the report.
FAULTS = {
    "slow": f"each request takes {SLOW_SECONDS} s longer",
    "503": "each request is answered with 503 SlowDown",
    "full": "each put is answered with 507, as a full MinIO does",
    "quota": "each put is answered with 403 QuotaExceeded, as a full Ceph does",
    "lost": "each put is done, and the connection cut before its answer",
    "hung": "nothing is ever answered",
    "forgets": "puts of segments are answered with 200, and forgotten",
    "lies": "puts of segments are answered with 200 and forgotten, and a request for one's length is answered as if it were stored",
}


class Between:
    def __init__(self, address, behind):
        self.address, self.behind = address, behind
        self.fault, self.met, self.forgotten, self.server = None, 0, {}, None

    async def start(self):
        self.server = await asyncio.start_server(self.serve, self.address, 3900, limit=1 << 20)

    async def serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
            length = int(length.group(1)) if length else 0
            if length > MAX_BODY or re.search(rb"\r\ntransfer-encoding:", head, re.I):
                return
            body = await reader.readexactly(length)
            answer = await self.answer(head, body)
            if answer:
                writer.write(answer)
                await writer.drain()
        except (OSError, EOFError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def answer(self, head, body):
        method, target = head.split(b" ", 2)[:2]
        path = target.decode().split("?")[0]
        fault, is_put = self.fault, method == b"PUT"
        segment = "/segments/" in path
        met = fault in ("slow", "503", "hung") or is_put and (segment or fault not in ("forgets", "lies"))
        self.met += bool(fault and met)
        if fault == "hung":
            await asyncio.sleep(PATIENCE_SECONDS)
            return b""
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        elif fault == "503":
            return said("503 Service Unavailable", b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>")
        elif fault == "full" and is_put:
            return said("507 Insufficient Storage", b"<Error><Code>XMinioStorageFull</Code><Message>full</Message></Error>")
        elif fault == "quota" and is_put:
            return said("403 Forbidden", b"<Error><Code>QuotaExceeded</Code><Message>quota</Message></Error>")
        elif fault in ("forgets", "lies") and is_put and segment:
            if fault == "lies":
                self.forgotten[path] = len(body)
            return said("200 OK", b"", 'ETag: "0"\r\n')
        if method == b"HEAD" and path in self.forgotten:
            return said("200 OK", b"", f'ETag: "0"\r\nLast-Modified: Mon, 23 Nov 2026 00:00:00 GMT\r\n', self.forgotten[path])
        answer = await asyncio.wait_for(self.passed(head, body), PATIENCE_SECONDS)
        return b"" if fault == "lost" and is_put else answer

    async def passed(self, head, body):
        lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
        reader, writer = await asyncio.open_connection(*self.behind)
        try:
            writer.write(b"\r\n".join(lines) + b"\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
            return await reader.read(-1)
        finally:
            writer.close()


def said(status, body, more="", length=None):
    length = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
