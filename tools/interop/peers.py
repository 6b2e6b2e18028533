"""The participants: the servers with the calls to them, and the clients.

Every call is chosen so that its answer is always the same at the same place of the same sequence. A call for which this
is impossible, or whose answer a client would not survive, is not `steady`. Such a call is not made directly, and only
the two sides of the proxy are compared.
"""

import datetime
import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

SAME = "same bytes"
BLOCKED = "blocked"
MODERN = "2026-07-28"
REFUSED = "refused"

# The limit for the servers whose answers exceed it. It is small, so that these answers can be small: the npm client
# accepts no line above 10 MiB.
MAX_BYTES = 65536
MARKED = "Tool '{}' is marked destructive by server, use call_tool_destructive"
CANARY = b"CANARY"
GIT_SECONDS = 10
# Fixed author and date, so that commits have the same hash in every run; no settings of the machine.
GIT_ENV = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A"), ("EMAIL", "a@example.invalid"), ("DATE", "1700000000 +0000"))
} | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Check:
    """One call: the request, its variant, and the expected outcome."""

    variant: str
    tool: str
    arguments: dict = field(default_factory=dict)
    outcome: str = SAME
    steady: bool = True
    # Whether the clients should accept the answer.
    readable: bool = True
    # Policy decisions that the call causes, and the text of its refusal.
    decisions: int = 0
    text: str = ""
    note: str = ""

    @property
    def direct(self) -> bool:
        """Whether the call is made directly. A call that the proxy refuses must have no effect there either."""
        return self.steady and self.outcome != REFUSED

    @property
    def promise(self) -> str:
        """The outcome, and for a forwarded answer the kind of comparison."""
        if self.outcome == SAME:
            return "as direct" if self.direct else "as upstream"
        return self.outcome

    def __str__(self):
        return f"{self.variant} {self.tool}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Server:
    """A server: its command (with `{port}` if it listens), and the calls to it."""

    name: str
    argv: list
    checks: list
    http: bool = False
    env: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    # Whether the server has resources and prompts.
    offers: bool = False


@dataclass(frozen=True)
class Client:
    """A client program: it gets a plan, and connects in a mode: legacy, modern, or automatic.

    The first client in the list can speak either protocol family.
    """

    name: str
    argv: list
    mode: str = "legacy"
    routes: tuple = ("http", "stdio")
    # Whether this client also calls the servers directly. The bytes are the server's for any client, so the others are
    # compared with those of the first client.
    direct: bool = False
    # Number of a server's checks that it makes, from the first on; 0 for all. For a client that starts a process for
    # each call a few are enough.
    most: int = 0
    # Whether this client is used in the short form: there is one for each SDK and protocol family.
    short: bool = False

    def makes_of(self, servers: list[Server]) -> list[Server]:
        if not self.most:
            return servers
        return [replace(each, checks=each.checks[: self.most]) for each in servers]


class Place:
    """The folders of a run. Answers contain the paths of `files`, so that folder is the same in every run."""

    def __init__(self, work: Path):
        self.work = work
        self.files = work / "files"
        self.memory = work / "memory.jsonl"
        self.npm = work / "npm"
        self.python = work / "venv/bin/python"

    def reset(self):
        shutil.rmtree(self.files, ignore_errors=True)
        self.memory.unlink(missing_ok=True)
        self.files.mkdir(parents=True)
        (self.files / "hello.txt").write_text('Grüße,\t"world" \\ 📖\nline two\n')
        (self.files / "large.txt").write_text("0123456789abcde\n" * (3 << 16))
        for path in self.files.iterdir():
            os.utime(path, (1_700_000_000, 1_700_000_000))
        self.make_repository(self.files / "git")

    def make_repository(self, folder: Path):
        """A repository whose objects are the same each time."""
        env = os.environ | GIT_ENV
        for step in (
            ["init", "--quiet", "--initial-branch", "main", str(folder)],
            ["-C", str(folder), "commit", "--quiet", "--allow-empty", "--message", "first: é"],
        ):
            subprocess.run(["git", *step], check=True, env=env, timeout=GIT_SECONDS)
        (folder / "notes.txt").write_text("one\n\ttwo ⟨3⟩\n")


