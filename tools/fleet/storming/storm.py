"""The phases: the faults that are caused, and the checks that all guarantees hold afterwards."""

import asyncio
import json
import random
import signal
import subprocess
import time

from .between import FAULTS, Between
from .ledger import Ledger
from .load import Load, quantile
from .machines import ENDS, NODES, Failed, Ground
from .page import Page

# Records that a node may lose although it had answered their calls, by `activity.durability`.
WINDOW_SECONDS = {"grouped": 0.050, "fleet": 0.0}
BEFORE_SECONDS, DEAD_SECONDS, AFTER_SECONDS, FAULT_SECONDS = 2, 7, 3, 14
# With durability fleet no call is acknowledged after this time without a store.
REPLY_SECONDS = 10
LEDGER_SECONDS = 120
# Time within which the other nodes apply a change of a token at one node.
FACT_SECONDS = 2
# A stream may end a moment later than the node or connection on which it depends.
STREAM_SECONDS = 1
COLUMNS = ("calls", "acknowledged", "in ledger", "excused", "missing", "twice", "sessions lost", "streams", "p50 ms", "p99 ms")


class Hit:
    """A fault: its kind, its target, and its beginning and end."""

    def __init__(self, address=None):
        self.address, self.killed, self.began, self.ended = address, None, time.monotonic(), None


