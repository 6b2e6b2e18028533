"""The running processes: three nodes of Garage, nginx, three of mcpproxy, set up by the steps of the guide's page and
ended by their ids.
"""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from .page import moved

READY_SECONDS = 90
COMMAND_SECONDS = 60
STORES, NODES = (11, 12, 13), (1, 2, 3)
NAMES = {1: "a", 2: "b", 3: "c"}
# Set when everything must end, so that no one waits any longer.
ENDS = threading.Event()


class Failed(Exception):
    """An expected state was not reached."""


class Ran:
    """A process that can be killed and started again."""

    def __init__(self, name, address, command, environment, log):
        self.name, self.address, self.command = name, address, command
        self.environment, self.log, self.process = environment, log, None

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(COMMAND_SECONDS)

    def words(self):
        return f"{self.name}:\n{self.log.read_text(errors='replace')[-3000:]}"


class Ground:
    """One set of all processes, with their addresses and folders."""

    # The body of a call over REST.
    CALL = json.dumps({
        "tool_name": "call_tool_read", "arguments": {"name": "stub:stats", "args": {}}, "intent": {"operation_type": "read"},
    }).encode()

    def __init__(self, page, folder, net, programs, spaces=None):
        self.page, self.folder, self.net, self.spaces = page, folder, net, spaces or {}
        self.config = None
        (folder / "bin").mkdir(parents=True)
        for name, path in programs.items():
            (folder / "bin" / name).symlink_to(path)
        self.stub = programs["stub"]
        self.environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
        self.api_key = None
        self.stores, self.nodes, self.balancer = {}, {}, None

    def root(self, at):
        return self.folder / f"m{at}"

    def moved(self, text, at):
        return moved(text, self.net, self.root(at))

    def shell(self, text, at, **more):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], env=self.environment | more, capture_output=True, text=True,
            timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Failed(f"{text}\nexits with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def all(self):
        return [*self.stores.values(), *self.nodes.values()]

    def kill(self):
        for ran in [*self.nodes.values(), self.balancer, *self.stores.values()]:
            if ran:
                ran.kill()

    # The steps of the page

    def secrets(self):
        first = self.root(1)
        first.mkdir()
        self.shell(self.moved(self.page.take("sh", "openssl rand"), 1), 1)
        for at in (*NODES[1:], *STORES):
            shutil.copytree(first / "etc", self.root(at) / "etc")
        self.api_key = (first / "etc/mcpproxy/api_key").read_text().strip()
        given = dict(line.split("=", 1) for line in (first / "etc/mcpproxy/store.env").read_text().splitlines())
        # Requests from outside use only the balancer.
        self.outside = self.environment | given
        for at in NODES:
            file = self.root(at) / "etc/mcpproxy/store.env"
            file.write_text(file.read_text().replace(f"{self.net}.9:", f"{self.net}.{100 + at}:"))

    def store(self):
        text, own, ids = self.page.take("toml", "replication_factor"), f"{self.net}.11", {}
        for at in STORES:
            lines = [
                line.replace(f'"{own}:', f'"{self.net}.{at}:') if "_addr = " in line else line
                for line in self.moved(text, at).splitlines()
            ]
            config = self.root(at) / "etc/garage.toml"
            config.write_text("\n".join(lines) + "\n")
            (self.root(at) / "var/lib/garage").mkdir(parents=True)
            environment = self.environment | {"GARAGE_CONFIG_FILE": str(config), "RUST_LOG": "garage=info"}
            name = f"store {at - 10}"
            self.stores[at] = Ran(name, f"{self.net}.{at}", ["garage", "server"], environment, self.folder / f"{name}.log")
            self.stores[at].start()

            def known():
                with contextlib.suppress(Failed):
                    ids[f"ID{at - 10}"] = self.shell("garage node id -q", at, GARAGE_CONFIG_FILE=str(config)).strip()
                    return True

            until(known, self.stores[at].words)
            self.stores[at].stop()
        for at in STORES:
            config = self.root(at) / "etc/garage.toml"
            text = config.read_text()
            for name, said in ids.items():
                where = f"{name}@{self.net}.{10 + int(name[2:])}:3901"
                if where not in text:
                    raise Failed(f"{where} is not among the bootstrap peers")
                text = text.replace(where, said)
            config.write_text(text)
            self.stores[at].start()
        more = ids | {"GARAGE_CONFIG_FILE": str(self.root(11) / "etc/garage.toml")} | {
            name: self.outside[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}

        def joined():
            said = self.shell("garage status 2>/dev/null || true", 11, **more)
            return all(it.split("@")[0][:16] in said.split("FAILED")[0] for it in ids.values())

        until(joined, lambda: "the store's nodes have found each other: " + self.shell("garage status 2>&1 || true", 11, **more))
        self.shell(self.moved(self.page.take("sh", "garage layout apply"), 11), 11, **more)

    def balance(self):
        folder = self.root(9)
        folder.mkdir()
        text = self.moved(self.page.take("nginx", "upstream nodes"), 9)
        # nginx's folders for data that does not fit into memory.
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        (folder / "nginx.conf").write_text(text.replace("http {\n", "http {\n" + temporary, 1))
        command = ["nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", "stderr",
                   "-g", f"daemon off; master_process off; pid {folder}/pid;"]
        self.balancer = Ran("nginx", f"{self.net}.9", command, self.environment, self.folder / "nginx.log")
        self.balancer.start()

    def configured(self, at, more, alone=False):
        text = self.moved(self.config, at).replace(f"{self.net}.1\"", f"{self.net}.{at}\"").replace(
            f"{self.net}.1:", f"{self.net}.{at}:")
        config = json.loads(text)
        if config["mcpServers"] or config["cluster"]["node"] != "a":
            raise Failed("the page's config is not that of the first node")
        config["mcpServers"] = {"stub": {"command": str(self.stub), "args": ["stdio"]}}
        config["cluster"]["node"] = NAMES[at]
        config |= more
        if alone:
            del config["cluster"]
        file = self.root(at) / "etc/mcpproxy/mcp_config.json"
        file.touch(0o600)
        file.write_text(json.dumps(config))

    def node(self, at):
        serve = self.moved(self.serve, at)
        command = [*self.spaces.get(at, ()), "bash", "-euo", "pipefail", "-c", serve]
        ran = Ran(NAMES[at], f"{self.net}.{at}", command, self.environment, self.folder / f"node {NAMES[at]}.log")
        self.nodes[at] = ran
        return ran

    def machines(self):
        self.config, self.serve = self.page.take("json", "cluster"), self.page.take("sh", "serve")
        # One machine, before it belongs to a fleet.
        self.configured(1, {}, alone=True)
        first = self.node(1)
        first.start()
        self.ready(first)
        for _ in range(5):
            self.called(first)
        first.stop()
        for at in NODES:
            self.configured(at, {})
            self.node(at).start()
            self.ready(self.nodes[at])

    def looked_at(self):
        """The last step: the status of the fleet."""
        text = self.page.take("sh", "fleet status")
        if self.page.unused:
            raise Failed(f"nobody runs the page's blocks {sorted(self.page.unused)}")

        def well():
            self.looked = subprocess.run(
                [*self.spaces.get(1, ()), "bash", "-euo", "pipefail", "-c", self.moved(text, 1)], env=self.environment,
                capture_output=True, text=True, timeout=COMMAND_SECONDS)
            return self.looked.returncode == 0

        until(well, lambda: f"the page's last step: {self.looked.stdout}{self.looked.stderr}")

    # Requests

    def ready(self, ran):
        def answers():
            if ran.process.poll() is not None:
                raise Failed(f"has ended: {ran.words()}")
            return self.get(ran, "/readyz")[0] == 200

        until(answers, lambda: f"{ran.words()}\n{self.get(ran, '/readyz')}")

    def get(self, ran, path, body=None, method=None, token=None):
        """Status and answer, with the API key or the given token. Without an answer, None and the reason."""
        headers = {"X-API-Key": token or self.api_key, "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{ran.address}:8080{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, ValueError) as error:
            return None, str(error)

    def called(self, ran):
        status, answer = self.get(ran, "/api/v1/tools/call", self.CALL)
        if status != 200 or not answer["success"]:
            raise Failed(f"{ran.name} answers {status} {answer}")


def until(true, text, seconds=READY_SECONDS):
    end = time.monotonic() + seconds
    while not true():
        if ENDS.wait(0.1):
            raise Failed("ended")
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {text()}")
