// Login and logout: the one-time URL that the CLI prints, the API key, and the end of the session.

import assert from 'node:assert/strict';

import { copies, sound, step, until, visit } from '../checks.mjs';
import { KEY, address, base } from '../proxy.mjs';

export async function look({ page, browser, wrong }) {
  step('the page without a session shows the login form, and a wrong key is rejected');
  await page.goto(`${base}/`);
  assert.equal(page.url(), `${base}/ui/`);
  await page.getByLabel('API key').waitFor();
  await sound(page, 'login');
  await copies(page, page.locator('#key-form'), 'Copy mcpproxy page', 'mcpproxy page');
  await page.getByLabel('API key').fill('not the key');
  await page.keyboard.press('Enter');
  await page.getByText('Wrong API key.').waitFor();
  wrong.expected(/401/);

  step('the login URL opens a session that scripts cannot read, and its code is removed from the URL');
  const once = await address();
  await page.goto(once);
  await page.locator('#view-now').waitFor();
  assert.ok(!page.url().includes('code'), page.url());
  const kept = await page.evaluate(() => [document.cookie, sessionStorage.length, localStorage.length]);
  assert.deepEqual(kept, ['', 0, 0], 'scripts cannot read the session');
  const [cookie] = await browser.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, 'Strict', '/']);
  await page.reload();
  await page.locator('#view-now').waitFor();

  step('the first tab stop skips the navigation');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'skip');
  assert.ok((await page.locator('#skip').boundingBox()).x >= 0, 'the skip button is visible while it has the focus');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'main');

  step('a login URL works only once');
  await page.getByRole('button', { name: 'Lock' }).click();
  await page.getByLabel('API key').waitFor();
  await until(async () => (await browser.cookies()).length === 0, async () => JSON.stringify(await browser.cookies()));
  await page.goto('about:blank');
  await page.goto(once);
  await page.getByText('was used already or has expired').waitFor();
  wrong.expected(/401/);

  step('responses that arrive after the page is locked are not shown');
  await page.getByLabel('API key').fill(KEY);
  await page.keyboard.press('Enter');
  await page.locator('#now-tiles .tile').first().waitFor();
  const held = [];
  await page.route(/api\/v1\/(status|servers|tools|activity\/summary)/, async (route) => {
    const response = await route.fetch(); // while the session is valid
    await new Promise((done) => { held.push(done); });
    await route.fulfill({ response });
  });
  await visit(page, 'tools');
  await visit(page, 'policy');
  await visit(page, 'now');
  await until(() => held.length >= 5, () => `${held.length} responses are held`);
  await page.getByRole('button', { name: 'Lock' }).click();
  await page.getByLabel('API key').waitFor();
  await page.getByLabel('API key').fill('being typed');
  const late = held.length;
  let came = 0;
  page.on('requestfinished', (request) => { came += /api\/v1\/(status|servers|tools|activity\/summary)/.test(request.url()); });
  held.forEach((done) => done());
  await until(() => came >= late, () => `${came} of ${late} responses arrived`);
  await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); }));
  await page.unroute(/api\/v1\/(status|servers|tools|activity\/summary)/);
  const places = ['#now-tiles', '#now-about', '#faults', '#servers', '#server', '#tools tbody', '#tool', '#rules', '#tool-names', '#failures', '#decided', '#principals', '#principal-names', '#fleet-nodes'];
  const left = await page.evaluate((all) => all.filter((place) => document.querySelector(place).childElementCount), places);
  assert.deepEqual(left, [], 'no data is shown or kept');
  assert.equal(await page.getByLabel('API key').inputValue(), 'being typed');
  assert.equal(await page.locator('#key-error').innerText(), '');

  step('the API key is exchanged for a session');
  await page.getByLabel('API key').fill(KEY);
  await page.keyboard.press('Enter');
  await page.locator('#view-now').waitFor();
  assert.deepEqual(await page.evaluate(() => [document.cookie, sessionStorage.length]), ['', 0]);

  step('the color scheme is selected, survives a reload, and follows the system again');
  const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const colors = page.getByLabel('Colors');
  const light = await back();
  await colors.selectOption('dark');
  const dark = await back();
  assert.notEqual(dark, light);
  await page.reload();
  await page.locator('#view-now').waitFor();
  assert.deepEqual([await back(), await colors.inputValue()], [dark, 'dark']);
  await page.emulateMedia({ colorScheme: 'dark' });
  await colors.selectOption('light');
  assert.equal(await back(), light, 'light scheme on a dark system');
  await colors.selectOption('');
  assert.equal(await back(), dark);
  await page.emulateMedia({ colorScheme: 'light' });
  assert.deepEqual([await back(), await page.evaluate(() => localStorage.length)], [light, 0], 'the local storage has no color scheme');
}

export async function leave({ page, browser, wrong }) {
  step('an ended session requires a login, and a locked page keeps no data');
  const other = await browser.newPage();
  await other.goto(`${base}/ui/#activity`);
  await other.locator('#rows li').first().waitFor();
  await other.getByLabel('Add a filter').selectOption('principal');
  await other.locator('#filters [name=principal]').fill('typed');
  await other.locator('#server-names option').first().waitFor({ state: 'attached' });
  await other.waitForURL(/principal=typed/);
  await visit(other, 'tools');
  await other.locator('#tool-form [name=q]').fill('typed');
  await other.waitForURL(/q=typed/);
  await visit(other, 'policy');
  for (const name of ['#explain-form [name=args]', '#explain-form [name=tool]', '#replay-form [name=rules]']) await other.locator(name).fill('typed');
  await other.locator('#tool-names option').first().waitFor({ state: 'attached' });
  await other.getByRole('button', { name: 'Lock' }).click();
  await other.getByLabel('API key').waitFor();
  assert.equal(await other.locator('#rows li').count(), 0);
  const typed = await other.evaluate(() => [...document.querySelectorAll('#open input, #open textarea')].filter((it) => it.value !== it.defaultValue).map((it) => it.name));
  assert.deepEqual(typed, [], 'no input is kept');
  assert.equal(await other.locator('datalist option').count(), 0);
  await other.close();
  await page.bringToFront();
  await page.getByText('The session is over').waitFor();
  wrong.expected(/401/);
  await page.reload();
  await page.getByLabel('API key').waitFor();
  wrong.expected(/401/);
}
