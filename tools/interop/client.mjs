// client.mjs PLAN.json: makes the plan's calls with the npm SDK's client, one after another. For the plan and the
// output see client.py.

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { McpError } from "@modelcontextprotocol/sdk/types.js";

const TIMEOUT = { timeout: 30_000 };
const READY_MS = 60_000;

const plan = JSON.parse(await readFile(process.argv[2], "utf8"));
const [command, ...args] = plan.command ?? [];
const transport = plan.url
  ? new StreamableHTTPClientTransport(new URL(plan.url))
  : new StdioClientTransport({ command, args, env: { ...process.env, ...plan.env } });
const client = new Client({ name: "interop", version: "1" });
await client.connect(transport, TIMEOUT);

const call = (params) => client.callTool(params, undefined, TIMEOUT);
const deadline = Date.now() + READY_MS;
for (const probe of plan.until) {
  while ((await call(probe)).isError && Date.now() < deadline) await sleep(100);
}
const seen = [];
for (const params of plan.calls) {
  try {
    const result = await call(params);
    seen.push({ as: "result", isError: result.isError === true });
  } catch (error) {
    const kind = error instanceof McpError ? "error" : "refused by the client";
    seen.push({ as: kind, message: String(error.message) });
  }
}
console.log(JSON.stringify(seen));
await transport.terminateSession?.();
await client.close();
