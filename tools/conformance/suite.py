"""The suite: installs it, runs it, reads what it found.

Through mcpproxy a thing of the server `suite` has another name: `suite__` before a tool's or a
prompt's, `mcpproxy://suite/` before a URI. The suite asks for fixed ones, so what runs through is a
copy of it in which the string literals of these names are exchanged, and nothing else; so there is
nothing between the suite and mcpproxy that could mend or break a byte.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target/conformance"
sys.path.insert(0, str(ROOT / "tools/interop"))

from stage import Failed, free_port, fresh, listening, started, wait_for  # noqa: E402

REVISIONS = ("2025-11-25", "2026-07-28")
MODERN = "2026-07-28"
SERVER = "suite"
PACKAGE = "node_modules/@modelcontextprotocol/conformance"
INSTALL_SECONDS = 600
RUN_SECONDS = 240
# A check that is there more than once counts as the worst of them.
BADNESS = ("INFO", "SKIPPED", "SUCCESS", "WARNING", "FAILURE")

# By scenario: by check: status and what was said about it.
Found = dict[str, dict[str, tuple[str, str]]]


def install():
    """The suite and its Node, in the pinned versions; nothing where they stand already."""
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
    # A module finds its packages from the folder it stands in.
    shutil.copy(HERE / "client.mjs", WORK)


def renamed(script: str) -> str:
    """The suite, asking for the backend's things under the names that mcpproxy gives them."""
    offers = json.loads((HERE / "backend/offers.json").read_text())
    names = [each["name"] for kind in ("tools", "prompts") for each in offers[kind]]
    name = re.compile("([\"'`])(" + "|".join(map(re.escape, names)) + r")\1")
    script = name.sub(rf"\1{SERVER}__\2\1", script)
    return re.sub("([\"'`])test://", rf"\1mcpproxy://{SERVER}/test://", script)


def server_runs(revision: str, options, only) -> list[Found]:
    """Directly, through to a server of the same era, through to one of the other era."""
    modern = revision == MODERN
    with backend(options.backend, "both" if modern else "legacy") as own:
        with backend(options.backend, "legacy" if modern else "both") as other:
            direct = ask_server(revision, f"http://127.0.0.1:{own}/mcp", "direct", only)
            found = [direct]
            for column, port in (("through", own), ("other", other)):
                with proxy(options.binary, port, f"{revision}-{column}") as url:
                    found.append(ask_server(revision, url, column, only))
            return found


@contextlib.contextmanager
def backend(binary: Path, era: str):
    port = free_port()
    argv = [str(binary), "http", "--port", str(port), "--era", era]
    with started(argv, WORK / "logs" / f"backend-{era}.log") as child:
        wait_for(lambda: listening(port), child, "the backend does not listen")
        yield port


@contextlib.contextmanager
def proxy(binary: Path, upstream: int | str, name: str):
    """A mcpproxy before one server, given by port or URL; the URL of its /mcp/all."""
    folder, port = fresh(WORK / "proxy" / name), free_port()
    url = f"http://127.0.0.1:{upstream}/mcp" if isinstance(upstream, int) else upstream
    config = {
        "listen": f"127.0.0.1:{port}",
        "data_dir": str(folder / "data"),
        "api_key": "conformance-key-of-more-than-thirty-two-characters",
        "mcpServers": {SERVER: {"url": url}},
    }
    path = folder / "mcp_config.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    log = folder / "mcpproxy.log"
    argv = [str(binary), "serve", "--config", str(path)]
    with started(argv, log, env=os.environ | {"RUST_LOG": "debug"}) as child:
        wait_for(lambda: ready(port), child, f"mcpproxy is not ready, see {log}")
        yield f"http://127.0.0.1:{port}/mcp/all"


def ready(port: int) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


def ask_server(revision: str, url: str, column: str, only) -> Found:
    """Runs the server scenarios of a requirement set against a server."""
    script = "index.js" if column == "direct" else "through.js"
    into = fresh(WORK / "results" / f"server-{revision}-{column}")
    argv = ["server", "--url", url, "--requirements", revision]
    run(script, argv, into)
    return found_in(into, "server-", only)


def run(script: str, argv: list[str], into: Path):
    node = str(WORK / "node_modules/node/bin/node")
    argv = [node, str(WORK / PACKAGE / "dist" / script), *argv, "-o", str(into)]
    with open(into / "log", "wb") as log:
        try:
            # What it exits with is in what it found.
            subprocess.run(argv, stdout=log, stderr=log, timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"the suite did not end, see {into}/log") from None


def found_in(folder: Path, prefix: str, only) -> Found:
    found = {}
    for path in sorted(folder.rglob("checks.json"), key=lambda path: path.stat().st_mtime):
        name = str(path.parent.relative_to(folder)).removeprefix(prefix)
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", name)
        if (only and scenario not in only) or scenario.startswith("tasks-"):
            # Tasks are an extension that the backend does not offer.
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
    """How many checks pass, of how many that were made."""
    made = [status for status, _ in checks.values() if status not in ("INFO", "SKIPPED")]
    good = sum(status == "SUCCESS" for status in made)
    return str(good) if good == len(made) else f"{good} of {len(made)}"


def client_runs(revision: str, options, only) -> list[Found]:
    """Directly, and through: `client.mjs` against the suite's own servers."""
    node, client = WORK / "node_modules/node/bin/node", WORK / "client.mjs"
    between = [sys.executable, HERE / "between.py", options.binary.resolve(), node, client]
    scenarios = [each for each in client_scenarios(revision) if not only or each in only]
    columns = []
    for column, command in (("direct", [node, client]), ("through", between)):
        into = fresh(WORK / "results" / f"client-{revision}-{column}")
        for scenario in scenarios:
            argv = ["client", "--command", " ".join(map(str, command)), "--scenario", scenario]
            run("index.js", [*argv, "--spec-version", revision], into)
        columns.append(found_in(into, "", only))
    return columns


def client_scenarios(revision: str) -> list[str]:
    """Those of a requirement set but for `auth/`: a login is an act of the operator."""
    text = (WORK / PACKAGE / f"requirements/{revision}.yaml").read_text()
    required = re.search(r"^client:\n((?:  - .*\n)+)", text, re.MULTILINE).group(1)
    scenarios = re.findall(r"  - (\S+)", required)
    more = re.findall(r"scenario: (\S+)\n    leg: client\n    reason: added", text)
    return [each for each in scenarios + more if not each.startswith("auth/")]
