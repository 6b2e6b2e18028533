// Measures the page with many servers, tools and records: the time to the first view and after each filter, and the
// length of the views.
//
//     node tools/bench/page/measure.mjs BINARY RECORDS        (from tools/bench/page/run, which installs what it needs)

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { performance } from 'node:perf_hooks';

const [binary, records] = [resolve(process.argv[2]), Number(process.argv[3])];
const ROOT = resolve(import.meta.dirname, '../../..');
const KEY = 'page-key-of-more-than-thirty-two-characters';
const SERVERS = 20;
const TOOLS = 30; // per server
const ROUNDS = 5; // per measurement; the median is shown
const FILL_SECONDS = 600;
const WAIT_MS = 20_000;
const FIRST_VIEW_MS = 1000;
const FILTER_MS = 200;
const SCREENS = 3;
const VIEW = { width: 1280, height: 780 };

const folder = mkdtempSync(join(tmpdir(), 'mcpproxy-page-'));
const port = await freePort();
const base = `http://127.0.0.1:${port}`;
const stub = spawn(join(ROOT, 'target/debug/examples/stub'), ['http', '--own', String(TOOLS)], { stdio: ['ignore', 'pipe', 'ignore'] });
let proxy;
let browser;
let failed = false;
try {
  const upstream = Number(String((await once(stub.stdout, 'data'))[0]).trim());
  const names = Array.from({ length: SERVERS }, (_, at) => `server-${String(at).padStart(2, '0')}`);
  const file = join(folder, 'config.json');
  writeFileSync(file, JSON.stringify({
    listen: `127.0.0.1:${port}`,
    api_key: KEY,
    data_dir: join(folder, 'data'),
    mcpServers: Object.fromEntries(names.map((name, at) => [name, { url: `http://127.0.0.1:${upstream}/s${at}` }])),
  }), { mode: 0o600 });
  proxy = spawn(binary, ['serve', '--config', file], { stdio: 'ignore' });
  await until('ready', async () => (await fetch(`${base}/readyz`)).ok);
  await until('all tools', async () => (await status()).tools === SERVERS * TOOLS);
  await fill(names);
  const { chromium } = createRequire(join(ROOT, 'target/page/package.json'))('playwright-core');
  browser = await chromium.launch({ executablePath: '/usr/bin/chromium', headless: true, args: ['--no-sandbox', '--disable-gpu', '--hide-scrollbars'] });
  const context = await browser.newContext({ viewport: VIEW, reducedMotion: 'reduce' });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
  await page.goto(`${base}/ui/`);
  await page.getByLabel('API key').fill(KEY);
  await page.keyboard.press('Enter');
  await page.locator('#now-tiles .tile').first().waitFor();
  await firstView(context);
  await filters(page);
  await lengths(page);
} finally {
  await browser?.close();
  for (const child of [proxy, stub].filter(Boolean)) {
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  }
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}
process.exitCode = failed ? 1 : 0;

/** Calls all tools in turn, by the operation in their annotations, until the log has the requested number of records. */
async function fill(names) {
  const answer = await fetch(`${base}/mcp`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'page-benchmark', version: '1' } } }),
  });
  await answer.text();
  const session = answer.headers.get('mcp-session-id');
  const tools = (await Promise.all(names.map((name) => rest(`tools?server=${name}&limit=100`)))).flatMap(({ tools: all }) => all.map((tool) => [tool.name, tool.call_with.replace('call_tool_', '')]));
  assert.equal(tools.length, SERVERS * TOOLS);
  const script = join(folder, 'calls.lua');
  writeFileSync(script, `
local tools = { ${tools.map(([name, kind]) => `{ ${JSON.stringify(name)}, "${kind}" }`).join(', ')} }
local n = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Accept"] = "application/json, text/event-stream"
wrk.headers["Mcp-Session-Id"] = "${session}"
function request()
  n = n + 1
  local tool, kind = unpack(tools[n % #tools + 1])
  local declared, reason = kind, "call number " .. n
  -- Some are refused for their intent.
  if n % 997 == 0 then declared, reason = kind == "read" and "write" or "read", "pretends" end
  return wrk.format(nil, "/mcp", nil, string.format(
    '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"call_tool_%s","arguments":{"name":"%s","args":{"workspace":"w"},"intent":{"operation_type":"%s","reason":"%s","data_sensitivity":"internal"}}}}',
    n + 1, kind, tool, declared, reason))
end
`);
  const end = Date.now() + FILL_SECONDS * 1000;
  for (;;) {
    const { total_count: total } = await rest('activity/summary?period=24h');
    if (total >= records) return console.log(`${total} records, ${SERVERS} servers, ${tools.length} tools`);
    assert.ok(Date.now() < end, `only ${total} records within ${FILL_SECONDS} s`);
    const ran = spawnSync('wrk', ['-t1', '-c16', '-d5s', '-s', script, base], { encoding: 'utf8' });
    assert.equal(ran.status, 0, ran.stderr);
  }
}

