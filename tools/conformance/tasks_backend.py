"""A server of 2026-07-28 with the tasks extension, for the `tasks-*` scenarios of the suite.

    tools/conformance/tasks_backend.py PORT

Its tools are those that the scenarios call. Every answer is JSON; there are no streams.
"""

import base64
import json
import sys
import threading
import time
import uuid
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TOOLS = ("greet", "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task")
# For these tools a client without the extension gets an error; for the others it waits for the result.
REQUIRED = ("failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task")
NAMES = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
TTL_MS = 3_600_000
POLL_MS = 100

LOCK = threading.Lock()
TASKS: dict[str, "Task"] = {}


class Refused(Exception):
    def __init__(self, code: int, message: str, data=None, status: int = 200):
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({"data": data} if data else {})
        self.status = status


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def text(words: str, failed: bool = False) -> dict:
    return {"content": [{"type": "text", "text": words}], "isError": failed}


def form(message: str) -> dict:
    schema = {"type": "object", "properties": {"confirm": {"type": "boolean"}}}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


class Task:
    """A task that ends at a given time, or once its questions are answered."""

    def __init__(self, seconds: float, outcome: dict, asks: dict | None = None):
        self.id, self.made = str(uuid.uuid4()), now()
        self.ends, self.outcome, self.asks = time.monotonic() + seconds, outcome, asks or {}
        self.cancelled = False
        TASKS[self.id] = self

    def status(self) -> str:
        if self.cancelled:
            return "cancelled"
        if self.asks:
            return "input_required"
        if time.monotonic() < self.ends:
            return "working"
        return "failed" if "error" in self.outcome else "completed"

    def shown(self) -> dict:
        return {
            "taskId": self.id, "status": self.status(), "createdAt": self.made,
            "lastUpdatedAt": now(), "ttlMs": TTL_MS, "pollIntervalMs": POLL_MS,
        }  # fmt: skip

    def detailed(self) -> dict:
        more = {"input_required": {"inputRequests": self.asks}}
        more |= dict.fromkeys(("completed", "failed"), self.outcome)
        return self.shown() | more.get(self.status(), {})

    def cancel(self):
        if self.status() in ("working", "input_required"):
            self.cancelled = True


def call(params: dict, declared: bool) -> dict:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "greet":
        return text(f"Hello, {arguments.get('name')}!")
    if name not in TOOLS:
        raise Refused(-32602, f"Unknown tool: {name}")
    if name in REQUIRED and not declared:
        required = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise Refused(-32021, "Missing required client capability", required, 400)
    if name == "test_tool_with_task" and "inputResponses" not in params:
        state = base64.b64encode(b"round 1").decode()
        asked = {"user_name": form("What is your name?")}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": state}
    if name == "slow_compute" and not declared:
        time.sleep(min(float(arguments.get("seconds", 0)), 5))
        return text("computed")
    error = {"error": {"code": -32603, "message": "the job broke down"}}
    user = params.get("inputResponses", {}).get("user_name", {}).get("content", {}).get("name")
    task = {
        "slow_compute": lambda: Task(float(arguments.get("seconds", 0)), {"result": text("computed")}),
        "failing_job": lambda: Task(0.5, {"result": text("the job failed", failed=True)}),
        "protocol_error_job": lambda: Task(0.5, error),
        "confirm_delete": lambda: Task(0.2, {"result": text("deleted")}, {"confirm": form("Delete?")}),
        "multi_input": lambda: Task(0.2, {"result": text("both")}, {"a": form("A?"), "b": form("B?")}),
        "test_tool_with_task": lambda: Task(0.2, {"result": text(f"Hello, {user}!")}),
    }[name]()
    return {"resultType": "task"} | task.shown()


def about_task(method: str, params: dict, declared: bool) -> dict:
    if not declared:
        required = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise Refused(-32021, "Missing required client capability", required, 400)
    task = TASKS.get(params.get("taskId"))
    if task is None:
        raise Refused(-32602, "Failed to retrieve task: Task not found")
    if method == "tasks/get":
        return task.detailed()
    if method == "tasks/cancel":
        task.cancel()
    for key in params.get("inputResponses", {}) if method == "tasks/update" else ():
        task.asks.pop(key, None)
    return {}


def answer(method: str, params: dict) -> dict:
    meta = params.get("_meta") or {}
    declared = EXTENSION in ((meta.get(CAPABILITIES) or {}).get("extensions") or {})
    cached = {"ttlMs": 0, "cacheScope": "private"}
    if method == "server/discover":
        capabilities = {"tools": {}, "extensions": {EXTENSION: {}}}
        return {"supportedVersions": [VERSION], "capabilities": capabilities} | cached
    if method == "tools/list":
        tools = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        return {"tools": tools} | cached
    if method == "tools/call":
        return call(params, declared)
    if method in ("tasks/get", "tasks/update", "tasks/cancel"):
        return about_task(method, params, declared)
    raise Refused(-32601, f"Method not found: {method}", status=404)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            return self.send(202, b"")
        method, params, status = message["method"], message.get("params") or {}, 200
        try:
            self.check(method, params)
            with LOCK if method != "tools/call" else threading.Lock():
                outcome = {"result": {"resultType": "complete"} | answer(method, params)}
        except Refused as refused:
            outcome, status = {"error": refused.error}, refused.status
        self.send(status, json.dumps({"jsonrpc": "2.0", "id": message["id"]} | outcome).encode())

    def do_GET(self):
        self.send(405, b"")

    def check(self, method: str, params: dict):
        """Checks that the headers repeat the body."""
        pairs = [("mcp-method", method)]
        if method in NAMES:
            pairs.append(("mcp-name", params.get(NAMES[method])))
        for header, value in pairs:
            if self.headers[header] != value:
                raise Refused(-32020, f"header {header} and the body differ", status=400)

    def send(self, status: int, body: bytes):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
