"""corpus_server.py STEP: the servers of the corpus, one for each path, on a port of 127.0.0.1 that it prints.

The paths are /FAMILY/KIND/NUMBER. `healthy` and `lists` have items to list, and `answers` has an item for each odd
answer. `initialize` and `discover` answer their first request in an odd form, and behave correctly otherwise.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from corpus_items import COMPLETE, LEGACY, MODERN, TEXT, Answer, Corpus, answer

CORPUS = Corpus(int(sys.argv[1]))
LISTS, ANSWERS = CORPUS.lists(), CORPUS.answers()
CAPABILITIES = {"tools": {}, "resources": {}, "prompts": {}}
CALLED = {"content": [TEXT], "structuredContent": {"b": 1}, "resultType": "complete"}
READ = {"contents": [{"uri": "x:y", "text": "t"}]} | COMPLETE
GOT = {"messages": [{"role": "user", "content": TEXT}], "resultType": "complete"}


def tool(name: str) -> dict:
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


def offered(kind: str) -> dict[str, tuple[str, list[dict]]]:
    """(member, items) by the list's method."""
    if kind == "lists":
        return LISTS
    if kind == "healthy":
        tools, uris, prompts = ["t0", "t1", "t2"], ["x:r0", "x:r1"], ["p0", "p1"]
    elif kind == "answers":
        tools = [f"result{number}" for number in range(len(ANSWERS["results"]))]
        uris = [f"x:content{number}" for number in range(len(ANSWERS["contents"]))]
        prompts = [f"message{number}" for number in range(len(ANSWERS["messages"]))]
    else:
        tools, uris, prompts = ["t0"], [], []
    templates = ["x:{a}", "y:{a}"] if kind == "healthy" else []
    return {
        "tools/list": ("tools", [tool(name) for name in tools]),
        "resources/list": ("resources", [{"uri": uri, "name": uri} for uri in uris]),
        "resources/templates/list": ("resourceTemplates", [{"uriTemplate": uri, "name": uri} for uri in templates]),
        "prompts/list": ("prompts", [{"name": name} for name in prompts]),
    }


def respond(family: str, kind: str, number: int, request: dict) -> Answer:
    method, params = request.get("method", ""), request.get("params") or {}
    if method.startswith("notifications/") or not method:
        return Answer("", 202, "")
    opening = {"legacy": "initialize", "modern": "server/discover"}[family]
    if method in ("initialize", "server/discover") and method != opening:
        return answer({"error": {"code": -32601, "message": "unknown method"}})
    if method == opening and kind in ("initialize", "discover"):
        return ANSWERS[kind][number]
    if method == "initialize":
        info = {"name": kind, "version": "1"}
        return answer({"result": {"protocolVersion": LEGACY, "capabilities": CAPABILITIES, "serverInfo": info}})
    if method == "server/discover":
        return answer({"result": {"supportedVersions": [MODERN], "capabilities": CAPABILITIES} | COMPLETE})
    if method in offered(kind):
        member, items = offered(kind)[method]
        return answer({"result": {member: items} | (COMPLETE if family == "modern" else {})})
    usual = {"tools/call": CALLED, "resources/read": READ, "prompts/get": GOT}.get(method)
    if usual is None:
        return answer({"error": {"code": -32601, "message": "unknown method"}})
    if kind != "answers":
        return answer({"result": usual})
    group = {"tools/call": "results", "resources/read": "contents", "prompts/get": "messages"}[method]
    name = params.get("name") or params.get("uri") or ""
    return ANSWERS[group][int("".join(filter(str.isdigit, name)))]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Sends head and body in one packet.
    wbufsize = 1 << 16

    def do_POST(self):
        _, family, kind, number = self.path.split("/")
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = respond(family, kind, int(number), request)
        body = given.body.replace("ID", json.dumps(request.get("id"))).encode()
        self.send_response(given.status)
        if given.status != 204:
            if given.content_type:
                self.send_header("Content-Type", given.content_type)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if given.status != 204:
            self.wfile.write(body)

    def do_GET(self):
        self.refuse(405 if self.path.count("/") == 3 else 404)

    def do_DELETE(self):
        self.refuse(405)

    def refuse(self, status: int):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
