"""Writes the page of the guide from the cells of tools/interop/matrix."""

import collections
import datetime
from pathlib import Path

from matrix_features import FEATURES, impossible
from matrix_table import ABSENT, FAILS, IMPOSSIBLE, OUTCOMES, PAIRS, PASS, Cell, Table

INTERFACES = ("/mcp", "/mcp/all", "/mcp/server/NAME", "stdio")
HEAD = """\
# Compatibility

After reading this page you know which features of MCP work between which clients and servers through mcpproxy.

Measured on {date} with `tools/interop/matrix --page`:

- Clients: PyPI `mcp` 1.30.0 and npm `@modelcontextprotocol/sdk` 1.32.2 (legacy), PyPI `mcp` 2.3.0 and npm
  `@modelcontextprotocol/client` 2.4.0 (legacy and modern), `fastmcp` 4.2.3 (modern). *Legacy* is `initialize` (up to 2025-11-25), *modern*
  is 2026-07-28.
- Servers: a legacy one on the npm SDK and a modern one on the PyPI SDK, each over HTTP and stdio.
- Interfaces: `/mcp`, `/mcp/all`, `/mcp/server/NAME`, and `mcpproxy stdio`, which shows the same as `/mcp`.

A cell is one feature of one client, interface and server. Of {cells} cells {pass} pass, {fails} fail, {absent} are absent in an SDK, and
{impossible} are impossible. Each column is one pair of a client's family and a server's family. It gives the number of passing cells
among those that are possible and present in the SDKs; – stands for none.

| feature | legacy to legacy | legacy to modern | modern to legacy | modern to modern |
|---|---|---|---|---|
"""
WHY = """
## What is not possible

| feature | client to server | interface | reason | section |
|---|---|---|---|---|
"""
FAILING = """
## What fails

These work without mcpproxy.

| feature | client to server | interface | cells | reason |
|---|---|---|---|---|
"""
MISSING = """
## What an SDK lacks

| feature | client | client to server | cells | reason |
|---|---|---|---|---|
"""

INSPECTOR = """\

## The MCP inspector

`npx @modelcontextprotocol/inspector --cli URL` needs `--transport http` for every path that does not end in `/mcp`. Version 0.15
also replaces such a path: with `http://127.0.0.1:8080/mcp/all` it reaches `/mcp`, lists the proxy's five tools and reports
`Tool 'everything__echo' not found` for a tool of the server `everything`. Version 2.12 keeps the path:

```sh
npx @modelcontextprotocol/inspector@2 --cli http://127.0.0.1:8080/mcp/all --transport http --method tools/list
```

Without an update, reach one server through stdio; there is no such way to `/mcp/all`:

```sh
npx @modelcontextprotocol/inspector --cli --method tools/list -- mcpproxy stdio --server everything
```
"""


def write(table: Table, path: Path):
    counts = table.count()
    date = datetime.date.today().isoformat()
    text = HEAD.format(date=date, cells=len(table.cells), **{name: counts[name] for name in OUTCOMES})
    for feature in FEATURES:
        found = [table.count(feature=feature, pair=pair) for pair in PAIRS]
        text += row(feature, *(shown(each) for each in found))
    text += WHY
    for (feature, reason, section), cells in grouped(table, IMPOSSIBLE, lambda cell: reasons(cell)).items():
        text += row(feature, pairs(cells), interfaces(cells), reason, section)
    for outcome, head in ((FAILS, FAILING), (ABSENT, MISSING)):
        found = grouped(table, outcome, lambda cell: (cell.feature, table.known[cell].entry["reason"] if table.known[cell] else "unknown"))
        text += head if found else ""
        for (feature, reason), cells in found.items():
            where = interfaces(cells) if outcome == FAILS else ", ".join(dict.fromkeys(cell.client for cell in cells))
            middle = (pairs(cells), where) if outcome == FAILS else (where, pairs(cells))
            text += row(feature, *middle, len(cells), reason)
    path.write_text(text + INSPECTOR)


def reasons(cell: Cell) -> tuple:
    found = impossible(cell.feature, *cell.pair, cell.interface)
    return cell.feature, found.reason, found.section


def grouped(table: Table, outcome: str, key) -> dict:
    groups = collections.defaultdict(list)
    for cell in sorted(table.cells, key=lambda cell: list(FEATURES).index(cell.feature)):
        if cell.outcome == outcome:
            groups[key(cell)].append(cell)
    return groups


def row(*columns) -> str:
    return "| " + " | ".join(map(str, columns)) + " |\n"


def shown(counts: collections.Counter) -> str:
    possible = counts[PASS] + counts[FAILS]
    return f"{counts[PASS]} of {possible}" if possible else "–"


def pairs(cells: list[Cell]) -> str:
    found = [pair for pair in PAIRS if any(cell.pair == pair for cell in cells)]
    if len(found) == len(PAIRS):
        return "any"
    return ", ".join(f"{client} to {server}" for client, server in found)


def interfaces(cells: list[Cell]) -> str:
    found = [each for each in INTERFACES if any(cell.interface == each for cell in cells)]
    return "any" if len(found) == len(INTERFACES) else ", ".join(f"`{each}`" for each in found)
