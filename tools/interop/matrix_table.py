"""The cells of tools/interop/matrix: their outcomes, counts, and their entries in matrix.json."""

import collections
from dataclasses import dataclass, field

from matrix_features import FEATURES, NOT_POSSIBLE, impossible

PASS, FAILS, ABSENT, IMPOSSIBLE = OUTCOMES = ("pass", "fails", "absent", "impossible")
# Outcome of a feature that works directly, and of one that client and server lack even within one family.
DIRECTLY = ("", NOT_POSSIBLE)
PAIRS = [(client, server) for client in ("legacy", "modern") for server in ("legacy", "modern")]


@dataclass
class Run:
    """The cells of one client: by interface and server, the reason of each failure, which is empty for features that
    work.
    """

    client: str
    family: str
    cells: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    feature: str
    client: str
    pair: tuple
    interface: str
    server: str
    outcome: str
    why: str

    def __str__(self):
        return f"{self.feature}: {self.client} {self.pair[0]} at {self.interface} to {self.server}"


class Entry:
    """An entry of matrix.json. It applies to the cells that have the members it names."""

    def __init__(self, outcome: str, entry: dict):
        self.outcome, self.entry, self.used = outcome, entry, 0

    def holds_for(self, cell: Cell) -> bool:
        return cell.outcome == self.outcome and self.names(cell)

    def names(self, cell: Cell) -> bool:
        members = {
            "feature": cell.feature,
            "client": cell.client,
            "pair": " to ".join(cell.pair),
            "interface": cell.interface,
            "server": cell.server,
        }
        asked = {key: value if isinstance(value, list) else [value] for key, value in self.entry.items() if key != "reason"}
        return all(members[key] in values for key, values in asked.items())

    def __str__(self):
        return f"{self.outcome} {self.entry}"


class Table:
    def __init__(self, runs: list[Run], known: dict):
        self.entries = [Entry(outcome, each) for outcome in (FAILS, ABSENT) for each in known[outcome]]
        self.direct = {(run.client, run.family, server): cells for run in runs for (interface, server), cells in run.cells.items() if interface == "direct"}
        self.cells = [cell for run in runs for cell in self.cells_of(run)]
        # The entry for each cell that does not pass, or None.
        self.known = {cell: self.entry(cell) for cell in self.cells if cell.outcome in (FAILS, ABSENT)}

    def cells_of(self, run: Run):
        for (interface, server), found in run.cells.items():
            if interface == "direct":
                continue
            family, transport = server.split("-")
            for feature, why in found.items():
                outcome = self.outcome(feature, run, interface, family, transport, why)
                yield Cell(feature, run.client, (run.family, family), interface, server, outcome, why)

    def outcome(self, feature, run, interface, family, transport, why) -> str:
        if impossible(feature, run.family, family, interface):
            return IMPOSSIBLE
        if not why:
            return PASS
        able = self.direct[run.client, run.family, f"{run.family}-{transport}"][feature] in DIRECTLY
        # A server that no client of this run uses directly is assumed to support everything.
        others = [cells[feature] in DIRECTLY for (_, _, server), cells in self.direct.items() if server == f"{family}-{transport}"]
        return FAILS if able and (not others or any(others)) else ABSENT

    def entry(self, cell: Cell) -> Entry | None:
        found = next((each for each in self.entries if each.holds_for(cell)), None)
        if found:
            found.used += 1
        return found

    def count(self, **members) -> collections.Counter:
        chosen = (cell for cell in self.cells if all(getattr(cell, key) == value for key, value in members.items()))
        return collections.Counter(cell.outcome for cell in chosen)

    def show(self, reasons: bool):
        form = "{:<24}" + " {:>19}" * len(PAIRS)
        print("passing, failing, absent and impossible cells, of the client's family to the server's\n")
        print(form.format("feature", *(f"{client} to {server}" for client, server in PAIRS)))
        for feature in FEATURES:
            counts = (self.count(feature=feature, pair=pair) for pair in PAIRS)
            print(form.format(feature, *(" ".join(f"{each[name]:>4}" for name in OUTCOMES) for each in counts)))
        print()
        for cell, entry in self.known.items():
            if entry is None:
                print(f"{cell.outcome.upper()}  {cell}\n    {cell.why}")
            elif reasons:
                print(f"{cell.outcome}  {cell}\n    {entry.entry['reason']}: {cell.why}")

        for entry in self.entries:
            passing = [cell for cell in self.cells if cell.outcome == PASS and entry.names(cell)]
            if passing and entry.used:
                print(f"passes  {len(passing)} cells though matrix.json has {entry}, the first is {passing[0]}")

    def verdict(self, whole: bool) -> int:
        stale = [each for each in self.entries if whole and not each.used]
        for each in stale:
            print(f"matrix.json names what passes: {each}")
        counts = self.count()
        unknown = sum(entry is None for entry in self.known.values())
        print(f"\n{len(self.cells)} cells: " + ", ".join(f"{counts[name]} {name}" for name in OUTCOMES))
        print(f"{unknown} not expected, {len(stale)} entries of matrix.json without a cell")
        return 1 if unknown or stale or not self.cells else 0
