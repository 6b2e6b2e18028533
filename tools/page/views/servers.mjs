// The servers: restarted, disabled and enabled, logged in to, their logs.

import assert from 'node:assert/strict';

import { ZONE, copies, keepsFocus, refresh, shot, sound, step, until, visit } from '../checks.mjs';
import { call, configured, rest } from '../proxy.mjs';

export async function look({ page, dialogs, wrong }) {
  await visit(page, 'servers');
  const card = (name) => page.locator(`#servers > li[data-name="${name}"]`);
  step('servers with their state, and why');
  await card('stub').locator('.connected').waitFor();
  await card('absent').locator('.failed').waitFor();
  assert.match(await card('absent').innerText(), /no-such-program/);
  await sound(page, 'servers');
  assert.match(await card('absent').innerText(), /calls\s+0[\s\S]*took\s+–/, 'no call took no time');

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

  step('the focus stays where it is while counts change');
  await keepsFocus(page, card('stub').locator('dd').getByRole('link', { name: 'what became of it' }), ['servers'],
    () => call('read', 'stub:echo', {}, 'changes the counts'));

  step('what went wrong with an action is said until it was read, or something else is done');
  await page.route('**/api/v1/servers/notes/restart', (route) => route.fulfill({ status: 500, json: { success: false, error: 'it cannot be restarted now' } }), { times: 2 });
  const failed = page.locator('#failed');
  await notes.getByRole('button', { name: 'Restart' }).click();
  await failed.getByText('it cannot be restarted now').waitFor();
  for (let round = 0; round < 2; round += 1) await refresh(page, 'servers', 'approvals');
  await sound(page, 'failed-action');
  assert.ok(await failed.isVisible(), 'that something else works is no reason to say nothing');
  await failed.getByRole('button', { name: 'Dismiss' }).click();
  await failed.waitFor({ state: 'hidden' });
  await notes.getByRole('button', { name: 'Restart' }).click();
  await failed.getByText('it cannot be restarted now').waitFor();
  wrong.expected(/500/);

  step('a server is restarted, and its log followed');
  const since = () => notes.locator('time').getAttribute('datetime');
  const before = await since();
  await notes.getByRole('button', { name: 'Restart' }).click();
  await until(async () => await since() !== before && await notes.locator('.connected').count() === 1, () => notes.innerText());
  await failed.waitFor({ state: 'hidden' });
  await notes.getByText('Log', { exact: true }).click();
  await notes.locator('.log').getByText('It has said nothing yet.').waitFor();
  const said = card('chatty').locator('.log');
  await card('chatty').getByText('Log', { exact: true }).click();
  await until(async () => /ready: the first line/.test(await said.innerText()), () => said.innerText());
  await call('read', 'chatty:say', { note: 'a line that follows\u202e' }, 'makes it say something');
  await until(async () => /asked: a line that follows\\u\{202e\}$/.test(await said.innerText()), () => said.innerText());
  const { lines } = (await rest('GET', 'servers/chatty/logs?limit=200')).data;
  const local = new Intl.DateTimeFormat('sv', { timeZone: ZONE, timeStyle: 'medium' });
  assert.equal((await said.innerText()).split('\n').at(-1).slice(0, 8), local.format(new Date(lines.at(-1).time)), 'in the time zone of the rest of the page');
  await card('chatty').scrollIntoViewIfNeeded();
  await sound(page, 'server-log');

  step('a login is begun here, and done where it leads');
  const locked = card('locked');
  assert.match(await locked.innerText(), /needs login/);
  await locked.getByRole('button', { name: 'Log in' }).click();
  const leads = locked.getByRole('link', { name: 'Open the login' });
  await leads.waitFor();
  await copies(page, locked, 'Copy address', await leads.getAttribute('href'));
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
  await page.locator('#rows li', { hasText: /connected, \d+ tools/ }).first().waitFor();
  await page.goBack();
  await card('absent').getByRole('link', { name: 'what became of it' }).click();
  await page.locator('#rows li', { hasText: /no-such-program/ }).first().waitFor();
  await page.goto(page.url().replace(/#.*/, '#servers?name=notes'));
  await page.locator('#servers > li.marked', { hasText: 'notes' }).waitFor();
}
