// Fixtures: the proxy under test with the stub as upstream, further proxies, and the calls that fill the log.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';

import { authority } from './authority.mjs';
import { LONG_NAME } from './talker.mjs';

export const ROOT = resolve(import.meta.dirname, '../..');
export const SHOTS = join(ROOT, 'target/page');
export const KEY = 'page-key-of-more-than-thirty-two-characters';
// Hostile text of an agent: markup, a control character, and a bidirectional override.
export const HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202egnp.exe\u0007';
const FLEET_KEY = '4f1c9a7be2035d68a1f7c04e9b3d5826b7e81fa0c36d924e58017fcb2ad3e964';
const READY_MS = 30_000;
const RULES = `@id("ci-reads-no-records")
@message("ask the operators")
forbid(principal == Agent::"token:ci", action, resource == Tool::"stub:records");

@id("interns-write-nothing-private")
forbid(principal in Group::"interns", action == Action::"write", resource) when { context.intent.data_sensitivity == "private" };

@id("nobody-reads-etc")
forbid(principal, action == Action::"read", resource == Tool::"stub:blob") when { context.args has path && context.args.path like "/etc*" };
`;

const binary = resolve(process.argv[2]);
export const folder = mkdtempSync(join(tmpdir(), 'mcpproxy-page-'));
const port = await freePort();
export const base = `http://127.0.0.1:${port}`;
const file = join(folder, 'config.json');
const stub = join(ROOT, 'target/debug/examples/stub');
const asksForLogin = await authority();

const config = {
  listen: `127.0.0.1:${port}`,
  api_key: KEY,
  data_dir: join(folder, 'data'),
  mcpServers: {
    stub: {
      command: stub, args: ['stdio'],
      capabilities: { no_hints: { approval: 'required' }, both_hints: { approval: 'required' } },
    },
    notes: { command: stub, args: ['stdio', '--only', 'add_tool', '--tools', join(folder, 'tools.json')] },
    locked: { url: asksForLogin.url },
    chatty: { command: process.execPath, args: [join(import.meta.dirname, 'talker.mjs')] },
    absent: { command: join(folder, 'no-such-program') },
  },
  output_validation: { mode: 'strict' },
  policy: { files: [join(folder, 'rules.cedar')] },
  cluster: member('page', port),
};

/** Config section `cluster` of a fleet node that other nodes can reach. */
function member(name, at) {
  return { store: `file://${join(folder, 'store')}`, node: name, key: FLEET_KEY, flush: '200ms', advertise: `http://127.0.0.1:${at}` };
}

/** Starts another node of the fleet, without servers and clients. */
export async function node(name) {
  const own = join(folder, name);
  mkdirSync(own, { mode: 0o700 });
  const at = await freePort();
  const config = { listen: `127.0.0.1:${at}`, api_key: KEY, data_dir: join(own, 'data'), mcpServers: {}, cluster: member(name, at) };
  writeFileSync(join(own, 'config.json'), JSON.stringify(config), { mode: 0o600 });
  const log = openSync(join(SHOTS, `${name}.log`), 'w');
  return spawn(binary, ['serve', '--config', join(own, 'config.json')], { stdio: ['ignore', log, log] });
}

/** Starts a separate proxy without servers, rules and fleet. The host name `localhost` separates its session from that
 * of the other proxy. */
export async function untouched() {
  const own = join(folder, 'untouched');
  mkdirSync(own, { mode: 0o700 });
  const at = await freePort();
  const config = { listen: `127.0.0.1:${at}`, api_key: KEY, data_dir: join(own, 'data'), mcpServers: {} };
  writeFileSync(join(own, 'config.json'), JSON.stringify(config), { mode: 0o600 });
  const log = openSync(join(SHOTS, 'untouched.log'), 'w');
  const started = spawn(binary, ['serve', '--config', join(own, 'config.json')], { stdio: ['ignore', log, log] });
  const there = `http://localhost:${at}`;
  await answers(there, started);
  return { base: there, end: () => ended(started) };
}

/** Replaces the config file by a rename, as editors do. `more` extends the config; a string is written verbatim. */
export function configure(more = {}) {
  const text = typeof more === 'string' ? more : JSON.stringify({ ...config, ...more }, null, 2);
  writeFileSync(`${file}.new`, text, { mode: 0o600 });
  renameSync(`${file}.new`, file);
}

