"""Prepares a run: installs the peers, starts and ends processes, and puts taps in front of servers."""

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
    """A peer or the proxy failed, so that there is nothing to compare."""


def install():
    """Installs npm and PyPI peers in the pinned versions, unless they are already installed."""
    npm = WORK / "npm"
    steps = [["npm", "ci", "--no-audit", "--no-fund", "--prefix", str(npm)]]
    environment(npm, ("package.json", "package-lock.json"), steps)
    install_python("venv", "requirements.txt")
    # A module finds its packages starting from its own folder.
    for name in ("client.mjs", "client_both.mjs", "corpus_client.mjs", "matrix_client.mjs", "matrix_server.mjs"):
        shutil.copy(HERE / name, npm)


def install_python(name: str, requirements: str):
    folder = WORK / name
    pip = [str(folder / "bin/pip"), "install", "--quiet", "--requirement", str(HERE / requirements)]
    environment(folder, (requirements,), [[sys.executable, "-m", "venv", str(folder)], pip])


def environment(folder: Path, pins: tuple, steps: list[list[str]]):
    """A folder created by `steps`, and created again whenever the files that pin its versions change."""
    pinned = "".join((HERE / name).read_text() for name in pins)
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == pinned:
        return
    print(f"installing the peers in {folder.name}", flush=True)
    fresh(folder)
    for name in pins:
        shutil.copy(HERE / name, folder)
    for step in steps:
        subprocess.run(step, check=True, timeout=INSTALL_SECONDS)
    stamp.write_text(pinned)


@contextlib.contextmanager
def started(argv: list[str], log: Path, **more):
    """A process that runs for as long as the block; then it is ended, and waited for."""
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
    """The tap in front of a server. A server that listens is started here, any other by the program that uses it."""
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
