// Shared helpers and checks: waits, forbidden events, axe, and phone layout.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

import { KEY, SHOTS, base } from './proxy.mjs';

export const WAIT_MS = 60_000; // timeout of each wait; allows for a busy machine
export const ZONE = 'Asia/Kolkata'; // time zone of the browser; its offset distinguishes local times from UTC
export const DESK = { width: 1280, height: 860 };
export const PHONE = { width: 390, height: 844 };
const AXE = readFileSync(createRequire(join(SHOTS, 'package.json')).resolve('axe-core/axe.min.js'), 'utf8');

export const VIEWS = ['now', 'activity', 'approvals', 'principals', 'servers', 'tools', 'policy', 'fleet', 'settings'];

export function step(name) {
  console.log(`- ${name}`);
}

export const shot = (page, name) => page.screenshot({ path: join(SHOTS, `${name}.png`) });

/** Opens a view with its link in the navigation. */
export async function visit(page, name) {
  const label = name === 'now' ? 'Overview' : name[0].toUpperCase() + name.slice(1);
  await page.getByRole('navigation').getByRole('link', { name: new RegExp(`^${label}`) }).click();
  await page.locator(`#view-${name}`).waitFor();
}

/** Sets the URL fragment of the page. */
export async function go(page, hash) {
  await page.evaluate((to) => { location.hash = to; }, hash);
}

/** Collects forbidden events of a page from the proxy at `own`: console errors and warnings, exceptions, requests to
 * other hosts, and secrets in URLs. */
export function watch(page, own = base) {
  const found = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) found.push(`${message.text()} (${message.location().url})`);
  });
  page.on('pageerror', (error) => found.push(String(error)));
  page.on('request', (request) => {
    const url = request.url();
    if (!url.startsWith(`${own}/`) && !url.startsWith('data:')) found.push(`request to another host: ${url}`);
    if (url.includes(KEY) || url.includes('code=')) found.push(`secret in a URL: ${url}`);
  });
  return {
    expected(pattern) {
      const rest = found.filter((problem) => !pattern.test(problem));
      assert.ok(rest.length < found.length, `no forbidden event matches ${pattern}`);
      found.splice(0, found.length, ...rest);
    },
    all: () => found,
    none() {
      assert.deepEqual(found, []);
    },
  };
}

async function axe(page, what) {
  await page.evaluate(AXE);
  const found = await page.evaluate(async () => {
    // The links of the page point to URL fragments, so axe would treat them as skip links. The skip link of the page is
    // a button, which views/login.mjs tests.
    const { violations } = await globalThis.axe.run(document, { resultTypes: ['violations'], rules: { 'skip-link': { enabled: false } } });
    return violations.map((it) => `${it.id}: ${it.help}: ${it.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join('; ')}`);
  });
  assert.deepEqual(found, [], `axe violations in ${what}`);
}

/** Takes screenshots and checks for axe violations in both color schemes and at the width of a phone. Also checks the
 * phone layout: horizontal overflow, visibility of the current navigation link, plot width, and header height. */
export async function sound(page, name) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await axe(page, `${name}, ${colorScheme}`);
    await shot(page, `${name}-${colorScheme}`);
  }
  await page.setViewportSize(PHONE);
  await until(() => page.evaluate(() => {
    const [row, here] = ['nav', 'nav [aria-current]'].map((it) => document.querySelector(it)?.getBoundingClientRect());
    return !here?.width || (here.left >= row.left - 1 && here.right <= row.right + 1);
  }), () => `the current navigation link is scrolled out of view: ${name}`);
  await until(() => page.evaluate(() => [...document.querySelectorAll('.plot svg')]
    .every(({ viewBox, clientWidth }) => !clientWidth || Math.abs(viewBox.baseVal.width - clientWidth) < 2)), () => `a plot does not match the width of a phone: ${name}`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  await shot(page, `${name}-phone-dark`); // color scheme of the last iteration
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
  await shot(page, `${name}-phone-light`);
  assert.ok(wide <= PHONE.width, `${name} is ${wide} px wide on a phone`);
  await axe(page, `${name}, on a phone`);
  const header = await page.evaluate(() => document.querySelector('header').offsetHeight);
  assert.ok(header <= PHONE.height / 7, `the header is ${header} px high on a phone of ${PHONE.height} px`);
  await page.setViewportSize(DESK);
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
}

