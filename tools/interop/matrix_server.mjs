// matrix_server.mjs PORT|stdio: the legacy server of tools/interop/matrix, on the npm SDK 1.x. It serves all features that the matrix
// checks; matrix_server.py is its modern twin, with the same tools, resources, templates, prompts and extensions.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import { readFileSync } from "node:fs";

const OFFER = JSON.parse(readFileSync(process.argv[3], "utf8"));
const SLOW_MS = 30_000;
// A pause so that a client reads each progress message before the result, after which it ignores them.
const STEP_MS = 20;
const TASK_MS = 300;
const PAGE = 3;
const NOT_FOUND = -32002;

const servers = new Set();
const slow = new Map();
const tasks = new Map();
// Lists with one additional item.
const extra = new Set();

const text = (value) => ({ content: [{ type: "text", text: value }] });
const page = (items, cursor) => {
  const from = Number(cursor ?? 0);
  const nextCursor = from + PAGE < items.length ? String(from + PAGE) : undefined;
  return { items: items.slice(from, from + PAGE), ...(nextCursor && { nextCursor }) };
};
// The additional items, which are listed after every other call of `change`.
const more = (kind, key) => {
  const items = OFFER[kind];
  return extra.has(kind) ? [...items, { ...items[0], [key]: items[0][key] + "2" }] : items;
};
const fail = (code, message, data) => {
  throw Object.assign(new Error(message), { code, data });
};

function make() {
  const { name, title, version, instructions, extensions } = OFFER;
  const capabilities = {
    tools: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    prompts: { listChanged: true },
    completions: {},
    logging: {},
    tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } },
    extensions,
  };
  const server = new Server({ name, title, version }, { capabilities, instructions });
  server.subscribed = new Set();
  const on = (schema, handler) => server.setRequestHandler(schema, handler);
  on(types.ListToolsRequestSchema, ({ params }) => {
    const { items, ...rest } = page(more("tools", "name"), params?.cursor);
    return { tools: items, ...rest };
  });
  on(types.ListResourcesRequestSchema, ({ params }) => {
    const { items, ...rest } = page(more("resources", "uri"), params?.cursor);
    return { resources: items, ...rest };
  });
  on(types.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: OFFER.templates }));
  on(types.ListPromptsRequestSchema, () => ({ prompts: more("prompts", "name") }));
  on(types.ReadResourceRequestSchema, ({ params: { uri } }) => {
    const item = /^doc:\/\/item\/(.+)$/.exec(uri);
    if (item) return { contents: [{ uri, text: `item ${item[1]}` }] };
    return OFFER.contents[uri] ?? fail(NOT_FOUND, "no such resource", { uri });
  });
  on(types.SubscribeRequestSchema, ({ params }) => {
    server.subscribed.add(params.uri);
    return {};
  });
  on(types.UnsubscribeRequestSchema, ({ params }) => {
    server.subscribed.delete(params.uri);
    return {};
  });
  on(types.GetPromptRequestSchema, async ({ params }, call) => {
    if (params.name === "ask") {
      const { content } = await question(call, OFFER.questions.form);
      return prompt([{ type: "text", text: `hello ${content.name}` }]);
    }
    const greeting = { type: "text", text: `hello ${params.arguments.name}` };
    return prompt([greeting, { type: "resource", resource: OFFER.contents["doc://text"].contents[0] }]);
  });
  on(types.CompleteRequestSchema, ({ params }) => {
    const values = params.ref.type === "ref/prompt" ? ["ada", "alan"] : [params.context?.arguments?.kind ?? "none"];
    return { completion: { values, total: values.length, hasMore: false } };
  });
  on(types.GetTaskRequestSchema, ({ params }) => task(params.taskId));
  on(types.GetTaskPayloadRequestSchema, async ({ params: { taskId } }) => {
    task(taskId);
    await sleep(TASK_MS);
    return { ...text("task done"), _meta: { "io.modelcontextprotocol/related-task": { taskId } } };
  });
  on(types.CallToolRequestSchema, ({ params }, call) => {
    const tool = TOOLS[params.name];
    if (!tool) fail(types.ErrorCode.InvalidParams, `unknown tool ${params.name}`);
    return tool(params.arguments ?? {}, call, server, params);
  });
  server.fallbackRequestHandler = async ({ method, params }) => {
    if (method === "acme/greet") return { greeting: `hello ${params.name}` };
    if (method === "skills/list") return { skills: OFFER.skills };
    fail(types.ErrorCode.MethodNotFound, "Method not found");
  };
  return server;
}

