"""The world in which the tasks are done: folders, two repositories, the content of the memory, a web page; and the
servers.

It is created for each run, always with the same content. Checks examine it directly: files, `git`, the file of the
memory, and the page's own list of requests.
"""

import hashlib
import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

GIT_SECONDS = 10
ENTITIES = [
    {"name": "Bruno Weiss", "entityType": "person", "observations": ["plays the cello", "lives in Graz"]},
    {"name": "Clara Diaz", "entityType": "person", "observations": ["collects stamps", "drinks jasmine tea"]},
    {"name": "Dmitri Orlov", "entityType": "person", "observations": ["repairs bicycles"]},
    {"name": "Emma Stone-Hill", "entityType": "person", "observations": ["bakes bread"]},
    {"name": "Acme Ltd", "entityType": "company", "observations": ["makes anvils"]},
    {"name": "Farid Khan", "entityType": "person", "observations": ["owns a red car", "speaks Dari"]},
]
RELATIONS = [{"from": "Emma Stone-Hill", "to": "Farid Khan", "relationType": "is a friend of"}]
PAGE = "<!doctype html><title>Tides</title><main><h1>Tides</h1><p>High water is at 14:52 on Thursday.</p></main>"


class World:
    def __init__(self, folder: Path):
        shutil.rmtree(folder, ignore_errors=True)
        self.root = folder / "home"
        self.memory = folder / "memory.jsonl"
        self.asked: list[str] = []
        for path, content in {
            "lists/shopping.txt": "oats\nplums\nsoap\n",
            "letters/offer.txt": "Dear Ms Lind,\nwe can deliver on Tuesday.\nYours\n",
            "book/one.txt": "It was a bright cold day.\n", "book/two.txt": "The clocks were striking.\n",
            "logs/app.log": "".join(f"line {at}\n" for at in range(1, 41)),
            "reports/draft.md": "# Draft\n", "reports/2024.csv": "a,b\n", "reports/old/2023.csv": "a,b\n",
            "photos/small.jpg": "x" * 100, "photos/large.jpg": "x" * 50_000, "photos/middle.jpg": "x" * 9_000,
            "garden/beds/north/plan.txt": "leeks\n", "garden/seeds.txt": "beans\n",
            "bills/march.txt": "paid\n", "bills/april.txt": "open\n", "contract.txt": "c" * 1234,
        }.items():
            place = self.root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
        lines = [{"type": "entity", **each} for each in ENTITIES]
        lines += [{"type": "relation", **each} for each in RELATIONS]
        self.memory.write_text("\n".join(map(json.dumps, lines)))
        for name in REPOSITORIES:
            self.repository(name)

    def path(self, name: str) -> str:
        return str(self.root / name)

    def text(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.is_file() else ""

    def repository(self, name: str):
        folder = self.root / "code" / name
        folder.mkdir(parents=True)
        self.git(name, "init", "--quiet", "--initial-branch", "main")
        for at, (file, content, message) in enumerate(COMMITS):
            (folder / file).write_text(content)
            self.git(name, "add", file)
            self.git(name, "commit", "--quiet", "--message", message, day=at)
        self.git(name, "branch", "feature/lamp")
        for step in REPOSITORIES[name]:
            step(folder, lambda *args: self.git(name, *args))

    def git(self, name: str, *args: str, day: int = 9) -> str:
        folder = self.root / "code" / name
        env = {**os.environ, **git_env(day)}
        done = subprocess.run(["git", "-C", str(folder), *args], env=env, check=True, text=True,
                              capture_output=True, timeout=GIT_SECONDS)
        return done.stdout

    def graph(self) -> tuple[dict, list]:
        """Content of the memory: entities by name, and relations."""
        lines = [json.loads(line) for line in self.memory.read_text().splitlines() if line]
        entities = {line["name"]: line for line in lines if line["type"] == "entity"}
        return entities, [(line["from"], line["relationType"], line["to"])
                          for line in lines if line["type"] == "relation"]

    def state(self) -> str:
        """One hash over everything that a task could change. The index of git is omitted, because reading commands may
        refresh it.
        """
        whole = hashlib.sha256(self.memory.read_bytes())
        for path in sorted(self.root.rglob("*")):
            if path.name in ("index", "index.lock") and ".git" in path.parts:
                continue
            whole.update(str(path).encode())
            if path.is_file():
                whole.update(path.read_bytes())
        for name in REPOSITORIES:
            whole.update(self.git(name, "diff", "--cached").encode())
        return whole.hexdigest()

    def page(self) -> ThreadingHTTPServer:
        """The web page, on its own port; the caller ends it."""
        asked = self.asked

        class Page(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                found = self.path.startswith("/tides")
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(PAGE.encode() if found else b"")

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def write(file: str, content: str):
    return lambda folder, git: (folder / file).write_text(content)


def stage(file: str):
    return lambda folder, git: git("add", file)


COMMITS = [("lamp.py", "on = False\n", "a lamp that is off"), ("switch.py", "def press(): pass\n", "a switch"),
           ("lamp.py", "on = True\n", "the lamp is on"), ("README", "A lamp.\n", "say what it is")]
# Further content of each repository: tasks that change something have a repository of their own.
REPOSITORIES = {
    "looked-at": [write("switch.py", "def press(): return 1\n")],
    "to-commit": [write("lamp.py", "on = None\n"), stage("lamp.py")],
    "to-stage": [write("lamp.py", "on = 2\n")],
    "to-unstage": [write("lamp.py", "on = 3\n"), stage("lamp.py")],
    "to-branch": [],
    "to-switch": [],
    "apart": [lambda folder, git: git("checkout", "--quiet", "feature/lamp"), write("bulb.py", "watts = 7\n"),
              stage("bulb.py"), lambda folder, git: git("commit", "--quiet", "--message", "a bulb")],
}


def git_env(day: int = 9) -> dict[str, str]:
    """Fixed author and date, so that commits have the same hash in every run; no settings of the machine."""
    facts = {"NAME": "A", "EMAIL": "a@example.invalid", "DATE": f"{1700000000 + 86400 * day} +0000"}
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in facts.items()}
    return {**who, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def servers(world: World, npm: Path, python: Path) -> dict[str, dict]:
    """The servers in mcpproxy's config. No task needs `browser` and `thinking`; real configs have such servers, too."""
    node = lambda package, *args: {"command": "node", "args": [str(npm / "node_modules" / package), *args]}
    reference = lambda name: f"@modelcontextprotocol/server-{name}/dist/index.js"
    module = lambda name, *args: {"command": str(python), "args": ["-m", name, *args]}
    return {
        "filesystem": node(reference("filesystem"), str(world.root)),
        "memory": {**node(reference("memory")), "env": {"MEMORY_FILE_PATH": str(world.memory)}},
        # The default is a page on the internet.
        "everything": {**node(reference("everything")), "env": {"GZIP_ALLOWED_DOMAINS": "127.0.0.1"}},
        "thinking": node(reference("sequential-thinking")),
        "browser": node("@playwright/mcp/cli.js", "--headless"),
        "git": {**module("mcp_server_git"), "env": git_env()},
        "time": module("mcp_server_time", "--local-timezone", "Europe/Berlin"),
        "fetch": {**module("mcp_server_fetch", "--allow-private-ips"),
                  "env": {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}},
    }
