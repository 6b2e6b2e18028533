"""Reference servers: through mcpproxy they must behave as they do directly, in every revision.

`python` is the reference server of the official Python SDK. It is not a package of its own, but part of the SDK's
source package on PyPI. `suite` is the server of the suite itself, which is in no package: it is taken from a checkout
of the suite's repository (`--reference`).
"""

import contextlib
import hashlib
import json
import os
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import suite
from stage import HERE as PEERS
from stage import WORK as INSTALLED
from stage import Failed, free_port, fresh, install_python, listening, started, wait_for
from suite import WORK, Found

REVISIONS = ("2025-06-18", *suite.REVISIONS)
# The unchanged suite runs in all columns except /mcp/all.
COLUMNS = ("direct", "/mcp/server", "/mcp/all", "stdio")
# In the version that tools/interop/requirements.txt installs.
SOURCE = "mcp==2.3.0"
SHA256 = "8b147a50441cf059dc88c684e0aeed3687f0aa0f39c6cde7b90330effd2b34d8"
INSIDE = "examples/servers/everything-server/"
OF_SUITE = "examples/servers/typescript"
DOWNLOAD_SECONDS = 300


def install() -> Path:
    """The folder of the Python SDK's server; it uses the SDK installed for the peers of tools/interop."""
    install_python("venv", "requirements.txt")
    if SOURCE not in (PEERS / "requirements.txt").read_text().splitlines():
        raise Failed(f"tools/interop installs another version than {SOURCE}")
    folder = WORK / "reference"
    stamp = folder / "installed"
    if not (stamp.exists() and stamp.read_text() == SHA256):
        print(f"installing the reference server of {SOURCE}", flush=True)
        fresh(folder)
        pip = [str(INSTALLED / "venv/bin/pip"), "download", "--quiet", "--no-deps", "--no-binary", "mcp"]
        subprocess.run([*pip, "--dest", str(folder), SOURCE], check=True, timeout=DOWNLOAD_SECONDS)
        (archive,) = folder.glob("mcp-*.tar.gz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise Failed(f"{archive.name} is not the one that is pinned")
        with tarfile.open(archive) as opened:
            members = [each for each in opened if f"/{INSIDE}" in each.name]
            opened.extractall(folder, members, filter="data")
        stamp.write_text(SHA256)
    return folder / SOURCE.replace("==", "-") / INSIDE


@contextlib.contextmanager
def server(which: str, options, name: str):
    """A separate process, and its port."""
    port = free_port()
    if which == "python":
        argv = [INSTALLED / "venv/bin/python", "-m", "mcp_everything_server", "--port", port]
        more = {"env": os.environ | {"PYTHONPATH": str(install())}}
    else:
        node = WORK / "node_modules/node/bin/node"
        argv = [node, "--import", PEERS / "loopback.mjs", "--import", "tsx", "everything-server.ts"]
        more = {"env": os.environ | {"PORT": str(port)}, "cwd": options.reference / OF_SUITE}
    log = WORK / "logs" / f"{name}.log"

    def ready() -> bool:
        # Until the server binds the port, another process may listen on it for a moment.
        return listening(port) and (which != "python" or f"running on http://127.0.0.1:{port}" in log.read_text())

    with started([*map(str, argv)], log, **more) as child:
        wait_for(ready, child, f"the reference server does not listen, see {name}.log")
        yield port


def runs(which: str, revision: str, options, only) -> dict[str, Found]:
    """Results by column. The server supports all protocol families, and mcpproxy chooses one."""
    if which == "python":
        install()

    def ask(column: str) -> Found:
        name = f"{which}-{revision}-{column.strip('/').replace('/', '-')}"
        with server(which, options, name) as port:
            if column == "direct":
                return suite.ask_server(revision, name, f"http://127.0.0.1:{port}/mcp", {}, only, own_names=True)
            config = suite.configured(port, name)
            with suite.served(options.binary, config):
                stdio = [options.binary.resolve(), "stdio", "--config", config.path, "--server", suite.SERVER]
                one = f"{config.url}/server/{suite.SERVER}"
                url, face = {
                    "/mcp/all": (f"{config.url}/all", {}),
                    "stdio": (one, {"FACE": "stdio", "COMMAND": json.dumps([*map(str, stdio)])}),
                }.get(column, (one, {}))
                return suite.ask_server(revision, name, url, face, only, own_names=column != "/mcp/all")

    with ThreadPoolExecutor(suite.AT_A_TIME) as workers:
        return dict(zip(COLUMNS, workers.map(ask, COLUMNS)))
