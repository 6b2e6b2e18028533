"""The suite: installs and runs it, and reads its results.

Through mcpproxy an item of the server `suite` has another name: `suite__` before the name of a tool or a prompt,
`mcpproxy://suite/` before a URI. The suite requests fixed names. Therefore scenarios through the proxy use a copy of
the suite in which only the string literals of these names are replaced. So nothing between the suite and mcpproxy could
repair or damage a byte.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target/conformance"
sys.path.insert(0, str(ROOT / "tools/interop"))

import tasks_backend  # noqa: E402
from stage import Failed, free_port, fresh, listening, started, wait_for  # noqa: E402

REVISIONS = ("2025-11-25", "2026-07-28")
MODERN = "2026-07-28"
SERVER = "suite"
KEY = "conformance-key-of-more-than-thirty-two-characters"
PACKAGE = "node_modules/@modelcontextprotocol/conformance"
INSTALL_SECONDS = 600
RUN_SECONDS = 240
# Server scenarios of extensions that the backend offers.
EXTENSIONS = ("sep-2640-skills-enumeration", "sep-2640-skills-manifest", "sep-2640-skills-directory")
# Number of concurrent runs of the suite; most of their time is waiting.
AT_A_TIME = 3
# A check with several results counts as the worst of them.
BADNESS = ("INFO", "SKIPPED", "SUCCESS", "WARNING", "FAILURE")

# By scenario and check: the status and its explanation.
Found = dict[str, dict[str, tuple[str, str]]]


def install():
    """Installs the suite and Node in the pinned versions, unless they are already installed."""
    pins = (HERE / "package-lock.json").read_text()
    stamp = WORK / "installed"
    if not (stamp.exists() and stamp.read_text() == pins):
        fresh(WORK)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, WORK)
        print("installing the conformance suite and node 22", flush=True)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--silent", "--prefix", str(WORK)]
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(pins)
    plain = WORK / PACKAGE / "dist/index.js"
    (WORK / PACKAGE / "dist/through.js").write_text(renamed(plain.read_text()))
    # A module finds its packages starting from its own folder.
    shutil.copy(HERE / "client.mjs", WORK)


def renamed(script: str) -> str:
    """A copy of the suite that requests the backend's items under the names that mcpproxy gives them."""
    offers = json.loads((HERE / "backend/offers.json").read_text())
    names = [each["name"] for kind in ("tools", "prompts") for each in offers[kind]]
    names += tasks_backend.TOOLS
    name = re.compile("([\"'`])(" + "|".join(map(re.escape, names)) + r")\1")
    script = name.sub(rf"\1{SERVER}__\2\1", script)
    return re.sub("([\"'`])test://", rf"\1mcpproxy://{SERVER}/test://", script)


def server_runs(revision: str, options, only) -> dict[str, Found]:
    """Results by column: directly, and through each interface; `other` is through mcpproxy to a server of the other
    protocol family.
    """
    modern = revision == MODERN
    own, other = ("both", "legacy") if modern else ("legacy", "both")
    columns = {"direct": own, "/mcp/all": own, "other era": other, "/mcp": own, "stdio": own}

    def ask(column: str) -> Found:
        # Each column has a backend of its own, because some scenarios change its lists.
        name = f"{revision}-{column.strip('/').replace('/', '-').replace(' ', '-')}"
        with backend(options.backend, columns[column], name) as port:
            if column == "direct":
                return ask_server(revision, name, f"http://127.0.0.1:{port}/mcp", {}, only, own_names=True)
            config = configured(port, name)
            with served(options.binary, config):
                stdio = [str(options.binary.resolve()), "stdio", "--config", str(config.path)]
                url, face = {
                    "/mcp": (config.url, {"FACE": "mcp"}),
                    "stdio": (config.url, {"FACE": "stdio", "COMMAND": json.dumps(stdio)}),
                }.get(column, (f"{config.url}/all", {}))
                return ask_server(revision, name, url, face, only)

    with ThreadPoolExecutor(AT_A_TIME) as workers:
        return dict(zip(columns, workers.map(ask, columns)))


@contextlib.contextmanager
def backend(binary: Path, era: str, name: str):
    port = free_port()
    argv = [str(binary), "http", "--port", str(port), "--era", era]
    with started(argv, WORK / "logs" / f"backend-{name}.log") as child:
        wait_for(lambda: listening(port), child, "the backend does not listen")
        yield port