const prompt = (contents) => ({ messages: contents.map((content) => ({ role: "user", content })) });
const question = (call, { method, params }, id) =>
  call.sendRequest({ method, params: id ? { ...params, elicitationId: id } : params }, RESULTS[method]);
const RESULTS = {
  "elicitation/create": types.ElicitResultSchema,
  "sampling/createMessage": types.CreateMessageResultWithToolsSchema,
  "roots/list": types.ListRootsResultSchema,
};

function task(taskId) {
  const known = tasks.get(taskId) ?? fail(types.ErrorCode.InvalidParams, "no such task");
  const status = Date.now() - known.from < TASK_MS ? "working" : "completed";
  const createdAt = new Date(known.from).toISOString();
  return { taskId, status, createdAt, lastUpdatedAt: createdAt, ttl: 60_000, pollInterval: 100 };
}

const asks = (name) => async (_, call) => text(JSON.stringify(await question(call, OFFER.questions[name])));

const TOOLS = {
  echo: ({ text: said }) => text(said),
  content: () => ({ content: OFFER.blocks }),
  fail: () => ({ ...text("it failed"), isError: true }),
  rpc_error: () => fail(-32050, "it broke", { detail: "matrix" }),
  structured: () => ({ ...text('{"n":1}'), structuredContent: { n: 1 } }),
  progress: async (_, call) => {
    const progressToken = call._meta?.progressToken;
    for (const progress of progressToken === undefined ? [] : [1, 2, 3]) {
      const params = { progressToken, progress, total: 3, message: `step ${progress}` };
      await call.sendNotification({ method: "notifications/progress", params });
      await sleep(STEP_MS);
    }
    return text("done");
  },
  slow: async ({ key }, call) => {
    slow.set(key, "running");
    await sleep(SLOW_MS, undefined, { signal: call.signal }).catch(() => slow.set(key, "cancelled"));
    return text("late");
  },
  seen: ({ key }) => text(slow.get(key) ?? "unknown"),
  log: async (_, call, server) => {
    const params = { level: "warning", logger: "matrix", data: "logged" };
    await call.sendNotification({ method: "notifications/message", params });
    return text("logged");
  },
  touch: async () => {
    const uri = "doc://text";
    for (const each of servers) if (each.subscribed.has(uri)) await each.sendResourceUpdated({ uri });
    return text("touched");
  },
  change: async ({ kind }) => {
    if (!extra.delete(kind)) extra.add(kind);
    const notify = { tools: "sendToolListChanged", resources: "sendResourceListChanged", prompts: "sendPromptListChanged" };
    for (const each of servers) await each[notify[kind]]();
    return text("changed");
  },
  elicit_form: asks("form"),
  elicit_decline: asks("decline"),
  elicit_url: async (_, call) => {
    const id = randomUUID();
    const answer = await question(call, OFFER.questions.url, id);
    const completed = { method: "notifications/elicitation/complete", params: { elicitationId: id } };
    if (answer.action === "accept") await call.sendNotification(completed);
    return text(JSON.stringify(answer));
  },
  sample: asks("sample"),
  sample_tools: asks("sample_tools"),
  roots: asks("roots"),
  ask_twice: async (_, call) => {
    const first = await question(call, OFFER.questions.form);
    const second = await question(call, OFFER.questions.sample);
    return text(`${first.content.name} ${second.content.text}`);
  },
  task: (_, call, server, params) => {
    if (!params.task) return text("no task");
    const taskId = randomUUID();
    tasks.set(taskId, { from: Date.now() });
    return { task: task(taskId) };
  },
  show: () => text("shown"),
  client_extensions: (_, call, server) => text(JSON.stringify(server.getClientCapabilities()?.extensions ?? {})),
};

async function connect(transport) {
  const server = make();
  servers.add(server);
  server.onclose = () => servers.delete(server);
  server.onerror = (error) => console.error(String(error));
  await server.connect(transport);
}

if (process.argv[2] === "stdio") {
  await connect(new StdioServerTransport());
} else {
  const sessions = new Map();
  const listener = createServer(async (request, response) => {
    let transport = sessions.get(request.headers["mcp-session-id"]);
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
        onsessionclosed: (id) => sessions.delete(id),
      });
      await connect(transport);
    }
    await transport.handleRequest(request, response);
  });
  listener.listen(Number(process.argv[2]), "127.0.0.1");
}
