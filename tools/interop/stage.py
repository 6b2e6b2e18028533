"""Sets the stage: installs the peers, starts processes and ends them, puts taps before servers."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import peers
from taps import HttpTap, StdioTap

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target/interop"

INSTALL_SECONDS = 600
START_SECONDS = 60
END_SECONDS = 15


class Failed(Exception):
    """A peer or the proxy did not do its part, so that there is nothing to compare."""


def install():
    """npm and PyPI peers, in the pinned versions; nothing where they stand already."""
    npm, venv = WORK / "npm", WORK / "venv"
    pinned = str(HERE / "requirements.txt")
    pins = "".join((HERE / name).read_text() for name in ("package-lock.json", "requirements.txt"))
    stamp = WORK / "installed"
    if not (stamp.exists() and stamp.read_text() == pins):
        stamp.unlink(missing_ok=True)
        for old in (npm, venv):
            shutil.rmtree(old, ignore_errors=True)
        npm.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, npm)
        print("installing the npm and PyPI peers", flush=True)
        for step in (
            ["npm", "ci", "--no-audit", "--no-fund", "--prefix", str(npm)],
            [sys.executable, "-m", "venv", str(venv)],
            [str(venv / "bin/pip"), "install", "--quiet", "--requirement", pinned],
        ):
            subprocess.run(step, check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(pins)
    # A module finds its packages from the folder it stands in.
    for name in ("client.mjs", "client_both.mjs", "corpus_client.mjs"):
        shutil.copy(HERE / name, npm)


@contextlib.contextmanager
def started(argv: list[str], log: Path, **more):
    """A process of ours for as long as the block runs; then it is ended, and reaped."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **more)
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextlib.contextmanager
def tapped(server: peers.Server, log: Path):
    """The tap before a server; one that listens is started with it, another by who uses it."""
    if not server.http:
        yield StdioTap(log)
        return
    port = free_port()
    filled = lambda text: text.replace("{port}", str(port))
    argv = [filled(each) for each in server.argv]
    env = os.environ | {name: filled(value) for name, value in server.env.items()}
    with started(argv, log.with_suffix(".log"), env=env) as child:
        wait_for(lambda: listening(port), child, f"{server.name} does not listen, see {log}.log")
        tap = HttpTap(port)
        yield tap
        tap.close()


def wait_for(condition, child: subprocess.Popen, complaint: str):
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if child.poll() is not None or time.monotonic() > deadline:
            raise Failed(complaint)
        time.sleep(0.05)


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
