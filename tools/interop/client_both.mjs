// client_both.mjs PLAN.json: makes the plan's calls with the npm client of both protocol families, one after another.
// For the plan and the output see client.py. It also reads the items other than tools, and fails if the client refuses
// an answer: these items have no schema except that of the protocol.

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  ProtocolError,
  SdkError,
  SdkErrorCode,
  StreamableHTTPClientTransport,
} from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const TIMEOUT = { timeout: 30_000 };
const READY_MS = 60_000;
// Maximum number of resources, and of prompts, that are read.
const MOST = 100;

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

// A server's own error is an answer, and so is its request for input, which this client cannot satisfy.
const unfulfilled = (error) =>
  error instanceof SdkError && error.code === SdkErrorCode.CapabilityNotSupported;

async function readable(what, asked) {
  try {
    await asked;
    return true;
  } catch (error) {
    if (error instanceof ProtocolError || unfulfilled(error)) return false;
    throw new Error(`${what}: ${error.message}`);
  }
}

// Number of answers that are not errors.
async function readOffers() {
  const offered = client.getServerCapabilities() ?? {};
  let count = 0;
  const read = async (what, asked) => (count += await readable(what, asked));
  if (offered.resources) {
    const { resources } = await client.listResources({}, TIMEOUT);
    await client.listResourceTemplates({}, TIMEOUT);
    for (const { uri } of resources.slice(0, MOST)) {
      await read(uri, client.readResource({ uri }, TIMEOUT));
    }
  }
  if (offered.prompts) {
    const { prompts } = await client.listPrompts({}, TIMEOUT);
    for (const { name, arguments: takes = [] } of prompts.slice(0, MOST)) {
      const given = Object.fromEntries(takes.map((argument) => [argument.name, "1"]));
      await read(name, client.getPrompt({ name, arguments: given }, TIMEOUT));
      if (offered.completions && takes.length > 0) {
        const argument = { name: takes[0].name, value: "" };
        const ref = { type: "ref/prompt", name };
        await read(`complete ${name}`, client.complete({ ref, argument }, TIMEOUT));
      }
    }
  }
  return count;
}

// An answer that the client refuses to read is an answer.
const ready = (answer) => answer.as === "refused by the client" || answer.isError === false;

const deadline = Date.now() + READY_MS;
for (const probe of plan.until) {
  while (!ready(await read(probe)) && Date.now() < deadline) await sleep(100);
}
const seen = [];
for (const params of plan.calls) seen.push(await read(params));
if (plan.offers && (await readOffers()) === 0) throw new Error("nothing that is offered was read");
console.log(JSON.stringify(seen));
await client.close();
