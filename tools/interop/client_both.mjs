// client_both.mjs PLAN.json: makes the plan's calls with the npm client of both eras, one after
// another. The plan and what is printed: see client.py.

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, ProtocolError, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const TIMEOUT = { timeout: 30_000 };
const READY_MS = 60_000;

const plan = JSON.parse(await readFile(process.argv[2], "utf8"));
const [command, ...args] = plan.command ?? [];
const transport = plan.url
  ? new StreamableHTTPClientTransport(new URL(plan.url))
  : new StdioClientTransport({ command, args, env: { ...process.env, ...plan.env } });
const found = ["legacy", "auto"].includes(plan.mode);
const mode = found ? plan.mode : { pin: plan.mode };
const client = new Client({ name: "interop", version: "1" }, { versionNegotiation: { mode } });
await client.connect(transport, TIMEOUT);

async function read(params) {
  try {
    const result = await client.callTool(params, TIMEOUT);
    return { as: "result", isError: result.isError === true };
  } catch (error) {
    const kind = error instanceof ProtocolError ? "error" : "refused by the client";
    return { as: kind, message: String(error.message) };
  }
}

// What the client refuses to read is an answer.
const ready = (answer) => answer.as === "refused by the client" || answer.isError === false;

const deadline = Date.now() + READY_MS;
for (const probe of plan.until) {
  while (!ready(await read(probe)) && Date.now() < deadline) await sleep(100);
}
const seen = [];
for (const params of plan.calls) seen.push(await read(params));
console.log(JSON.stringify(seen));
await client.close();
