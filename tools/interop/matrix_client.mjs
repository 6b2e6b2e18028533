// matrix_client.mjs PLAN: an npm client of tools/interop/matrix: `sdk` (1.x, legacy) or `client` (2.x, either family).
// PLAN is JSON: `client`, `mode` (legacy or auto), `url` or `command`. The client is controlled over its pipes: see
// matrix_peer.py.

import { createInterface } from "node:readline";
import * as both from "@modelcontextprotocol/client";
import { StdioClientTransport as BothStdio } from "@modelcontextprotocol/client/stdio";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import * as z from "zod/v4";

const TIMEOUT = { timeout: 10_000 };
const NAME = { name: "matrix", version: "1" };
const ANY = z.looseObject({});
const plan = JSON.parse(process.argv[2]);
const modern = plan.mode !== "legacy";
const [command, ...args] = plan.command ?? [];
const capabilities = {
  sampling: { tools: {} },
  elicitation: { form: {}, url: {} },
  roots: { listChanged: true },
  extensions: {
    "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] },
    "io.modelcontextprotocol/skills": {},
    ...(modern && { "io.modelcontextprotocol/tasks": {} }),
  },
};

const say = (message) => console.log(JSON.stringify(message));

function answer({ method, params = {} }) {
  say({ event: "asked", params: { method, params } });
  if (method === "roots/list") return { roots: [{ uri: "file:///matrix", name: "matrix" }] };
  if (method === "elicitation/create") {
    if (params.message.startsWith("decline")) return { action: "decline" };
    return { action: "accept", ...(params.mode !== "url" && { content: { name: "Ada" } }) };
  }
  const sampled = { role: "assistant", model: "matrix", content: { type: "text", text: "sampled" } };
  if (!params.tools) return sampled;
  const use = { type: "tool_use", id: "1", name: params.tools[0].name, input: {} };
  return { ...sampled, content: [use], stopReason: "toolUse" };
}

const connectors = {
  async sdk() {
    const client = new Client(NAME, { capabilities });
    for (const schema of [types.CreateMessageRequestSchema, types.ElicitRequestSchema, types.ListRootsRequestSchema]) {
      client.setRequestHandler(schema, (request) => answer(request));
    }
    const transport = plan.url ? new StreamableHTTPClientTransport(new URL(plan.url)) : new StdioClientTransport({ command, args });
    return { client, transport, ErrorType: types.McpError, call: (params, options) => client.callTool(params, undefined, options) };
  },
  async client() {
    const versionNegotiation = { mode: plan.mode };
    const client = new both.Client(NAME, { capabilities, versionNegotiation });
    for (const method of ["sampling/createMessage", "elicitation/create", "roots/list"]) {
      client.setRequestHandler(method, (request) => answer(request));
    }
    const transport = plan.url ? new both.StreamableHTTPClientTransport(new URL(plan.url)) : new BothStdio({ command, args });
    return { client, transport, ErrorType: both.ProtocolError, call: (params, options) => client.callTool(params, options) };
  },
};

const { client, transport, ErrorType, call } = await connectors[plan.client]();
client.fallbackNotificationHandler = async ({ method, params }) => say({ event: method, params });
await client.connect(transport, { timeout: 25_000 });

const LISTS = { tools: "listTools", resources: "listResources", resourceTemplates: "listResourceTemplates", prompts: "listPrompts" };
const operations = {
  list: ({ kind, cursor }) => client[LISTS[kind]](cursor ? { cursor } : {}, { ...TIMEOUT, cacheMode: "refresh" }),
  call({ name, arguments: given, progress, meta, cancel_after: after }) {
    const onprogress = (params) => say({ event: "progress", params });
    const signal = after && AbortSignal.timeout(after * 1000);
    const params = { name, arguments: given, ...(meta && { _meta: meta }) };
    return call(params, { ...TIMEOUT, ...(progress && { onprogress }), ...(signal && { signal }) });
  },
  task({ name, arguments: given }) {
    const params = { name, arguments: given, ...(!modern && { task: { ttl: 60_000 } }) };
    return client.request({ method: "tools/call", params }, ANY, TIMEOUT);
  },
  read: ({ uri }) => client.readResource({ uri }, TIMEOUT),
  prompt: ({ name, arguments: given }) => client.getPrompt({ name, arguments: given }, TIMEOUT),
  complete: ({ ref, argument, context }) =>
    client.complete({ ref, argument, ...(context && { context: { arguments: context } }) }, TIMEOUT),
  subscribe: ({ uri }) => client.subscribeResource({ uri }, TIMEOUT),
  async listen({ uris }) {
    const lists = { toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true };
    await client.listen({ ...lists, resourceSubscriptions: uris }, TIMEOUT);
    return {};
  },
  level: ({ level }) => client.setLoggingLevel(level, TIMEOUT),
  ping: () => client.ping(TIMEOUT),
  request: ({ method, params }) => client.request({ method, params }, ANY, TIMEOUT),
};

const version = client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion ?? "2025-11-25";
say({ event: "ready", params: { instructions: client.getInstructions(), capabilities: client.getServerCapabilities(), version } });
for await (const line of createInterface({ input: process.stdin })) {
  const { id, op, ...asked } = JSON.parse(line);
  Promise.resolve()
    .then(() => operations[op](asked))
    .then((result) => say({ id, result }))
    .catch((error) => {
      const { code, message, data } = error;
      if (error instanceof ErrorType) say({ id, error: { code, message, data } });
      else say({ id, refused: `${error.name} ${message}`.slice(0, 500) });
    });
}
await transport.terminateSession?.().catch(() => {});
await client.close();
process.exit(0);