class Config:
    """Files of a mcpproxy in front of one server, and the address at which it listens."""

    def __init__(self, upstream: str, name: str, oauth: dict | None):
        folder, port = fresh(WORK / "proxy" / name), free_port()
        self.url, self.log = f"http://127.0.0.1:{port}/mcp", folder / "mcpproxy.log"
        self.api, self.port = f"http://127.0.0.1:{port}/api/v1", port
        self.path = folder / "mcp_config.json"
        server = {"url": upstream} | ({"oauth": oauth} if oauth else {})
        config = {
            "listen": f"127.0.0.1:{port}",
            "data_dir": str(folder / "data"),
            "api_key": KEY,
            "mcpServers": {SERVER: server},
        }
        self.path.touch(mode=0o600)
        self.path.write_text(json.dumps(config, indent=1))

    def state(self) -> dict:
        """State of the server as reported by the running mcpproxy."""
        request = urllib.request.Request(f"{self.api}/servers", headers={"X-API-Key": KEY})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)["data"]["servers"][0]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except OSError:
            return False


def configured(upstream: int | str, name: str, oauth: dict | None = None) -> Config:
    """The config of a mcpproxy in front of one server, given by port or URL."""
    url = f"http://127.0.0.1:{upstream}/mcp" if isinstance(upstream, int) else upstream
    return Config(url, name, oauth)


@contextlib.contextmanager
def served(binary: Path, config: Config):
    """Starts mcpproxy, and waits until its server was discovered or has failed."""
    argv = [str(binary), "serve", "--config", str(config.path)]
    with started(argv, config.log, env=os.environ | {"RUST_LOG": "debug"}) as child:
        wait_for(config.ready, child, f"mcpproxy is not ready, see {config.log}")
        yield


@contextlib.contextmanager
def proxy(binary: Path, upstream: int | str, name: str):
    """Starts mcpproxy in front of one server, given by port or URL. Returns the URL of its /mcp/all."""
    config = configured(upstream, name)
    with served(binary, config):
        yield f"{config.url}/all"


def ask_server(revision: str, name: str, url: str, face: dict, only, own_names: bool = False) -> Found:
    """Runs the server scenarios of a revision against a server, or against an interface of mcpproxy."""
    script = "index.js" if own_names else "through.js"
    into = fresh(WORK / "results" / f"server-{name}")
    argv = ["server", "--url", url, *scenarios_of(revision)]
    run(script, argv, into, {**face, "TARGET": url} if face else {})
    # Scenarios of extensions belong to no requirement set.
    for scenario in EXTENSIONS:
        argv = ["server", "--url", url, "--scenario", scenario, "--force"]
        argv += ["--spec-version", revision]
        run(script, argv, into, {**face, "TARGET": url} if face else {})
    return found_in(into, "server-", only)


def scenarios_of(revision: str) -> list[str]:
    """Scenarios of a requirement set; revisions before 2025-11-25 have none."""
    if revision in REVISIONS:
        return ["--requirements", revision]
    return ["--suite", "all", "--spec-version", revision]


def task_runs(options, only) -> dict[str, Found]:
    """Runs the scenarios of the tasks extension, which the set of 2026-07-28 has in addition to the required ones:
    directly, and through each interface, with a server of their own.
    """

    def ask(column: str) -> Found:
        name = f"tasks-{column.strip('/').replace('/', '-')}"
        port = free_port()
        argv = [sys.executable, str(HERE / "tasks_backend.py"), str(port)]
        with started(argv, WORK / "logs" / f"backend-{name}.log") as child:
            wait_for(lambda: listening(port), child, "the backend for tasks does not listen")
            if column == "direct":
                return ask_tasks(name, f"http://127.0.0.1:{port}/mcp", {}, only)
            config = configured(port, name)
            with served(options.binary, config):
                stdio = [str(options.binary.resolve()), "stdio", "--config", str(config.path)]
                url, face = {
                    "/mcp": (config.url, {"FACE": "mcp"}),
                    "stdio": (config.url, {"FACE": "stdio", "COMMAND": json.dumps(stdio)}),
                }.get(column, (f"{config.url}/all", {}))
                return ask_tasks(name, url, face, only)

    columns = ("direct", "/mcp/all", "/mcp", "stdio")
    with ThreadPoolExecutor(AT_A_TIME) as workers:
        return dict(zip(columns, workers.map(ask, columns)))