/** Opens a new tab of a logged-in user, and waits until the tiles show their numbers. */
async function firstView(context) {
  await timed('first view', FIRST_VIEW_MS, async () => {
    const page = await context.newPage();
    const start = performance.now();
    await page.goto(`${base}/ui/`);
    await page.locator('#now-tiles .tile').first().waitFor();
    await page.locator('#outcomes rect.bar').first().waitFor();
    const took = performance.now() - start;
    await page.close();
    return took;
  });
}

/** Measures each filter of the records, from the change of its field until only matching rows are shown. */
async function filters(page) {
  await page.evaluate(() => { location.hash = 'activity'; });
  await page.locator('#rows li').first().waitFor();
  for (const [name, query, fits] of [
    ['no filter', 'activity', ''],
    ['type', 'activity?type=server_change', 'connected'],
    ['intent', 'activity?intent_type=write', 'write'],
    ['server', 'activity?server=server-07', 'server-07:'],
    ['type and server', 'activity?type=tool_call&server=server-11', 'server-11:'],
    ['last hour', 'activity?range=1h&intent_type=read', 'read'],
    ['text of a recent record', 'activity?q=server-13', 'server-13'],
    ['refused', 'activity?status=blocked,rejected', 'pretends'],
  ]) {
    await timed(`filter: ${name}`, FILTER_MS, async () => {
      // Other rows are shown before.
      await shows(page, 'activity?server=server-03', 'server-03:');
      return shows(page, query, fits, 'server-03:');
    });
  }
}

/** Shows records and returns the time until there are rows that all contain `fits` and not all contain `before`. */
function shows(page, query, fits, before) {
  return page.evaluate(({ query: to, fits: wanted, before: earlier, limit }) => new Promise((done, fail) => {
    const start = performance.now();
    location.hash = to;
    const look = () => {
      const rows = [...document.querySelectorAll('#rows li')].map((row) => row.textContent);
      const all = (text) => text !== undefined && rows.every((row) => row.includes(text));
      const settled = rows.length > 0 && all(wanted) && !all(earlier);
      if (settled) return done(performance.now() - start);
      return performance.now() - start > limit ? fail(new Error(`${to} does not settle: ${rows[0]}`)) : requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }), { query, fits, before, limit: WAIT_MS });
}

/** Checks that no view is longer than a few screens; the records have pages. */
async function lengths(page) {
  for (const view of ['now', 'approvals', 'servers', 'tools', 'policy', 'settings']) {
    await page.evaluate((to) => { location.hash = to; }, view);
    await page.locator(`#view-${view}`).waitFor();
    await page.waitForLoadState('networkidle').catch(() => undefined);
    const screens = await page.evaluate(() => document.documentElement.scrollHeight / innerHeight);
    report(`length of ${view}`, screens, SCREENS, 'screens');
  }
}

async function timed(what, limit, once) {
  const times = [];
  for (let round = 0; round < ROUNDS; round += 1) times.push(await once());
  times.sort((one, other) => one - other);
  report(what, times[Math.floor(ROUNDS / 2)], limit, `ms (${times[0].toFixed(0)} to ${times.at(-1).toFixed(0)})`);
}

function report(what, value, limit, unit) {
  const over = value > limit;
  failed ||= over;
  console.log(`${what.padEnd(34)} ${value.toFixed(1).padStart(8)} ${unit}, at most ${limit}${over ? '  OVER' : ''}`);
}

async function rest(path) {
  const answer = await fetch(`${base}/api/v1/${path}`, { headers: { 'X-API-Key': KEY } });
  const text = await answer.text();
  assert.ok(answer.ok, `${path}: ${answer.status} ${text}`);
  return JSON.parse(text).data;
}

function status() {
  return rest('status');
}

async function until(what, isSo) {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    try {
      if (await isSo()) return;
    } catch {
      // The element does not exist yet.
    }
    assert.ok(Date.now() < end, `not ${what} within ${WAIT_MS} ms`);
    await new Promise((done) => { setTimeout(done, 100); });
  }
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port: free } = server.address();
  server.close();
  await once(server, 'close');
  return free;
}