class Storm:
    def __init__(self, options, page, folder, net, programs, spaces):
        self.options, self.random = options, random.Random(options.seed)
        self.ground = Ground(Page(page), folder, net, programs, spaces)
        self.durability, self.rows, self.betweens, self.load, self.ledger = "grouped", [], {}, None, None

    async def run(self, phases):
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await self.build()
            for phase in phases:
                await getattr(self, phase)()
        finally:
            ENDS.set()
            if self.load:
                await self.load.end()
            self.report()
        return all(not row["failed"] for row in self.rows)

    async def build(self):
        ground, began = self.ground, time.monotonic()
        ground.secrets()
        await asyncio.to_thread(ground.store)
        ground.balance()
        for at in NODES:
            self.betweens[at] = Between(f"{ground.net}.{100 + at}", (f"{ground.net}.9", 3900))
            await self.betweens[at].start()
        await asyncio.to_thread(ground.machines)
        await asyncio.to_thread(ground.looked_at)
        self.ledger = Ledger(
            f"http://{ground.net}.9:3900", ground.outside, ground.folder / "copy", ground.folder / "bin/mcpproxy")
        options = self.options
        self.load = Load(f"{ground.net}.9", 8080, ground.api_key, options.clients, options.pause, options.seed)
        self.load.go()
        say(f"the page's steps have built it in {time.monotonic() - began:.0f} s; {options.clients} clients call")
        await asyncio.sleep(BEFORE_SECONDS)

    # Phases

    async def kill(self):
        """Half of the rounds; all of them if the other half is not requested."""
        rounds = self.options.rounds
        await self.kills("kill", rounds - rounds // 2 if "fleet" in self.options.phases else rounds)

    async def fleet(self):
        await self.restarted("fleet")
        rounds = self.options.rounds
        await self.kills("fleet", rounds // 2 if "kill" in self.options.phases else rounds)
        # Only calls whose records are in the bucket are acknowledged: if the store accepts nothing, none is.
        since = self.begin()
        self.fault("full")
        hit = Hit()
        await asyncio.sleep(REPLY_SECONDS + 2)
        dry = len(self.load.calls)
        await asyncio.sleep(FAULT_SECONDS - REPLY_SECONDS)
        late = [call for call in self.load.calls[dry:] if call.acknowledged]
        self.fault(None)
        hit.ended = time.monotonic()
        await asyncio.sleep(AFTER_SECONDS + 5)
        more = [f"{len(late)} calls were acknowledged by nobody's store"] if late else []
        await self.judge("fleet: full", since, hit, more, others=False)
        await self.restarted("grouped")

    async def kills(self, phase, rounds):
        victims = []
        for number in range(1, rounds + 1):
            if not victims:
                victims = self.ground.all()
                self.random.shuffle(victims)
            victim, since = victims.pop(), self.begin()
            await asyncio.sleep(BEFORE_SECONDS)
            hit = Hit(victim.address)
            hit.killed = time.monotonic()
            victim.kill()
            await asyncio.sleep(DEAD_SECONDS)
            more = await self.ahead(since, victim) if self.durability == "fleet" else []
            victim.start()
            if victim in self.ground.nodes.values():
                await asyncio.to_thread(self.ground.ready, victim)
            hit.ended = time.monotonic()
            await asyncio.sleep(AFTER_SECONDS)
            await self.judge(f"{phase} {number}: {victim.name}", since, hit, more)

    async def ahead(self, since, victim):
        """With durability fleet: the calls that a dead node has acknowledged are in the bucket, without its own log."""
        await asyncio.to_thread(self.ledger.read)
        calls = [call for call in self.load.calls[since[0]:] if call.acknowledged and call.node == victim.address]
        missing = [call.mark for call in calls if not self.ledger.marks[call.mark]]
        return [f"acknowledged by the dead node, and not in the bucket: {missing[:5]}"] if missing else []

    async def store(self):
        for number, fault in enumerate(it for it in FAULTS if it not in ("forgets", "lies")):
            since, met = self.begin(), self.met()
            # A node with records that are not in the store is killed and restarted while the fault of the store lasts.
            victim = self.ground.nodes[NODES[number % len(NODES)]]
            self.fault(fault)
            hit = Hit(victim.address)
            await asyncio.sleep(FAULT_SECONDS / 2)
            hit.killed = time.monotonic()
            victim.kill()
            await asyncio.sleep(1)
            victim.start()
            await asyncio.sleep(FAULT_SECONDS / 2)
            more = [] if self.met() > met else ["nothing met the fault"]
            self.fault(None)
            await asyncio.to_thread(self.ground.ready, victim)
            hit.ended = time.monotonic()
            await asyncio.sleep(AFTER_SECONDS)
            await self.judge(f"store: {fault}", since, hit, more)

    async def partition(self):
        ground = self.ground
        for number, (name, cut) in enumerate((("a from the store", "store"), ("b from the others", "others"), ("c from both", "both"))):
            at = NODES[number]
            node, since = ground.nodes[at], self.begin()
            rules = []
            if cut in ("store", "both"):
                rules += [["OUTPUT", "-d", f"{ground.net}.{100 + at}"], ["INPUT", "-s", f"{ground.net}.{100 + at}"]]
            if cut in ("others", "both"):
                for other in NODES:
                    if other != at:
                        rules += [["OUTPUT", "-d", f"{ground.net}.{other}"], ["INPUT", "-s", f"{ground.net}.{other}"]]
            hit = Hit(node.address)
            for rule in rules:
                self.iptables(at, "-A", rule)
            await asyncio.sleep(FAULT_SECONDS)
            more = []
            if cut != "others":
                # This node alone has the records of the calls that it has answered since.
                self.load.goes.clear()
                await self.load.rest()
                await asyncio.sleep(0.2)
                held = [call for call in self.load.calls[since[0]:] if call.acknowledged and call.node == node.address]
                await asyncio.to_thread(self.ledger.read)
                held = [call for call in held if not self.ledger.marks[call.mark] and call.began > hit.began + 6]
                if not held:
                    more.append("the cut node held nothing alone: nothing was tried")
                node.kill()
                node.start()
                await asyncio.sleep(1)
                self.load.go()
                await asyncio.sleep(3)
                say(f"   {node.name} alone holds {len(held)} acknowledged calls, and is killed and started, still cut")
            for rule in rules:
                self.iptables(at, "-D", rule)
            await asyncio.to_thread(ground.ready, node)
            hit.ended = time.monotonic()
            await asyncio.sleep(AFTER_SECONDS)
            await self.judge(f"partition: {name}", since, hit, more)

    def iptables(self, at, what, rule):
        subprocess.run([*self.ground.spaces[at], "iptables", what, *rule, "-j", "DROP"], check=True, capture_output=True)

    async def forget(self):
        # The store confirms an upload, but reports that the object is missing: the node detects and reports this, and
        # uploads again.
        since, met, node = self.begin(), self.betweens[1].met, self.ground.nodes[1]
        self.betweens[1].fault = "forgets"
        hit = Hit(node.address)
        await asyncio.sleep(FAULT_SECONDS)
        said = await asyncio.to_thread(self.faults, node)
        say(f"   {node.name} tells: {said}")
        more = [] if self.betweens[1].met > met else ["nothing met the fault"]
        if not any("segment" in fault or "the fleet's store" in fault for fault in said):
            more.append(f"the node's status says nothing of it: {said}")
        self.betweens[1].fault = None
        hit.ended = time.monotonic()
        await asyncio.sleep(AFTER_SECONDS)
        await self.judge("forget: at once", since, hit, more)
        # The store confirms an upload, and reports that the object exists. The loss can be detected only by reading the
        # object; then it is reported by name.
        since = self.begin()
        between = self.betweens[1]
        between.fault = "lies"
        hit = Hit(node.address)
        await asyncio.sleep(FAULT_SECONDS)
        between.fault = None
        hit.ended = time.monotonic()
        await asyncio.sleep(AFTER_SECONDS + 6)
        await self.judge("forget: later", since, hit, lost=between.forgotten)

    async def facts(self):
        """A token is created at one node, then revoked at another. Measures the time until the third node accepts it,
        and until it refuses it.
        """
        nodes, taken, refused = list(self.ground.nodes.values()), [], []
        for number in range(self.options.rounds):
            name = f"told-{number}"
            self.random.shuffle(nodes)
            maker, revoker, third = nodes
            status, made = await asyncio.to_thread(self.ground.get, maker, "/api/v1/tokens", json.dumps({"name": name}).encode())
            if status != 200:
                raise Failed(f"{maker.name} makes no token: {status} {made}")
            taken.append(await self.until_it_answers(third, made["data"]["token"], 200))
            await self.until_it_answers(revoker, made["data"]["token"], 200)
            status, said = await asyncio.to_thread(self.ground.get, revoker, f"/api/v1/tokens/{name}", method="DELETE")
            if status != 200:
                raise Failed(f"{revoker.name} revokes nothing: {status} {said}")
            refused.append(await self.until_it_answers(third, made["data"]["token"], 401))
        for what, times in (("a token is taken", taken), ("a revoked one is refused", refused)):
            failed = [f"it took more than {FACT_SECONDS} s"] if max(times) > FACT_SECONDS else []
            self.rows.append({"name": f"facts: {what}"} | dict.fromkeys(COLUMNS, "") | {
                "calls": len(times), "p50 ms": round(quantile(times, 0.5) * 1000), "p99 ms": round(max(times) * 1000),
                "failed": failed})
            say(f"{what} by another node after {quantile(times, 0.5):.2f} s (half of {len(times)}), {max(times):.2f} s (the longest)")
            for why in failed:
                say(f"   FAILED: {why}")

    async def until_it_answers(self, node, token, wanted):
        """The seconds until a call with this token gets this status."""
        began = time.monotonic()
        while True:
            status, said = await asyncio.to_thread(self.ground.get, node, "/api/v1/tools/call", Ground.CALL, token=token)
            took = time.monotonic() - began
            if status == wanted:
                return took
            if took > 10 * FACT_SECONDS:
                raise Failed(f"{node.name} answers {status} {said} after {took:.0f} s, not {wanted}")
            await asyncio.sleep(0.02)

    async def restarted(self, durability):
        """All nodes, with this durability."""
        await self.load.rest()
        self.durability = durability
        for at in NODES:
            node = self.ground.nodes[at]
            await asyncio.to_thread(node.stop)
            self.ground.configured(at, {"activity": {"durability": durability}})
            node.start()
            await asyncio.to_thread(self.ground.ready, node)
        self.load.go()
        await asyncio.sleep(BEFORE_SECONDS)

    # Checks after each round

    def begin(self):
        load = self.load
        return len(load.calls), len(load.lost), len(load.breaks)

    def fault(self, fault):
        for between in self.betweens.values():
            between.fault = fault

    def met(self):
        return sum(between.met for between in self.betweens.values())

    async def judge(self, name, since, hit, more=(), lost=None, others=True):
        load, ledger, failed = self.load, self.ledger, list(more)
        load.goes.clear()
        await load.rest()
        calls = load.calls[since[0]:]
        acknowledged = [call for call in calls if call.acknowledged]
        window = WINDOW_SECONDS[self.durability]

        def excused(call):
            return hit.killed is not None and call.node == hit.address and window and (
                hit.killed - window <= call.ended <= hit.killed + 1)

        owed = [call for call in acknowledged if not excused(call)]
        end = time.monotonic() + LEDGER_SECONDS
        while True:
            try:
                await asyncio.to_thread(ledger.read)
            except Exception as error:  # The store is queried again until the time is over.
                if time.monotonic() > end:
                    raise Failed(f"the bucket cannot be read: {error}") from error
            missing = [call for call in owed if not ledger.marks[call.mark]]
            # Records that the store has lost are not waited for. Later records of the same node are there once those of
            # the others are.
            awaited = [call for call in missing if lost is None or call.node != hit.address]
            if not awaited or time.monotonic() > end:
                break
            await asyncio.sleep(0.5)
        sound, report = await asyncio.to_thread(ledger.verify)
        if lost is None:
            if missing:
                failed.append(f"missing: {[(call.mark, call.node, round(call.ended - hit.began, 3)) for call in missing[:5]]}")
            if not sound:
                failed.append(f"not sound: {json.dumps(report)[:2000]}")
        else:
            self.told(failed, missing, lost, report, sound)
        twice = [call.mark for call in calls if ledger.marks[call.mark] > 1]
        if twice:
            failed.append(f"twice: {twice[:5]}")
        sessions = load.lost[since[1]:]
        if sessions:
            failed.append(f"sessions lost: {[(round(at - hit.began, 2), *rest) for at, *rest in sessions[:5]]}")
        breaks = load.breaks[since[2]:]
        foreign = [it for it in breaks if hit.address not in it[1:]]
        if foreign:
            failed.append(f"streams that hung on no node that was hit: {[(round(at - hit.began, 2), *rest) for at, *rest in foreign[:5]]}")
        during = [
            call for call in calls
            if call.acknowledged and call.node != (hit.address if others else None) and call.began < hit.ended
            and call.ended > (hit.killed or hit.began)]
        times = [(call.ended - call.began) * 1000 for call in during]
        p50, p99 = quantile(times, 0.5), quantile(times, 0.99)
        if not during and others:
            failed.append("the others answered nothing")
        if others and p99 > self.options.p99:
            failed.append(f"p99 is above {self.options.p99:.0f} ms")
        stored = sum(bool(ledger.marks[call.mark]) for call in acknowledged)
        row = dict(zip(COLUMNS, (
            len(calls), len(acknowledged), stored, len(acknowledged) - len(owed), len(missing), len(twice), len(sessions),
            len(breaks), round(p50, 1), round(p99, 1))))
        self.rows.append(row | {"name": name, "failed": failed})
        say(f"{name}: {', '.join(f'{value} {column}' for column, value in row.items())}"
            f"{', all chains verify' if sound else ''}; {json.dumps(dict(load.errors))}")
        for why in failed:
            say(f"   FAILED: {why}")
        load.errors.clear()
        load.go()

    def told(self, failed, missing, lost, report, sound):
        """Checks that the objects lost by the store are named, and that nothing else is wrong."""
        if not lost:
            failed.append("the store has forgotten nothing: nothing was tried")
        if sound:
            failed.append("what the store has forgotten is not told")
        for node in report.get("nodes", []):
            faults = [fault["fault"] for fault in node["faults"]]
            if node["node"] == "a" and "removed" not in faults or node["node"] != "a" and faults:
                failed.append(f"{node['node']}: {faults}")
        strangers = [call.mark for call in missing if call.node != self.ground.nodes[1].address]
        if strangers:
            failed.append(f"missing of others: {strangers[:5]}")
        said = self.faults(self.ground.nodes[2])
        say(f"   {self.ground.nodes[2].name}, an index node, tells: {said}")
        if not any(fault.startswith("node a: ") for fault in said):
            failed.append(f"an index node's status says nothing of it: {said}")

    def faults(self, node):
        """Faults in the status of the node."""
        status, said = self.ground.get(node, "/api/v1/status")
        return [fault["cause"] for fault in said["data"]["faults"]] if status == 200 else [f"{status}: {said}"]

    def report(self):
        wide = max([len(row["name"]) for row in self.rows] or [5])
        print(f"\n{'':{wide}}  " + "  ".join(COLUMNS))
        for row in self.rows:
            cells = "  ".join(f"{row[column]:>{len(column)}}" for column in COLUMNS)
            print(f"{row['name']:{wide}}  {cells}{'  FAILED' if row['failed'] else ''}")
        total = sum(row["calls"] for row in self.rows if not row["name"].startswith("facts"))
        print(f"{len(self.rows)} rounds, {total} calls, seed {self.options.seed}", flush=True)


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