def clients(place: Place, here: Path) -> list[Client]:
    pypi = [str(place.python), str(here / "client.py")]
    fastmcp = [str(place.python), str(here / "client_fastmcp.py")]
    both = ["node", str(place.npm / "client_both.mjs")]
    packages = place.npm / "node_modules"
    # It requires a newer version of Node than may be installed.
    inspector = [str(place.python), str(here / "client_inspector.py")]
    inspector.append(str(packages / "node/bin/node"))
    inspector.append(str(packages / "@modelcontextprotocol/inspector/clients/cli/build/index.js"))
    return [
        Client("PyPI mcp 2.3", pypi, direct=True, short=True),
        Client("npm sdk 1.32", ["node", str(place.npm / "client.mjs")], direct=True, short=True),
        Client("mcp modern", pypi, mode=MODERN),
        Client("mcp auto", pypi, mode="auto"),
        Client("client legacy", both),
        Client("client modern", both, mode=MODERN, short=True),
        Client("client auto", both, mode="auto"),
        Client("fastmcp 4.2", fastmcp, mode="auto"),
        # Over stdio it would start a proxy with all servers for each call.
        Client("inspector", inspector, routes=("http",), most=3, short=True),
    ]


def servers(place: Place, here: Path, stub: Path, backend: Path) -> list[Server]:
    def npm(package: str) -> list[str]:
        home = place.npm / "node_modules/@modelcontextprotocol" / package
        return ["node", str(home / "dist/index.js")]

    def judged(mode: str) -> dict:
        return {"output_validation": {"mode": mode, "max_bytes": MAX_BYTES}}

    everything = npm("server-everything")
    loopback = ["node", "--import", str(here / "loopback.mjs"), *everything[1:], "streamableHttp"]
    python = str(place.python)
    pymcp = [python, str(here / "server.py"), "{port}"]
    return [
        Server(
            "filesystem",
            [*npm("server-filesystem"), str(place.files)],
            filesystem(place.files),
            settings=judged("warn"),
        ),
        Server("everything", everything, everything_checks(), offers=True),
        Server("everything-http", loopback, everything_checks(), http=True, env={"PORT": "{port}"}),
        Server(
            "memory",
            npm("server-memory"),
            memory(),
            env={"MEMORY_FILE_PATH": str(place.memory)},
        ),
        Server("thinking", npm("server-sequential-thinking"), thinking()),
        Server("git", [python, "-m", "mcp_server_git"], git(place.files / "git"), env=GIT_ENV),
        Server("rmcp-http", [str(backend), "http", "--port", "{port}"], rmcp(), http=True),
        Server("rmcp-stdio", [str(backend), "stdio"], rmcp()),
        Server("time", [python, "-m", "mcp_server_time", "--local-timezone", "UTC"], time()),
        Server("pymcp-json", [*pymcp, "json"], pymcp_checks(), http=True),
        Server("pymcp-sse", [*pymcp, "sse"], pymcp_checks(), http=True),
        Server(
            "stub-warn",
            [str(stub), "stdio", "--id", "last", "--page", "7", "--malformed"],
            stub_warn(),
            settings=judged("warn"),
        ),
        Server(
            "stub-strict",
            [str(stub), "http", "--port", "{port}", "--answer", "json"],
            stub_strict(),
            http=True,
            settings=judged("strict"),
        ),
        Server(
            "stub-sse",
            [str(stub), "http", "--port", "{port}", "--answer", "sse", "--id", "last"],
            stub_sse(),
            http=True,
            settings=judged("strict"),
        ),
        Server("stub-off", [str(stub), "stdio"], stub_off(), settings=judged("off")),
    ]


