// The servers: restarted, disabled and enabled, logged in to, their logs.

import assert from 'node:assert/strict';

import { shot, sound, step, until, visit } from '../checks.mjs';
import { call, configured } from '../proxy.mjs';

export async function look({ page, dialogs }) {
  await visit(page, 'servers');
  const card = (name) => page.locator(`#servers > li[data-name="${name}"]`);
  step('servers with their state, and why');
  await card('stub').locator('.connected').waitFor();
  await card('absent').locator('.failed').waitFor();
  assert.match(await card('absent').innerText(), /no-such-program/);
  await sound(page, 'servers');
  assert.match(await card('absent').innerText(), /calls\s+0[\s\S]*took \(median\)\s+–/, 'no call took no time');

  step('a server is disabled in the file with a second word, and enabled again');
  const notes = card('notes');
  dialogs.sure = false;
  await notes.getByRole('button', { name: 'Disable' }).click();
  assert.match(dialogs.asked.pop(), /Disable notes/);
  assert.equal(configured().mcpServers.notes.enabled, undefined);
  dialogs.sure = true;
  await notes.getByRole('button', { name: 'Disable' }).click();
  await notes.locator('.disabled').waitFor();
  dialogs.asked.length = 0;
  assert.equal(configured().mcpServers.notes.enabled, false);
  await shot(page, 'server-disabled');
  await notes.getByRole('button', { name: 'Enable' }).click();
  await notes.locator('.connected').waitFor();
  assert.notEqual(configured().mcpServers.notes.enabled, false);

  step('a server is restarted, and its log followed');
  const since = () => notes.locator('time').getAttribute('datetime');
  const before = await since();
  await notes.getByRole('button', { name: 'Restart' }).click();
  await until(async () => await since() !== before && await notes.locator('.connected').count() === 1, () => notes.innerText());
  await notes.getByText('Log', { exact: true }).click();
  await until(async () => (await notes.locator('.log').innerText()).length > 0, () => notes.innerText());
  await sound(page, 'server-log');

  step('a login is begun here, and done where it leads');
  const locked = card('locked');
  assert.match(await locked.innerText(), /needs login/);
  await locked.getByRole('button', { name: 'Log in' }).click();
  const leads = locked.getByRole('link', { name: 'Open the login' });
  await leads.waitFor();
  await sound(page, 'server-login');
  const [other] = await Promise.all([page.context().waitForEvent('page'), leads.click()]);
  await other.getByText('Thank you').waitFor();
  await other.close();
  await locked.locator('.connected').waitFor();
  await until(async () => await locked.getByRole('button', { name: 'Log in' }).count() === 0, () => locked.innerText());
  assert.equal(await call('read', 'locked:who_am_i', {}, 'to see whether the login counts'), 200);

  step('its counts lead to records and tools');
  await card('stub').locator('dd').getByRole('link').first().click();
  await page.locator('#tools li').first().waitFor();
  assert.match(page.url(), /#tools\?server=stub/);
  await page.goBack();
  await card('stub').getByRole('link', { name: 'what became of it' }).click();
  await page.locator('#rows li').first().waitFor();
}
