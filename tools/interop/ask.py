"""Sends the calls to the servers, directly and through the proxy, and collects the recordings of the taps."""

import contextlib
import json
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import peers
import wire
from stage import END_SECONDS, HERE, WORK, Failed
from stage import alive, free_port, fresh, started, tapped, wait_for
from taps import HttpTap, StdioTap

API_KEY = "interop-key-of-more-than-thirty-two-characters"
CLIENT_SECONDS = 300
LOOK_SECONDS = 10
# Maximum length of a client's error text that is shown.
SAID = 2000
RECORDS = ("tool_call", "policy_decision")
# Arguments in the spelling of the clients.
COMPACT = {"ensure_ascii": False, "separators": (",", ":")}


@dataclass
class Answers:
    """Results of a run through the proxy, by the name of the server.

    `got` has the bytes that reached the client, `gave` those that the server sent to the proxy, `read` the client's
    interpretation, `checks` the outcomes of further checks: subject, check, problem.
    """

    got: dict = field(default_factory=dict)
    gave: dict = field(default_factory=dict)
    read: dict = field(default_factory=dict)
    checks: list = field(default_factory=list)


class Direct:
    """The servers' answers with only a tap between server and client; each server is asked once."""

    def __init__(self, place: peers.Place):
        self.place = place
        self.known = {}

    def answers(self, client: peers.Client, server: peers.Server, gave: list[wire.Call]):
        """The direct answers for this client, in the protocol family in which the server `gave` its answers to the
        proxy.

        In the modern family a server may send more (`resultType`). Not every client can speak it, so in that family the
        answers to the first client are used; the bytes are the server's in any case.
        """
        modern = any(each.modern for each in gave)
        client = peers.clients(self.place, HERE)[0] if modern or not client.direct else client
        mode = "auto" if modern else "legacy"
        key = (client.name, server.name, mode)
        if key not in self.known:
            self.known[key] = ask_directly(self.place, client, server, mode)
        return self.known[key]


def ask_directly(place: peers.Place, client: peers.Client, server: peers.Server, mode: str):
    place.reset()
    folder = fresh(WORK / "direct" / client.name / server.name / mode)
    asked = [each for each in server.checks if each.direct]
    plan = {"calls": [{"name": each.tool, "arguments": each.arguments} for each in asked]}
    with tapped(server, folder / "tap") as tap:
        if server.http:
            plan["url"] = f"http://127.0.0.1:{tap.port}/mcp"
        else:
            plan |= {"command": tap.command(server.argv), "env": server.env}
        run_client(client, {"mode": mode, **plan}, folder)
        calls = tap.calls()
    if len(calls) != len(asked):
        raise Failed(f"{server.name}, directly: {len(calls)} of {len(asked)} calls made")
    return calls


def ask_through(place, client, servers, route: str, binary: Path) -> Answers:
    """The answers of all servers to this client, through one mcpproxy."""
    place.reset()
    folder = fresh(WORK / "through" / client.name / route)
    answers = Answers()
    with contextlib.ExitStack() as stack:
        taps = {s.name: stack.enter_context(tapped(s, folder / s.name)) for s in servers}
        port = free_port()
        config = write_config(folder, servers, taps, port)
        proxy = None
        plan = {"mode": client.mode, "calls": [ask for s in servers for ask in variants(s)]}
        # A client that uses `initialize` cannot read the request for input that one of the servers answers.
        plan["offers"] = client.mode != "legacy" and any(server.offers for server in servers)
        if route == "http":
            argv = [str(binary), "serve", "--config", str(config)]
            proxy = stack.enter_context(started(argv, folder / "mcpproxy.log"))
            unready = f"mcpproxy is not ready, see {folder}/mcpproxy.log"
            wait_for(Rest(port).ready, proxy, unready)
            # A server that was slow to start is tried again.
            connected = lambda: not Rest(port).absent()
            wait_for(connected, proxy, f"a server is not connected, see {folder}/mcpproxy.log")
            tap = HttpTap(port)
            stack.callback(tap.close)
            plan["url"] = f"http://127.0.0.1:{tap.port}/mcp"
        else:
            tap = StdioTap(folder / "downstream")
            plan["command"] = tap.command([str(binary), "stdio", "--config", str(config)])
            plan["until"] = [variants(s)[0] for s in servers]
        seen = run_client(client, plan, folder)
        # The calls of the plan are the last ones; earlier calls waited for the servers.
        calls = tap.calls()[-len(plan["calls"]) :]
        if len(calls) != len(plan["calls"]):
            made = f"{len(calls)} of {len(plan['calls'])} calls made"
            raise Failed(f"{client.name} over {route}: {made}")
        for server in servers:
            count = len(server.checks)
            answers.got[server.name], calls = calls[:count], calls[count:]
            answers.read[server.name], seen = seen[:count], seen[count:]
            sent = sum(each.outcome != peers.REFUSED for each in server.checks)
            answers.gave[server.name] = taps[server.name].calls()[-sent:]
        if proxy:
            answers.checks += recorded(servers, RECORDS, Rest(port).records)
            proxy.terminate()
        left = still_there(proxy, [tap, *taps.values()])
        answers.checks.append(("all", "ends, and its children", left))
        if not proxy:
            # The calls that waited for their servers are also recorded, so the number of calls is not compared.
            answers.checks += recorded(servers, RECORDS[1:], Cli(binary, config).records)
    return answers