def filesystem(root: Path) -> list[Check]:
    def at(name: str) -> str:
        return str(root / name)

    new = {"path": at("made/new.txt"), "content": "first\n\u2028"}
    edit = {"path": at("made/new.txt"), "edits": [{"oldText": "first", "newText": "2nd"}]}
    return [
        Check("read", "list_allowed_directories"),
        Check("read", "read_text_file", {"path": at("hello.txt")}),
        Check("read", "read_text_file", {"path": at("hello.txt"), "head": 1}, note="head"),
        Check("read", "read_text_file", {"path": at("large.txt")}, decisions=1, note="3 MiB"),
        Check("read", "read_media_file", {"path": at("hello.txt")}),
        Check("read", "list_directory_with_sizes", {"path": str(root)}),
        Check("read", "get_file_info", {"path": at("hello.txt")}, steady=False),
        Check("read", "read_text_file", {"path": at("absent.txt")}, note="isError"),
        Check("write", "create_directory", {"path": at("made")}),
        Check("write", "list_directory", {"path": str(root)}, decisions=1, note="readOnly"),
        Check("destructive", "write_file", new),
        Check("destructive", "edit_file", edit),
        Check(
            "destructive",
            "move_file",
            {"source": at("made/new.txt"), "destination": at("made/moved.txt")},
        ),
        Check("read", "directory_tree", {"path": str(root)}),
        Check(
            "read",
            "write_file",
            {"path": at("hello.txt"), "content": "overwritten"},
            outcome=REFUSED,
            decisions=1,
            text=MARKED.format("filesystem:write_file"),
        ),
    ]


