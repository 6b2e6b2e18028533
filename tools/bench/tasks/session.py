"""An MCP client with one session over streamable HTTP."""

import json
import urllib.request

PROTOCOL = "2025-11-25"
ANSWER_SECONDS = 60


class RpcError(Exception):
    """A JSON-RPC error, with its message."""


class Client:
    def __init__(self, port: int, path: str):
        self.url, self.session = f"http://127.0.0.1:{port}{path}", None
        hello = self.ask("initialize", {"protocolVersion": PROTOCOL, "capabilities": {},
                                        "clientInfo": {"name": "tasks", "version": "1"}})
        self.instructions = hello.get("instructions", "")

    def ask(self, method: str, params: dict) -> dict:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.session:
            headers |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": PROTOCOL}
        request = urllib.request.Request(self.url, body, headers)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            self.session = self.session or response.headers["Mcp-Session-Id"]
            message = json.load(response)
        if "error" in message:
            raise RpcError(message["error"]["message"])
        return message["result"]
