// Takes the screenshot of the README: activity of agents with the real servers of tools/interop.
//
//     node tools/page/picture.mjs BINARY PICTURE        (started by tools/page/run, which installs the dependencies)

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const [binary, picture] = process.argv.slice(2).map((path) => resolve(path));
const SHOTS = resolve(import.meta.dirname, '../../target/page');
const KEY = 'page-key-of-more-than-thirty-two-characters';
const READY_MS = 60_000;
const folder = mkdtempSync(join(tmpdir(), 'mcpproxy-picture-'));
const files = join(folder, 'project');
const program = (name) => join(SHOTS, 'servers/node_modules/.bin', `mcp-server-${name}`);

const listener = createServer().listen(0, '127.0.0.1');
await once(listener, 'listening');
const { port } = listener.address();
listener.close();
await once(listener, 'close');
const base = `http://127.0.0.1:${port}`;

mkdirSync(files);
writeFileSync(join(files, 'README.md'), '# Shop\n\nThe web shop.\n');
writeFileSync(join(files, 'prices.csv'), 'item,price\nlamp,12.50\nchair,49.00\n');
writeFileSync(join(folder, 'rules.cedar'), `@id("ci-writes-no-files")
@message("CI may read the project, and no more")
forbid(principal == Agent::"token:ci", action in [Action::"write", Action::"destructive"], resource in Server::"filesystem");
`);
const config = join(folder, 'config.json');
writeFileSync(config, JSON.stringify({
  listen: `127.0.0.1:${port}`,
  api_key: KEY,
  data_dir: join(folder, 'data'),
  policy: { files: [join(folder, 'rules.cedar')] },
  mcpServers: {
    filesystem: { command: program('filesystem'), args: [files] },
    memory: { command: program('memory'), env: { MEMORY_FILE_PATH: join(folder, 'memory.json') } },
    everything: { command: program('everything') },
    'sequential-thinking': { command: program('sequential-thinking') },
  },
}), { mode: 0o600 });

const proxy = spawn(binary, ['serve', '--config', config], { stdio: 'ignore' });
let browser;
try {
  const end = Date.now() + READY_MS;
  while (!(await fetch(`${base}/readyz`).catch(() => undefined))?.ok) {
    assert.ok(proxy.exitCode === null && Date.now() < end, 'the proxy is not ready');
    await new Promise((done) => { setTimeout(done, 100); });
  }
  const { chromium } = createRequire(join(SHOTS, 'package.json'))('playwright-core');
  browser = await chromium.launch({ executablePath: '/usr/bin/chromium', headless: true, args: ['--no-sandbox', '--disable-gpu', '--hide-scrollbars'] });
  const page = await browser.newPage({ viewport: { width: 1280, height: 780 }, colorScheme: 'light', reducedMotion: 'reduce' });
  await page.goto(`${base}/ui/`);
  await page.getByLabel('API key').fill(KEY);
  await page.keyboard.press('Enter');
  await page.getByRole('navigation').getByRole('link', { name: 'Activity' }).click();
  await page.locator('#live[data-state=live]').waitFor();
  await calls();
  await page.locator('#rows li', { hasText: 'to keep what was decided' }).waitFor();
  await page.screenshot({ path: picture });
} finally {
  await browser?.close();
  proxy.kill('SIGTERM');
  if (proxy.exitCode === null) await once(proxy, 'exit');
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}

/** Opens an MCP session of an agent. The returned function makes a call. */
async function agent(client, token) {
  const send = async (id, body) => {
    const headers = { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream', ...id && { 'Mcp-Session-Id': id }, ...token && { Authorization: `Bearer ${token}` } };
    const answer = await fetch(`${base}/mcp`, { method: 'POST', headers, body: JSON.stringify({ jsonrpc: '2.0', ...body }) });
    await answer.text();
    return answer.headers.get('mcp-session-id');
  };
  const id = await send(undefined, { id: 1, method: 'initialize', params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: client, version: '1' } } });
  await send(id, { method: 'notifications/initialized' });
  return (operation, name, args, reason) => send(id, {
    id: 2, method: 'tools/call',
    params: { name: `call_tool_${operation}`, arguments: { name, args, intent: { operation_type: operation, data_sensitivity: 'internal', reason } } },
  });
}

async function calls() {
  const made = await fetch(`${base}/api/v1/tokens`, { method: 'POST', headers: { 'X-API-Key': KEY, 'Content-Type': 'application/json' }, body: '{"name": "ci"}' });
  const claude = await agent('claude-code');
  const cursor = await agent('cursor');
  const ci = await agent('github-actions', (await made.json()).data.token);
  const file = (name) => ({ path: join(files, name) });
  await claude('read', 'filesystem:list_directory', { path: files }, 'to see what the project has');
  await claude('read', 'filesystem:read_text_file', file('README.md'), 'to know what the project is');
  await cursor('read', 'filesystem:read_text_file', file('orders.csv'), 'needed for the sum of the orders');
  await ci('read', 'filesystem:search_files', { path: files, pattern: '*.csv' }, 'to check all price lists');
  await ci('destructive', 'filesystem:write_file', { ...file('prices.csv'), content: '' }, 'to reset the price list');
  await claude('read', 'filesystem:write_file', { ...file('notes.md'), content: 'lamp' }, 'to note the lamp');
  await claude('destructive', 'filesystem:write_file', { ...file('notes.md'), content: 'lamp' }, 'to note the lamp');
  await cursor('read', 'sequential-thinking:sequentialthinking', { thought: 'Sum the prices.', nextThoughtNeeded: false, thoughtNumber: 1, totalThoughts: 1 }, 'to plan the change');
  await cursor('read', 'everything:get-sum', { a: 12.5, b: 49 }, 'to add the two prices');
  await claude('write', 'memory:create_entities', { entities: [{ name: 'lamp', entityType: 'item', observations: ['costs 12.50'] }] }, 'to keep what was decided');
}