def everything_checks() -> list[Check]:
    page = {"name": "a.gz", "data": "data:text/plain;base64,aGVsbG8=", "outputType": "resource"}
    return [
        Check("read", "echo", {"message": 'é \\ "\n\t\u2028 📖 </script>'}),
        Check("read", "get-structured-content", {"location": "New York"}),
        Check("read", "get-tiny-image"),
        Check("read", "get-annotated-message", {"messageType": "error", "includeImage": True}),
        Check("read", "get-resource-links", {"count": 3}),
        Check("read", "trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
        Check("read", "get-sum", {"a": 1}, note="bad arguments"),
        Check("write", "gzip-file-as-resource", page),
        Check("write", "toggle-simulated-logging", steady=False),
        Check("write", "get-sum", {"a": 0.1, "b": 0.2}, decisions=1, note="readOnly"),
        Check("destructive", "get-sum", {"a": 9007199254740991, "b": 1}),
    ]


def memory() -> list[Check]:
    ada = {"name": "Ada", "entityType": "person", "observations": ["wrote ⟨notes⟩", "1843"]}
    engine = {"name": "Engine", "entityType": "machine", "observations": []}
    wrote = {"from": "Ada", "to": "Engine", "relationType": "describes"}
    return [
        Check("read", "read_graph", note="empty"),
        Check("write", "create_entities", {"entities": [ada, engine]}),
        Check("write", "create_relations", {"relations": [wrote]}),
        Check("read", "search_nodes", {"query": "notes"}),
        Check(
            "write",
            "delete_entities",
            {"entityNames": ["Ada"]},
            outcome=REFUSED,
            decisions=1,
            text=MARKED.format("memory:delete_entities"),
        ),
        Check(
            "destructive",
            "delete_observations",
            {"deletions": [{"entityName": "Ada", "observations": ["1843"]}]},
        ),
        Check("destructive", "delete_entities", {"entityNames": ["Engine"]}),
        Check("read", "read_graph"),
    ]


def thinking() -> list[Check]:
    def thought(number: int) -> dict:
        return {
            "thought": f"“{number}” \u2028",
            "nextThoughtNeeded": number < 2,
            "thoughtNumber": number,
            "totalThoughts": 2,
        }

    return [
        # First the call without effects: over stdio it is repeated until the server is ready.
        Check("read", "sequentialthinking", {"thought": 7}, note="bad arguments"),
        Check("read", "sequentialthinking", thought(1)),
        Check("read", "sequentialthinking", thought(2)),
    ]


def git(folder: Path) -> list[Check]:
    here = {"repo_path": str(folder)}
    return [
        Check("read", "git_status", here),
        Check("write", "git_add", here | {"files": ["notes.txt"]}),
        Check("read", "git_diff_staged", here),
        Check("write", "git_commit", here | {"message": "second \"two\""}),
        Check("read", "git_log", here),
        Check("read", "git_show", here | {"revision": "HEAD"}),
        Check("read", "git_show", here | {"revision": "nowhere"}, note="isError"),
    ]


def rmcp() -> list[Check]:
    return [
        Check("read", "test_simple_text"),
        Check("read", "test_multiple_content_types"),
        Check("read", "test_error_handling", note="isError"),
        Check("read", "test_tool_with_progress"),
        Check("read", "json_schema_2020_12_tool", {"name": "é"}),
    ]


def time() -> list[Check]:
    # A time zone in which it is about noon now, so that the day does not change between two calls.
    ahead = 12 - datetime.datetime.now(datetime.timezone.utc).hour
    noon = {
        "source_timezone": f"Etc/GMT{-ahead:+d}",
        "time": "12:30",
        "target_timezone": "Asia/Kathmandu",
    }
    return [
        Check("read", "convert_time", noon),
        Check("read", "get_current_time", {"timezone": "UTC"}, steady=False),
        Check("read", "get_current_time", {"timezone": "Nowhere/None"}, note="isError"),
        Check("write", "convert_time", noon, decisions=1, note="readOnly"),
        Check("destructive", "convert_time", noon),
    ]


def pymcp_checks() -> list[Check]:
    return [
        Check("read", "add", {"a": 2, "b": 2**53 - 4}),
        Check("read", "report", {"rows": 40}),
        Check("read", "announced"),
        Check("read", "fail", note="isError"),
        Check("read", "add", {"a": "two"}, note="bad arguments"),
        Check("write", "put", {"key": "k", "value": "v é"}),
        Check("destructive", "drop", {"key": "k"}),
    ]


UNUSUAL = [
    Check("read", "read_item"),
    Check("read", "echo", {"k": 'ü "quoted" \\ \u2028', "n": [1, {"deep": None}]}),
    Check("read", "odd_spelling"),
    Check("read", "pretty"),
    Check("read", "huge_int"),
    Check("read", "escaped_name"),
    Check("read", "draft_7"),
    Check("read", "look_around"),
    Check("read", "error_first"),
    Check("read", "error_last"),
    Check("read", "too_big_error_first", {"size": MAX_BYTES + 1}, note="past the limit"),
    Check("read", "missing_structured"),
    Check("read", "uncompilable"),
    Check("read", "remote_ref"),
    Check("read", "rpc_error"),
    Check("read", "blob", {"size": MAX_BYTES}, note="at the limit"),
    Check("read", "too_deep", {"depth": 64}, note="at the limit"),
    Check("read", "notify"),
    Check("write", "write_item"),
    Check("destructive", "delete_item"),
]
VIOLATIONS = [
    Check("read", "violate"),
    Check("read", "violate_key"),
    Check("read", "violate_content_last"),
    Check("read", "violate_draft_7"),
    Check("read", "escaped_name_violates"),
    Check("read", "not_an_object", readable=False),
    Check("read", "null_structured", readable=False),
    Check("read", "duplicate_key"),
    Check("read", "duplicate_escaped_key"),
    Check("read", "duplicate_structured"),
    Check("read", "duplicate_is_error"),
    Check("read", "is_error_string", readable=False),
    Check("read", "overflow"),
    Check("read", "too_deep", {"depth": 65}, note="past the limit"),
    Check("read", "too_big", {"size": MAX_BYTES + 1}, note="past the limit"),
    Check("read", "too_big_error_last", {"size": MAX_BYTES + 1}, note="past the limit"),
]
# No client can read these answers, so they are tested only with mode strict, which blocks them.
UNREADABLE = [
    Check("read", "invalid_utf8", steady=False),
    Check("read", "lone_surrogate", steady=False),
    Check("read", "raw_control", steady=False),
]


def all_become(checks: list[Check], outcome: str, decisions: int) -> list[Check]:
    return [replace(each, outcome=outcome, decisions=decisions) for each in checks]


def stub_warn() -> list[Check]:
    return UNUSUAL + all_become(VIOLATIONS, SAME, 1)


def stub_strict() -> list[Check]:
    return UNUSUAL + all_become(VIOLATIONS + UNREADABLE, BLOCKED, 1)


def stub_off() -> list[Check]:
    return UNUSUAL + all_become(VIOLATIONS, SAME, 0)


def stub_sse() -> list[Check]:
    odd = Check("read", "read_item", {"behavior": "odd_framing"}, note="odd framing")
    return [odd, *stub_strict()]