def ask_tasks(name: str, url: str, face: dict, only) -> Found:
    script = "index.js" if name.endswith("direct") else "through.js"
    into = fresh(WORK / "results" / f"server-{name}")
    text = (WORK / PACKAGE / f"requirements/{MODERN}.yaml").read_text()
    for scenario in re.findall(r"scenario: (tasks-\S+)", text):
        if not only or scenario in only:
            argv = ["server", "--url", url, "--scenario", scenario, "--force"]
            run(script, argv, into, {**face, "TARGET": url} if face else {})
    return found_in(into, "server-", only, tasks=True)


def run(script: str, argv: list[str], into: Path, face: dict | None = None):
    node = [str(WORK / "node_modules/node/bin/node")]
    if face:
        node += ["--import", str(HERE / "faces.mjs")]
    argv = [*node, str(WORK / PACKAGE / "dist" / script), *argv, "-o", str(into)]
    with open(into / "log", "wb") as log:
        try:
            # The exit code is ignored, because the results contain the failures.
            env = os.environ | (face or {})
            subprocess.run(argv, stdout=log, stderr=log, timeout=RUN_SECONDS, env=env)
        except subprocess.TimeoutExpired:
            raise Failed(f"the suite did not end, see {into}/log") from None


def found_in(folder: Path, prefix: str, only, tasks: bool = False) -> Found:
    found = {}
    for path in sorted(folder.rglob("checks.json"), key=lambda path: path.stat().st_mtime):
        name = str(path.parent.relative_to(folder)).removeprefix(prefix)
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", name)
        if (only and scenario not in only) or scenario.startswith("tasks-") != tasks:
            # Tasks are an extension that the other backend does not offer.
            continue
        checks = {}
        for each in json.loads(path.read_text()):
            status, said = each["status"], str(each.get("errorMessage") or "")[:400]
            check = f"{each['id']}/{each['name']}"
            before = checks.get(check, ("INFO", ""))
            checks[check] = max((status, said), before, key=lambda seen: BADNESS.index(seen[0]))
        found[scenario] = checks
    if not found:
        raise Failed(f"the suite found nothing, see {folder}/log")
    return found


def counted(checks: dict) -> str:
    """Number of checks that pass, and number of checks that were made."""
    made = [status for status, _ in checks.values() if status not in ("INFO", "SKIPPED")]
    good = sum(status == "SUCCESS" for status in made)
    return str(good) if good == len(made) else f"{good} of {len(made)}"


def client_runs(revision: str, options, only) -> dict[str, Found]:
    """Runs `client.mjs` against the suite's own servers, directly and through mcpproxy. A login has no direct column,
    because its client is mcpproxy.
    """
    node, client = WORK / "node_modules/node/bin/node", WORK / "client.mjs"
    binary = options.binary.resolve()
    commands = {
        "direct": [node, client],
        "/mcp/all": [sys.executable, HERE / "between.py", binary, node, client],
        "login": [sys.executable, HERE / "login.py", binary, node, client],
    }
    scenarios = [each for each in client_scenarios(revision) if not only or each in only]

    def play(what: tuple[str, str]):
        column, scenario = what
        into = fresh(WORK / "results" / f"client-{revision}-{column.strip('/')}" / scenario)
        argv = ["client", "--command", " ".join(map(str, commands[column])), "--scenario", scenario]
        # Extensions belong to no revision.
        run("index.js", [*argv, "--spec-version", revision, "--force"], into)
        found = found_in(into, "", only)
        if column == "login":
            # There is no direct result to compare with, so the client must also end as the scenario expects.
            passed = "OVERALL: PASSED" in (into / "log").read_text()
            found[scenario]["overall/the suite's verdict"] = ("SUCCESS" if passed else "FAILURE", "")
        return found

    plays = [
        (column, scenario)
        for scenario in scenarios
        for column in (["login"] if scenario.startswith("auth/") else ["direct", "/mcp/all"])
    ]
    found = {column: {} for column in commands}
    with ThreadPoolExecutor(AT_A_TIME) as workers:
        for (column, _), one in zip(plays, workers.map(play, plays)):
            found[column] |= one
    return found


def client_scenarios(revision: str) -> list[str]:
    """Scenarios of a requirement set, and of the extensions that it names."""
    text = (WORK / PACKAGE / f"requirements/{revision}.yaml").read_text()
    required = re.search(r"^client:\n((?:  - .*\n)+)", text, re.MULTILINE).group(1)
    scenarios = re.findall(r"  - (\S+)", required)
    named = re.findall(r"scenario: (\S+)\n    leg: client\n    reason: (?:added|extension)", text)
    return scenarios + named