export const written = () => readFileSync(file, 'utf8');

/** Parsed config file, without a comment in its first line. */
export const configured = () => JSON.parse(written().replace(/^\/\/.*\n/, ''));

/** Sets the tools that the server `notes` offers in addition to `add_tool`, from its next change on. */
export function offers(tools) {
  writeFileSync(join(folder, 'tools.json'), JSON.stringify(tools));
}

export function serve() {
  mkdirSync(SHOTS, { recursive: true });
  mkdirSync(join(folder, 'store'));
  offers([]);
  writeFileSync(join(folder, 'rules.cedar'), RULES);
  configure();
  const log = openSync(join(SHOTS, 'mcpproxy.log'), 'w');
  const proxy = spawn(binary, ['serve', '--config', file], { stdio: ['ignore', log, log] });
  return {
    ready: () => answers(base, proxy),
    async end() {
      await ended(proxy);
      await asksForLogin.end();
      rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

async function answers(there, proxy) {
  const end = Date.now() + READY_MS;
  while (!(await fetch(`${there}/readyz`).catch(() => undefined))?.ok) {
    assert.ok(proxy.exitCode === null && Date.now() < end, `the proxy is not ready; see the logs in ${SHOTS}`);
    await new Promise((done) => { setTimeout(done, 50); });
  }
}

async function ended(proxy) {
  proxy.kill('SIGTERM');
  if (proxy.exitCode === null) await once(proxy, 'exit');
}

/** Login URL that `mcpproxy page` prints. */
export async function address() {
  const { stdout } = await promisify(execFile)(binary, ['--config', file, '--json', 'page']);
  return JSON.parse(stdout).address;
}

/** Sends a REST request with the API key. */
export async function rest(method, path, body) {
  const answer = await fetch(`${base}/api/v1/${path}`, {
    method, headers: { 'X-API-Key': KEY, 'Content-Type': 'application/json' }, body: body && JSON.stringify(body),
  });
  return { status: answer.status, data: (await answer.json()).data };
}

/** Makes a call over REST. Returns the HTTP status without a check. */
export async function call(operation, tool, args, reason, sensitivity = 'internal') {
  const { status } = await rest('POST', 'tools/call', {
    tool_name: `call_tool_${operation}`, arguments: { name: tool, args, intent: { operation_type: operation, reason, data_sensitivity: sensitivity } },
  });
  return status;
}

/** Opens an MCP session of an agent. The returned function makes a call and returns true on success. */
export async function session() {
  const send = async (id, body) => {
    const headers = { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream', ...id && { 'Mcp-Session-Id': id } };
    const answer = await fetch(`${base}/mcp`, { method: 'POST', headers, body: JSON.stringify({ jsonrpc: '2.0', ...body }) });
    return { id: answer.headers.get('mcp-session-id'), text: await answer.text() };
  };
  const client = { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'page-test', version: '1' } };
  const { id } = await send(undefined, { id: 1, method: 'initialize', params: client });
  await send(id, { method: 'notifications/initialized' });
  let asked = 1;
  return async (operation, name, args, reason) => {
    asked += 1;
    const intent = { operation_type: operation, data_sensitivity: 'internal', reason };
    const { text } = await send(id, { id: asked, method: 'tools/call', params: { name: `call_tool_${operation}`, arguments: { name, args, intent } } });
    return !text.includes('"isError":true') && text.includes('"result"');
  };
}

export async function makeCalls() {
  await call('read', `chatty:${LONG_NAME}`, {}, 'has a long name');
  for (let round = 0; round < 6; round += 1) {
    await call('read', 'stub:read_item', { value: round }, 'to see whether it is there');
  }
  await call('read', 'stub:records', { size: 10_800 }, 'all of them');
  await call('read', 'stub:echo', { big: 1, wait_ms: 20 }, 'takes a while');
  await call('write', 'stub:write_item', { note: HOSTILE }, HOSTILE, 'private');
  await call('destructive', 'stub:delete_item', {}, 'no longer needed', 'private');
  await call('read', 'stub:delete_item', {}, 'pretends to read');
  await call('read', 'stub:violate', {}, 'breaks its schema');
  await call('read', 'stub:too_big', {}, 'too large');
  await call('read', 'stub:error', {}, 'fails');
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port: free } = server.address();
  server.close();
  await once(server, 'close');
  return free;
}