/** Waits until the page has rendered the received data. */
export const drawn = (page) => page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); }));

/** Refreshes the page with the event of a return to its tab. Waits for the responses to the API paths `asks`. */
export async function refresh(page, ...asks) {
  const came = asks.map((path) => page.waitForResponse((it) => new URL(it.url()).pathname === `/api/v1/${path}`));
  await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  for (const response of await Promise.all(came)) await response.finished();
  await drawn(page);
}

/** Delays requests for `path`. The returned function releases them with `answer` and waits until the page has had time
 * to render the result. */
export async function hold(page, path, answer = (route) => route.continue()) {
  let release;
  const held = new Promise((done) => { release = done; });
  await page.route(path, async (route) => {
    await held;
    await answer(route);
  });
  return async () => {
    const came = page.waitForResponse(path);
    release();
    await (await came).finished();
    await page.evaluate(() => new Promise((done) => { setTimeout(done, 200); }));
    await page.unroute(path);
  };
}

/** Checks that an element keeps the focus while the page refreshes twice. `changes` runs before each refresh. */
export async function keepsFocus(page, it, asks, changes = async () => {}) {
  await it.focus();
  const focused = await it.elementHandle();
  for (let round = 0; round < 2; round += 1) {
    await changes();
    await refresh(page, ...asks);
    assert.ok(await focused.evaluate((one) => one === document.activeElement), `${it} lost the focus to ${await page.evaluate(() => document.activeElement.outerHTML.slice(0, 200))}`);
  }
}

/** Presses a Copy button, and checks its confirmation and the content of the clipboard. */
export async function copies(page, within, name, expected) {
  const pressed = within.getByRole('button', { name, exact: true }).first();
  const words = await pressed.elementHandle();
  await pressed.click();
  await until(async () => await words.textContent() === 'Copied', () => words.textContent());
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.ok(expected instanceof RegExp ? expected.test(copied) : copied === expected, copied);
}

/** Presses *Download CSV* in a view, and returns the content of the file. */
export async function save(page, view) {
  const [file] = await Promise.all([page.waitForEvent('download'), page.locator(`#view-${view}`).getByRole('button', { name: 'Download CSV' }).click()]);
  assert.equal(file.suggestedFilename(), `mcpproxy-${view}.csv`);
  return readFileSync(await file.path(), 'utf8');
}

export async function count(page, selector, expected) {
  await until(async () => await page.locator(selector).count() === expected,
    async () => `${selector}: ${await page.locator(selector).count()}, not ${expected}`);
}

/** Waits until at least one element exists and the text of each element matches. */
export async function all(page, selector, fits) {
  await until(async () => {
    const texts = await page.locator(selector).allInnerTexts();
    return texts.length > 0 && texts.every(fits);
  }, async () => `${selector}: ${JSON.stringify(await page.locator(selector).allInnerTexts())}`);
}

export async function until(holds, said) {
  const end = Date.now() + WAIT_MS;
  while (!await holds()) {
    if (Date.now() > end) assert.fail(await said());
    await new Promise((done) => { setTimeout(done, 50); });
  }
}

/** Confirms or cancels the page's dialog, and returns its text. Checks that Cancel has the initial focus, so that a
 * repeated Enter does not confirm. */
export async function decide(page, sure = true) {
  const dialog = page.getByRole('dialog');
  const question = await dialog.innerText();
  assert.ok(await dialog.getByRole('button', { name: 'Cancel' }).evaluate((it) => it === document.activeElement), 'the focus is on Cancel');
  if (sure) await dialog.locator('.primary').click();
  else await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  return question;
}
