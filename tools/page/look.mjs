// Uses the page in a real browser, before the stub as upstream: the key, filters, a record opened
// with the keyboard, a call that arrives by itself, calls that wait for approval, counts, servers, tools, a phone's width, light
// and dark. Fails on what is not in the page, on errors in its console, on violations of its policy
// and on anything it asks of another host. It does not judge how the page looks: the screenshots
// in target/page are for that.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const ROOT = resolve(import.meta.dirname, '../..');
const SHOTS = join(ROOT, 'target/page');
const KEY = 'page-key-of-more-than-thirty-two-characters';
const READY_MS = 30_000;
const WAIT_MS = 15_000;
// What a hostile agent might write: markup, a control, and a character that turns the text around.
const HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202egnp.exe\u0007';
const FLAGS = [
  '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];

const { chromium } = createRequire(join(SHOTS, 'package.json'))('playwright-core');

const folder = mkdtempSync(join(tmpdir(), 'mcpproxy-page-'));
const port = await freePort();
const base = `http://127.0.0.1:${port}`;
const proxy = serve();
let browser;
try {
  await ready();
  await makeCalls();
  browser = await chromium.launchPersistentContext(join(folder, 'browser'), {
    executablePath: '/usr/bin/chromium', headless: false, args: FLAGS,
    viewport: { width: 1280, height: 860 }, colorScheme: 'light', timezoneId: 'UTC',
  });
  browser.setDefaultTimeout(WAIT_MS);
  const page = browser.pages()[0] ?? await browser.newPage();
  await look(page).catch(async (error) => {
    await page.screenshot({ path: join(SHOTS, 'failed.png') });
    throw error;
  });
  console.log(`the page does what it should; screenshots are in ${SHOTS}`);
} finally {
  await browser?.close();
  proxy.kill('SIGTERM');
  if (proxy.exitCode === null) await once(proxy, 'exit');
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}

async function look(page) {
  const wrong = watch(page);
  const labelled = (name) => page.locator('#filters label', { hasText: new RegExp(`^\\s*${name}`) });
  const field = (name) => labelled(name).locator('input, select');
  const shot = (name) => page.screenshot({ path: join(SHOTS, `${name}.png`) });

  step('the key is asked for, and a wrong one is refused');
  await page.goto(`${base}/ui`);
  assert.equal(page.url(), `${base}/ui/`);
  await page.getByLabel('API key').fill('not the key');
  await page.keyboard.press('Enter');
  await page.getByText('This is not the key.').waitFor();
  wrong.expected(/401/);
  await shot('key');
  await page.getByLabel('API key').fill(KEY);
  await page.keyboard.press('Enter');
  await page.locator('#rows li').first().waitFor();
  assert.equal(await page.locator('#locked').isVisible(), false);
  assert.equal(page.url().includes(KEY), false);

  step('the key outlives a reload of the tab');
  await page.reload();
  await page.locator('#rows li').first().waitFor();
  await shot('activity');

  step('filters leave what fits');
  await field('Status').selectOption('blocked');
  await all(page, '#rows li', (row) => row.includes('blocked'));
  await field('Type').selectOption('tool_call');
  await field('Tool').fill('violate');
  await count(page, '#rows li', 1);
  await field('Tool').fill('no such tool');
  await page.getByText('No record fits the filters.').waitFor();
  await field('Tool').fill('violate');
  await count(page, '#rows li', 1);

  step('a record opens and closes with the keyboard');
  await page.locator('#filters button[type=reset]').focus();
  await page.keyboard.press('Tab');
  assert.equal(await focused(page), 'stub:violate');
  await page.keyboard.press('Enter');
  const record = page.locator('#record');
  for (const text of ['Verdict', 'output validation', '/value', 'strict', 'Intent', 'Timing', 'Size']) {
    await record.getByText(text).first().waitFor();
  }
  assert.match(page.url(), /#activity\/[0-9A-Z]{26}$/);
  await shot('record');
  await page.keyboard.press('Escape');
  await record.waitFor({ state: 'hidden' });
  assert.equal(await focused(page), 'stub:violate');

  step('arrows move through the list');
  await page.locator('#filters').getByRole('button', { name: 'Clear' }).click();
  await page.locator('#rows li').nth(8).waitFor();
  await page.locator('#rows a').first().focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('j');
  assert.equal(await page.locator('#rows a:focus').count(), 1);
  assert.equal(await page.locator('#rows li').nth(2).locator('a:focus').count(), 1);
  await page.keyboard.press('/');
  assert.equal(await field('Type').evaluate((it) => it === document.activeElement), true);

  step('a call arrives by itself, and only where it fits the filters');
  const rows = await page.locator('#rows li').count();
  await call('read', 'stub:echo', { note: 'arrives' }, 'came while you looked');
  await count(page, '#rows li', rows + 1);
  assert.match(await page.locator('#rows li').first().innerText(), /stub:echo/);
  await page.locator('#live[data-state=live]').waitFor();
  await field('Intent').selectOption('destructive');
  await all(page, '#rows li', (row) => row.includes('destructive'));
  const destructive = await page.locator('#rows li').count();
  await call('read', 'stub:echo', {}, 'does not fit');
  await call('destructive', 'stub:delete_item', {}, 'fits');
  await count(page, '#rows li', destructive + 1);
  await all(page, '#rows li', (row) => row.includes('destructive'));
  await shot('live');

  step('what an attacker wrote stays text');
  await page.locator('#filters').getByRole('button', { name: 'Clear' }).click();
  await field('Tool').fill('write_item');
  await count(page, '#rows li', 1);
  await page.locator('#rows a').first().click();
  await record.getByText('<img src=x onerror=').first().waitFor();
  const shown = await record.innerText();
  assert.ok(shown.includes('\\u{202e}') && !shown.includes('\u202e'), 'the turning character is shown');
  assert.equal(await record.locator('img, script').count(), 0);
  assert.equal(await page.title(), 'mcpproxy');
  await page.keyboard.press('Escape');
  await page.locator('#filters').getByRole('button', { name: 'Clear' }).click();

  step('a call that waits is there by itself, and what an attacker wrote in it stays text');
  await page.getByRole('link', { name: 'Approvals' }).click();
  await page.getByText('No call waits for approval.').waitFor();
  const dialogs = [];
  let sure = true;
  page.on('dialog', (dialog) => {
    dialogs.push(dialog.message());
    return sure ? dialog.accept() : dialog.dismiss();
  });
  const harmless = call('write', 'stub:no_hints', { note: HOSTILE }, HOSTILE);
  const cards = page.locator('#approvals li');
  await cards.first().waitFor();
  assert.equal(await page.locator('#waiting').innerText(), '1');
  const card = await cards.first().innerText();
  for (const part of ['stub:no_hints', '<img src=x onerror=', '\\u{202e}']) assert.ok(card.includes(part), part);
  assert.equal(await cards.locator('img, script').count(), 0);
  assert.equal(await page.title(), 'mcpproxy');
  await shot('approvals');
  await cards.first().getByRole('button', { name: 'Approve' }).click();
  assert.equal(await harmless, 200);
  await count(page, '#approvals li', 0);
  assert.deepEqual(dialogs, [], 'one harmless call needs no second word');

  step('a destructive call is approved with a second word, or denied');
  const destroys = call('destructive', 'stub:both_hints', { note: 'gone for good' }, 'cleaning up');
  await cards.first().waitFor();
  sure = false;
  await cards.first().getByRole('button', { name: 'Approve' }).click();
  assert.match(dialogs.pop(), /destructive call of stub:both_hints/);
  await count(page, '#approvals li', 1);
  sure = true;
  await cards.first().getByRole('combobox').selectOption('1h');
  await cards.first().getByRole('button', { name: 'Approve' }).click();
  assert.equal(await destroys, 200);
  assert.match(dialogs.pop(), /1 hour, any arguments/);
  await page.locator('#standing li').getByText('stub:both_hints').waitFor();
  await shot('approvals-standing');
  assert.equal(await call('destructive', 'stub:both_hints', {}, 'goes without asking'), 200);
  await page.locator('#standing li').getByRole('button', { name: 'End' }).click();
  await count(page, '#standing li', 0);
  const denied = call('destructive', 'stub:both_hints', {}, 'asks again');
  await cards.first().waitFor();
  await page.setViewportSize({ width: 375, height: 720 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 375, `approvals are ${wide} wide`);
  await shot('phone-approvals');
  await page.setViewportSize({ width: 1280, height: 860 });
  await cards.first().getByRole('button', { name: 'Deny' }).click();
  assert.equal(await denied, 403);
  await count(page, '#approvals li', 0);
  assert.equal(await page.locator('#waiting').isVisible(), false);
  await page.getByRole('link', { name: 'Activity' }).click();

  step('counts, as a plot and as numbers');
  await page.getByRole('link', { name: 'Counts' }).click();
  await page.locator('#plot rect.bar.success').first().waitFor();
  for (const status of ['error', 'blocked', 'rejected']) {
    assert.ok(await page.locator(`#plot rect.bar.${status}`).count() > 0, status);
  }
  await page.getByText('1 hour').click();
  await page.getByText('As a table').click();
  await count(page, '#plot g', 13);
  await page.getByRole('radio', { name: 'intent' }).check({ force: true });
  await page.locator('#plot rect.bar.destructive').first().waitFor();
  assert.match(await page.locator('#plot-table').innerText(), /destructive/);
  await shot('counts');

  step('servers with their state');
  await page.getByRole('link', { name: 'Servers' }).click();
  await page.locator('#servers .connected').waitFor();
  await page.locator('#servers .failed').waitFor();
  await shot('servers');

  step('tools, searched');
  await page.getByRole('link', { name: 'Tools' }).click();
  await page.locator('#tools li').nth(20).waitFor();
  await page.getByRole('button', { name: 'More' }).click();
  await page.locator('#tools li').nth(50).waitFor();
  await page.getByLabel('Search').fill('delete item');
  await page.locator('#tools li').first().getByText('stub:delete_item').waitFor();
  await page.getByText('Parameters').first().click();
  await shot('tools');

  step('a phone, in the dark');
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.setViewportSize({ width: 375, height: 720 });
  for (const name of ['Activity', 'Counts', 'Servers', 'Tools']) {
    await page.getByRole('link', { name, exact: true }).click();
    await page.locator(`#view-${name.toLowerCase()}`).waitFor();
    await page.locator(`#view-${name.toLowerCase()} :is(li, rect)`).first().waitFor();
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 375, `${name} is ${wide} wide`);
    await shot(`phone-${name.toLowerCase()}`);
  }
  const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(back, 'rgb(18, 21, 26)');
  await page.getByRole('link', { name: 'Activity' }).click();
  await page.locator('#rows a', { hasText: 'stub:violate' }).first().click();
  await record.getByText('Verdict').waitFor();
  await shot('phone-record');
  await page.getByRole('button', { name: 'Close' }).click();
  await record.waitFor({ state: 'hidden' });

  step('dark, at a desk');
  await page.setViewportSize({ width: 1280, height: 860 });
  await page.locator('#rows a', { hasText: 'stub:violate' }).first().click();
  await record.getByText('Verdict').waitFor();
  await shot('dark');

  step('locking forgets the key');
  await page.getByRole('button', { name: 'Lock' }).click();
  await page.getByLabel('API key').waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  assert.equal(await page.locator('#rows li').count(), 0);
  wrong.none();
}

/** Collects what must not happen while the page is used. */
function watch(page) {
  const found = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) found.push(`${message.text()} (${message.location().url})`);
  });
  page.on('pageerror', (error) => found.push(String(error)));
  page.on('request', (request) => {
    const url = request.url();
    if (!url.startsWith(`${base}/`) && !url.startsWith('data:')) found.push(`asks another host: ${url}`);
    if (url.includes(KEY)) found.push(`the key is in an address: ${url}`);
  });
  return {
    expected(pattern) {
      const rest = found.filter((problem) => !pattern.test(problem));
      assert.ok(rest.length < found.length, `nothing like ${pattern}`);
      found.splice(0, found.length, ...rest);
    },
    none() {
      assert.deepEqual(found, []);
    },
  };
}