def run_client(client: peers.Client, plan: dict, folder: Path) -> list[dict]:
    """Runs the client with the plan. Returns its interpretation of each answer."""
    path = folder / "plan.json"
    path.write_text(json.dumps({"mode": "legacy", "until": [], **plan}, indent=1))
    try:
        argv = [*client.argv, str(path)]
        done = subprocess.run(argv, capture_output=True, timeout=CLIENT_SECONDS)
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"").decode()[-SAID:]
        raise Failed(f"{client.name} did not end, see {path}\n{said}") from None
    (folder / "client.log").write_bytes(done.stderr)
    if done.returncode != 0:
        raise Failed(f"{client.name} failed, see {path}\n{done.stderr.decode()[-SAID:]}")
    return json.loads(done.stdout.splitlines()[-1])


def write_config(folder: Path, servers, taps, port: int) -> Path:
    def entry(server: peers.Server) -> dict:
        tap = taps[server.name]
        if server.http:
            return {"url": f"http://127.0.0.1:{tap.port}/mcp", **server.settings}
        command, *args = tap.command(server.argv)
        return {"command": command, "args": args, "env": server.env, **server.settings}

    config = {
        "listen": f"127.0.0.1:{port}",
        "data_dir": str(folder / "data"),
        "api_key": API_KEY,
        # The servers' own messages about invalid arguments are compared as well.
        "input_validation": {"mode": "off"},
        "mcpServers": {server.name: entry(server) for server in servers},
    }
    path = folder / "mcp_config.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path


def variants(server: peers.Server) -> list[dict]:
    """The checks as calls of the proxy's tools; the two ways to write arguments and intent alternate."""
    calls = []
    for number, check in enumerate(server.checks):
        asked = {"name": f"{server.name}:{check.tool}"}
        if number % 2:
            asked["args_json"] = json.dumps(check.arguments, **COMPACT)
            asked["intent_operation_type"] = check.variant
        else:
            asked["args"] = check.arguments
            asked["intent"] = {"operation_type": check.variant, "reason": "interop"}
        calls.append({"name": f"call_tool_{check.variant}", "arguments": asked})
    return calls


@dataclass
class Rest:
    """The running proxy, queried over REST."""

    port: int

    def get(self, path: str) -> dict:
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, headers={"X-API-Key": API_KEY})
        with urllib.request.urlopen(request, timeout=LOOK_SECONDS) as response:
            return json.load(response)

    def ready(self) -> bool:
        try:
            self.get("/readyz")
            return True
        except OSError:
            return False

    def absent(self) -> dict:
        """The servers that are not connected, each with the reason."""
        servers = self.get("/readyz")["servers"]
        return {each["name"]: each["reason"] for each in servers if each["state"] != "connected"}

    def records(self, server: str, kind: str) -> list:
        query = f"/api/v1/activity?server={server}&type={kind}&limit=100"
        return self.get(query)["data"]["activities"]


@dataclass
class Cli:
    """State left by a proxy that has ended, queried on the command line."""

    binary: Path
    config: Path

    def records(self, server: str, kind: str) -> list:
        argv = [self.binary, "activity", "list", "--config", self.config, "-o", "json"]
        argv += ["--server", server, "--type", kind, "--limit", "100"]
        return json.loads(subprocess.check_output(argv, timeout=LOOK_SECONDS))["activities"]


def recorded(servers, kinds, records):
    """Whether the log holds a record for each call and for each decision, server by server."""
    for server in servers:
        expected = {
            "tool_call": len(server.checks),
            "policy_decision": sum(each.decisions for each in server.checks),
        }
        wanted = {kind: expected[kind] for kind in kinds}
        check = "on record: " + ", ".join(f"{n} {kind}" for kind, n in wanted.items())
        try:
            found = {kind: len(records(server.name, kind)) for kind in kinds}
        except (OSError, subprocess.SubprocessError, ValueError) as failure:
            found = failure
        yield server.name, check, "" if found == wanted else f"found: {found}"


def still_there(proxy: subprocess.Popen | None, taps: list) -> str:
    """Processes of the proxy and its children that still run after a while, or the exit code if it is not 0."""
    deadline = time.monotonic() + END_SECONDS
    pids = [pid for tap in taps if isinstance(tap, StdioTap) for pid in tap.pids()]
    while proxy and proxy.poll() is None or any(map(alive, pids)):
        if time.monotonic() > deadline:
            left = [pid for pid in pids if alive(pid)]
            return f"after {END_SECONDS} s: exit code {proxy and proxy.poll()}, children {left}"
        time.sleep(0.05)
    return f"exit code {proxy.returncode}" if proxy and proxy.returncode else ""
