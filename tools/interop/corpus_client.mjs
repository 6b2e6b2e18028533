// corpus_client.mjs PLAN.json: lists everything with an npm client (`sdk`, `client` or `ai`), and uses the listed items
// and those that the plan names. For the plan and the output see corpus_client.py.

import { readFile, writeFile } from "node:fs/promises";
import { createMCPClient } from "@ai-sdk/mcp";
import * as both from "@modelcontextprotocol/client";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { McpError } from "@modelcontextprotocol/sdk/types.js";

// Longer than any request takes, except one that never ends.
const CALL_MS = 10_000;
const TIMEOUT = { timeout: 2 * CALL_MS };
const NAME = { name: "corpus", version: "1" };
const ARGUMENTS = { a: "x" };

const connectors = { sdk, client, ai };
const plan = JSON.parse(await readFile(process.argv[2], "utf8"));
const { list, call, read, get, isError, close } = await connectors[plan.client](plan);

async function sdk({ url }) {
  const client = new Client(NAME);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)), TIMEOUT);
  return official(client, (params) => client.callTool(params, undefined, TIMEOUT), McpError);
}

async function client({ url, mode }) {
  const versionNegotiation = { mode: mode === "legacy" ? mode : { pin: mode } };
  const client = new both.Client(NAME, { versionNegotiation });
  await client.connect(new both.StreamableHTTPClientTransport(new URL(url)), TIMEOUT);
  return official(client, (params) => client.callTool(params, TIMEOUT), both.ProtocolError);
}

function official(client, callTool, ErrorType) {
  return {
    list: {
      tool: (params) => client.listTools(params, TIMEOUT),
      resource: (params) => client.listResources(params, TIMEOUT),
      template: (params) => client.listResourceTemplates(params, TIMEOUT),
      prompt: (params) => client.listPrompts(params, TIMEOUT),
    },
    call: (name, args) => callTool({ name, arguments: args }),
    read: (uri) => client.readResource({ uri }, TIMEOUT),
    get: (name, args) => client.getPrompt({ name, arguments: args }, TIMEOUT),
    // The error of a server keeps its code; errors of the client have codes of their own.
    isError: (error) => error instanceof ErrorType,
    close: () => client.close(),
  };
}

async function ai({ url, mode }) {
  const transport = { type: "http", url };
  const client = await createMCPClient({ transport, protocolVersionDiscovery: mode !== "legacy" });
  return {
    list: {
      tool: (params) => client.listTools({ params }),
      resource: (params) => client.listResources({ params }),
      // This client requests a single page only.
      template: () => client.listResourceTemplates().then((page) => ({ ...page, nextCursor: undefined })),
      prompt: (params) => client.listPrompts({ params }),
    },
    call: (name, args) => client.callTool({ name, arguments: args }),
    read: (uri) => client.readResource({ uri }),
    get: (name, args) => client.getPrompt({ name, arguments: args }),
    isError: (error) => typeof error.code === "number",
    close: () => client.close(),
  };
}

const HUNG = new Error("hung");

async function timed(asked) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(HUNG), CALL_MS);
  });
  try {
    return await Promise.race([asked, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function outcome(ask) {
  try {
    const result = await timed(ask());
    return result.isError === true ? "failed" : "result";
  } catch (error) {
    if (error === HUNG) return "hung";
    return isError(error) ? "error" : `refused ${error.name} ${error.message}`.slice(0, 300);
  }
}

async function pages(ask, member) {
  const items = [];
  for (let cursor; ; ) {
    const page = await timed(ask(cursor ? { cursor } : {}));
    items.push(...page[member]);
    cursor = page.nextCursor;
    if (!cursor) return items;
  }
}

const lists = {};
const outcomes = [];
const KINDS = [
  ["tool", "tools", "name"],
  ["resource", "resources", "uri"],
  ["template", "resourceTemplates", "uriTemplate"],
  ["prompt", "prompts", "name"],
];
for (const [kind, member, key] of KINDS) {
  let items;
  try {
    items = await pages(list[kind], member);
  } catch (error) {
    lists[kind] = `${error.name} ${error.message}`.slice(0, 1000);
    continue;
  }
  lists[kind] = items.map((item) => item[key]);
  for (const item of items) {
    const name = item[key];
    let ask;
    if (kind === "resource") ask = () => read(name);
    if (kind === "prompt") {
      const given = (item.arguments ?? []).map((argument) => [argument.name, "x"]);
      ask = () => get(name, Object.fromEntries(given));
    }
    if (kind === "tool" && plan.call_listed) ask = () => call(name, ARGUMENTS);
    if (ask) outcomes.push([kind, name, await outcome(ask)]);
  }
}
for (const { id, name, arguments: args } of plan.calls) {
  outcomes.push(["tool", id, await outcome(() => call(name, args))]);
}
await writeFile(plan.output, JSON.stringify({ lists, outcomes }));
await close();
process.exit(0);