async function count(page, selector, expected) {
  await until(async () => await page.locator(selector).count() === expected,
    async () => `${selector}: ${await page.locator(selector).count()}, not ${expected}`);
}

/** Waits until there are elements, and each of their texts fits. */
async function all(page, selector, fits) {
  await until(async () => {
    const texts = await page.locator(selector).allInnerTexts();
    return texts.length > 0 && texts.every(fits);
  }, async () => `${selector}: ${JSON.stringify(await page.locator(selector).allInnerTexts())}`);
}

async function until(holds, said) {
  const end = Date.now() + WAIT_MS;
  while (!await holds()) {
    if (Date.now() > end) assert.fail(await said());
    await new Promise((done) => { setTimeout(done, 50); });
  }
}

function focused(page) {
  return page.evaluate(() => document.activeElement.querySelector('.name')?.textContent);
}

function step(name) {
  console.log(`- ${name}`);
}

// ---- The server and its calls

function serve() {
  const stub = join(ROOT, 'target/debug/examples/stub');
  const config = {
    listen: `127.0.0.1:${port}`,
    api_key: KEY,
    data_dir: join(folder, 'data'),
    mcpServers: {
      stub: {
        command: stub, args: ['stdio'],
        capabilities: { no_hints: { approval: 'required' }, both_hints: { approval: 'required' } },
      },
      absent: { command: join(folder, 'no-such-program') },
    },
    output_validation: { mode: 'strict' },
  };
  mkdirSync(SHOTS, { recursive: true });
  const file = join(folder, 'config.json');
  writeFileSync(file, JSON.stringify(config), { mode: 0o600 });
  const log = openSync(join(SHOTS, 'mcpproxy.log'), 'w');
  return spawn(resolve(process.argv[2]), ['serve', '--config', file], { stdio: ['ignore', log, log] });
}

async function ready() {
  const end = Date.now() + READY_MS;
  for (;;) {
    const answer = await fetch(`${base}/readyz`).catch(() => undefined);
    if (answer?.ok) return;
    assert.ok(proxy.exitCode === null && Date.now() < end, `not ready, see ${SHOTS}/mcpproxy.log`);
    await new Promise((done) => { setTimeout(done, 50); });
  }
}

/** A call by REST; what comes of it is the record's affair. */
async function call(operation, tool, args, reason, sensitivity = 'internal') {
  const answer = await fetch(`${base}/api/v1/tools/call`, {
    method: 'POST',
    headers: { 'X-API-Key': KEY, 'Content-Type': 'application/json' },
    body: JSON.stringify({
      tool_name: `call_tool_${operation}`,
      arguments: { name: tool, args, intent: { operation_type: operation, reason, data_sensitivity: sensitivity } },
    }),
  });
  await answer.text();
  return answer.status;
}

async function makeCalls() {
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
