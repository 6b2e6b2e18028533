"""A client process of tools/interop/matrix, driven over its pipes.

A line to it is an operation: `{"id", "op", …}`. A line from it answers one, `{"id"}` with `result`, `error` (what the server answered)
or `refused` (why the client raised), or is an event, `{"event", "params"}`: a notification under its method, `progress`, `asked` with
a server's question, and first of all `ready` with what the client knows of the server. The clients answer questions by these rules:

    elicitation   accept with `{"name": "Ada"}`, or decline if the message begins with `decline`
    sampling      the text `sampled` of the model `matrix`; a use of the first tool if there are tools
    roots         `file:///matrix`

Operations: `list` (kind, cursor), `call` (name, arguments, progress, meta, cancel_after), `task` (name, arguments), `read` (uri),
`prompt` (name, arguments), `complete` (ref, argument, context), `subscribe` (uri), `listen` (uris, and all lists), `level`, `ping`,
`request` (method, params).
"""

import collections
import json
import subprocess
import threading
from pathlib import Path

START_SECONDS = 30
OPERATION_SECONDS = 10
EVENT_SECONDS = 5
END_SECONDS = 5


class Refused(Exception):
    """An operation without a result: `error` is the server's answer, if any."""

    def __init__(self, operation: str, why: str, error: dict | None = None):
        super().__init__(f"{operation}: {why}"[:300])
        self.error = error


class Peer:
    """The client process, which ends with the block in which it is used."""

    def __init__(self, argv: list[str], log: Path):
        self.condition = threading.Condition()
        self.answers = {}
        self.seen = collections.defaultdict(list)
        self.count = 0
        self.listening = self.ended = False
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = open(log, "wb")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
        self.process = subprocess.Popen(argv, **pipes)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.process.stdin.close()
            self.process.wait(END_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.log.close()

    def read(self):
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            with self.condition:
                if "event" in message:
                    self.seen[message["event"]].append(message.get("params") or {})
                else:
                    self.answers[message["id"]] = message
                self.condition.notify_all()
        with self.condition:
            self.ended = True
            self.condition.notify_all()

    def wait(self, condition, seconds: float) -> bool:
        with self.condition:
            self.condition.wait_for(lambda: condition() or self.ended, seconds)
            return bool(condition())

    def start(self):
        """Waits until the client is connected."""
        self.about = self.events("ready", 1, START_SECONDS)[0]

    def ask(self, operation: str, **params) -> dict:
        self.count += 1
        number = self.count
        try:
            self.process.stdin.write(json.dumps({"id": number, "op": operation, **params}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise Refused(operation, "the client has ended") from None
        if not self.wait(lambda: number in self.answers, OPERATION_SECONDS):
            raise Refused(operation, "the client has ended" if self.ended else "no answer")
        answer = self.answers.pop(number)
        if "result" in answer:
            return answer["result"]
        error = answer.get("error")
        raise Refused(operation, json.dumps(error) if error else answer["refused"], error)

    def error(self, operation: str, **params) -> dict:
        """The error that the server answers, or that the client raises."""
        try:
            self.ask(operation, **params)
        except Refused as refused:
            return refused.error or {"message": str(refused)}
        return {"message": "no error"}

    def events(self, name: str, count: int, seconds: float = EVENT_SECONDS, **members) -> list[dict]:
        """The first events with this name and these members since the last `forget`."""
        found = lambda: [each for each in self.seen[name] if members.items() <= each.items()]
        if not self.wait(lambda: len(found()) >= count, seconds):
            raise Refused(name, f"{len(found())} of {count} seen")
        return found()[:count]

    def forget(self, name: str):
        with self.condition:
            self.seen[name].clear()
