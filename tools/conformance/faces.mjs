// faces.mjs: redirects the suite's requests to another interface of mcpproxy. Loaded before the suite.
//
// If the interface offers tools of the proxy, the backend's tools are called through `call_tool_destructive`
// (FACE=mcp). For stdio (FACE=stdio, COMMAND as JSON) there is no HTTP: a session is a separate process, a request is a
// line, and the answer is the message with its id. Ids are replaced on the way, because clients of one process may use
// the same ones. Nothing else in a message is changed.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const TOOL = "suite__";
const CALL = "call_tool_destructive";
const STATUS = { "-32601": 404, "-32020": 400, "-32021": 400, "-32022": 400 };
const SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId";
const over = globalThis.fetch;

const read = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
};

/** The message and headers, with a call of the backend's tool replaced by a call of the proxy's call tool. */
function translated(body, headers) {
  const message = read(body);
  const name = message?.params?.name;
  if (message?.method !== "tools/call" || !name?.startsWith?.(TOOL)) return [body, headers];
  const call = { name: `suite:${name.slice(TOOL.length)}`, args: message.params.arguments ?? {} };
  call.intent = { operation_type: "destructive" };
  if (headers.get("mcp-name") === name) headers.set("mcp-name", CALL);
  // These headers repeat arguments of the backend's tool; mcpproxy adds them itself.
  for (const header of [...headers.keys()]) if (header.startsWith("mcp-param-")) headers.delete(header);
  return [JSON.stringify({ ...message, params: { ...message.params, name: CALL, arguments: call } }), headers];
}

const sessions = new Map();
let last = 0;

class Session {
  constructor() {
    this.pending = new Map();
    const [command, ...args] = JSON.parse(process.env.COMMAND);
    this.child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
    for (const each of [this.child, this.child.stdin, this.child.stdout]) each.unref();
    createInterface({ input: this.child.stdout }).on("line", (line) => this.hear(read(line)));
  }

  say(message) {
    this.child.stdin.write(JSON.stringify(message) + "\n");
  }

  /** Delivers a message to the request to which it belongs. */
  hear(message) {
    const asked = this.pending.get(message?.id);
    if (asked && message.method === undefined) {
      this.pending.delete(message.id);
      return asked.end({ ...message, id: asked.id });
    }
    const { progressToken, _meta } = message?.params ?? {};
    const all = [...this.pending.values()];
    const listening = this.pending.get(_meta?.[SUBSCRIPTION]);
    if (listening) message.params._meta[SUBSCRIPTION] = listening.id;
    const about = all.find(({ token }) => token !== undefined && token === progressToken);
    const updates = /^notifications\/(resources|tools|prompts)\//.test(message?.method);
    (listening ?? about ?? (updates ? this.stream : undefined) ?? all.at(-1) ?? this.stream)?.tell(message);
  }

  request(message, signal) {
    const id = ++last;
    let begin, fail, events;
    const answered = new Promise((resolve, reject) => ([begin, fail] = [resolve, reject]));
    const event = (each) => new TextEncoder().encode(`event: message\ndata: ${JSON.stringify(each)}\n\n`);
    const tell = (each) => {
      if (!events) begin(stream((controller) => (events = controller)));
      events.enqueue(event(each));
    };
    const end = (answer) => {
      if (!events) return begin(json(answer));
      tell(answer);
      events.close();
    };
    this.pending.set(id, { id: message.id, token: message.params?._meta?.progressToken, tell, end });
    signal?.addEventListener("abort", () => {
      if (!this.pending.delete(id)) return;
      this.say({ jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: id } });
      fail(signal.reason);
      events?.error(signal.reason);
    });
    this.say({ ...message, id });
    return answered;
  }
}

const head = (type, more = {}) => ({ "content-type": type, ...more });
const stream = (start) => new Response(new ReadableStream({ start }), { headers: head("text/event-stream") });
const json = (answer) =>
  new Response(JSON.stringify(answer), {
    status: STATUS[answer.error?.code] ?? 200,
    headers: head("application/json"),
  });

async function lines(body, headers, { method, signal }) {
  const named = headers.get("mcp-session-id");
  const message = read(body);
  const begins = message?.method === "initialize" && !named;
  // In 2026-07-28 there are no sessions, so one process serves all requests.
  const key = named ?? (begins ? crypto.randomUUID() : "modern");
  if (named && !sessions.has(named)) return new Response(null, { status: 404 });
  if (!sessions.has(key)) sessions.set(key, new Session());
  const session = sessions.get(key);
  if (method === "DELETE") {
    sessions.delete(key);
    session.child.stdin.end();
    return new Response(null, { status: 200 });
  }
  if (method === "GET") {
    return stream((events) => {
      const tell = (each) => events.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(each)}\n\n`));
      session.stream = { tell };
    });
  }
  if (message?.method === undefined || message.id === undefined) {
    session.say(message);
    return new Response(null, { status: 202 });
  }
  const answer = await session.request(message, signal);
  if (begins) answer.headers.set("mcp-session-id", key);
  return answer;
}

globalThis.fetch = async (url, init = {}) => {
  if (!String(url).startsWith(process.env.TARGET)) return over(url, init);
  const method = init.method ?? "GET";
  const [body, headers] = translated(init.body, new Headers(init.headers));
  if (process.env.FACE === "stdio") return lines(body, headers, { ...init, method });
  return over(url, { ...init, body, headers });
};
