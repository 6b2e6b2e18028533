// Logging in: the address of a terminal, once; the key by hand; and the end of it.

import assert from 'node:assert/strict';

import { VIEWS, go, shot, sound, step, visit } from '../checks.mjs';
import { KEY, address, base } from '../proxy.mjs';

export async function look({ page, browser, wrong }) {
  step('without a session the page asks how to log in, and a wrong key is refused');
  await page.goto(`${base}/`);
  assert.equal(page.url(), `${base}/ui/`);
  await page.getByLabel('API key').waitFor();
  await sound(page, 'login');
  await page.getByLabel('API key').fill('not the key');
  await page.keyboard.press('Enter');
  await page.getByText('This is not the key.').waitFor();
  wrong.expected(/401/);

  step('the address of a terminal opens it once, and leaves nothing in the address');
  const once = await address();
  await page.goto(once);
  await page.locator('#view-now').waitFor();
  assert.ok(!page.url().includes('code'), page.url());
  const kept = await page.evaluate(() => [document.cookie, sessionStorage.length, localStorage.length]);
  assert.deepEqual(kept, ['', 0, 0], 'no script can read the session');
  const [cookie] = await browser.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, 'Strict', '/']);
  await page.reload();
  await page.locator('#view-now').waitFor();

  step('with nothing on record every view says what to do next');
  for (const name of VIEWS) {
    await visit(page, name);
    await page.locator(`#view-${name}`).locator('.card:visible, form:visible').first().waitFor();
  }
  await go(page, '#activity?type=tool_call&range=1h');
  await page.getByText('No record fits the filters.').waitFor();
  await page.getByRole('link', { name: 'Show all records' }).click();
  await visit(page, 'approvals');
  await page.getByText('No call waits for approval.').waitFor();
  await shot(page, 'empty');

  step('the same address opens no other browser');
  await page.getByRole('button', { name: 'Lock' }).click();
  await page.getByLabel('API key').waitFor();
  assert.deepEqual(await browser.cookies(), []);
  await page.goto('about:blank');
  await page.goto(once);
  await page.getByText('has been used, or is too old').waitFor();
  wrong.expected(/401/);

  step('the key by hand is exchanged for a session');
  await page.getByLabel('API key').fill(KEY);
  await page.keyboard.press('Enter');
  await page.locator('#view-now').waitFor();
  assert.deepEqual(await page.evaluate(() => [document.cookie, sessionStorage.length]), ['', 0]);
}

export async function leave({ page, browser, wrong }) {
  step('a session that is over asks for another, and locking shows nothing any more');
  const other = await browser.newPage();
  await other.goto(`${base}/ui/#activity`);
  await other.locator('#rows li').first().waitFor();
  await other.getByRole('button', { name: 'Lock' }).click();
  await other.getByLabel('API key').waitFor();
  assert.equal(await other.locator('#rows li').count(), 0);
  await other.close();
  await page.bringToFront();
  await page.getByText('The session is over').waitFor();
  wrong.expected(/401/);
  await page.reload();
  await page.getByLabel('API key').waitFor();
  wrong.expected(/401/);
}
