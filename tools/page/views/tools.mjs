// The tools: searched, looked into, compared and approved, and called.

import assert from 'node:assert/strict';

import { copies, count, go, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, call, offers, rest } from '../proxy.mjs';

export async function look({ page, dialogs, wrong }) {
  step('tools, searched and by server');
  await visit(page, 'tools');
  await page.locator('#tools > li').nth(20).waitFor();
  await page.getByRole('button', { name: 'More' }).click();
  await page.locator('#tools > li').nth(50).waitFor();
  await page.locator('#tool-form [name=q]').fill('delete item');
  await page.locator('#tools > li').first().getByText('stub:delete_item').waitFor();
  assert.match(page.url(), /#tools\?q=delete\+item/);
  await page.reload();
  await page.locator('#tools > li').first().getByText('stub:delete_item').waitFor();
  const first = page.locator('#tools > li').first();
  await first.getByText('Parameters').click();
  await first.getByText('Answers').click();
  await first.locator('details[open] .code, details[open] p').nth(1).waitFor();
  await first.getByText('Definition', { exact: true }).click();
  await first.getByText('the accepted one').waitFor();
  await copies(page, first, 'Copy parameters', /^\{[\s\S]*"type": "object"/);
  await sound(page, 'tools');
  await page.locator('#tool-form [name=q]').fill('');
  await page.locator('#tool-form [name=server]').selectOption('notes');
  await count(page, '#tools > li', 1);
  await page.locator('#tool-form [name=held]').check();
  await page.getByText('No tool fits.').waitFor();

  step('what is typed while the servers are still asked for is searched in all of them');
  let answer;
  const waited = new Promise((done) => { answer = done; });
  await page.route('**/api/v1/servers', async (route) => {
    await waited;
    await route.continue();
  });
  await page.getByRole('link', { name: 'Show all tools' }).click();
  await page.locator('#tools > li').nth(20).waitFor();
  await page.locator('#tool-form [name=q]').fill('echo');
  await page.locator('#tools > li').first().getByText('stub:echo').waitFor();
  answer();
  await page.unroute('**/api/v1/servers');

  step('a call is tried, and is on record');
  const echo = page.locator('#tools > li', { has: page.getByRole('heading', { name: 'stub:echo', exact: true }) });
  await echo.getByText('Try a call').click();
  await echo.locator('[name=args]').fill('{"note": ');
  await echo.getByRole('button', { name: 'Call' }).click();
  await echo.getByText('The arguments are not JSON').waitFor();
  await echo.locator('[name=args]').fill('{"note": "by hand"}');
  await echo.locator('[name=reason]').fill('tried on the page');
  await echo.getByRole('button', { name: 'Call' }).click();
  await echo.locator('.came .success').waitFor();
  assert.match(await echo.locator('.came').innerText(), /by hand/);
  await sound(page, 'trial');
  await echo.getByRole('link', { name: 'Its record' }).click();
  await count(page, '#rows li', 1);
  assert.match(await page.locator('#rows li').innerText(), /tried on the page/);
  await go(page, '#tools?q=delete_item');
  const deletes = page.locator('#tools > li', { has: page.getByRole('heading', { name: 'stub:delete_item', exact: true }) });
  await page.locator('#tools > li').first().getByText('stub:delete_item').waitFor();
  await deletes.getByText('Try a call').click();
  await deletes.locator('[name=operation]').selectOption('read');
  await deletes.getByRole('button', { name: 'Call' }).click();
  await deletes.getByText(/use call_tool_destructive/).waitFor();
  wrong.expected(/403/);
  dialogs.sure = false;
  await deletes.locator('[name=operation]').selectOption('destructive');
  await deletes.getByRole('button', { name: 'Call' }).click();
  assert.match(dialogs.asked.pop(), /Call stub:delete_item/);
  dialogs.sure = true;

  step('a tool that comes, changes and is approved elsewhere is seen without asking again, and what is open stays open');
  await go(page, '#tools?server=notes');
  await count(page, '#tools > li', 1);
  const adds = page.locator('#tools > li', { has: page.getByRole('heading', { name: 'notes:add_tool', exact: true }) });
  await adds.getByText('Parameters').click();
  await adds.getByText('Try a call').click();
  await adds.locator('[name=reason]').fill('typed before something came');
  const found = page.locator('#tools > li', { hasText: 'notes:added_note' });
  offers([note('Keeps notes for you', { destructiveHint: true })]);
  await call('write', 'notes:add_tool', {}, 'the first definition');
  await found.waitFor();
  await count(page, '#tools > li', 2);
  assert.equal(await adds.locator('details[open]').count(), 2, 'what is open stays open');
  assert.equal(await adds.locator('[name=reason]').inputValue(), 'typed before something came');
  assert.ok(await adds.locator('[name=reason]').evaluate((it) => it === document.activeElement));
  await found.getByText('Definition', { exact: true }).click();
  await found.getByText('the accepted one').waitFor();
  offers([note('Keeps notes for you', { readOnlyHint: true })]);
  await call('write', 'notes:add_tool', {}, 'a looser definition');
  await found.getByText('in quarantine').waitFor();
  await found.getByText('another one is accepted').waitFor(); // its definition is still open, and asked for anew

  step('what is in quarantine is found among many tools, also from the count of its server');
  await go(page, '#tools');
  await page.getByText(/^\d{3} tools$/).waitFor();
  await page.locator('#tool-form [name=held]').check();
  await page.getByText('1 tool in quarantine').waitFor();
  await count(page, '#tools > li', 1);
  await visit(page, 'servers');
  await page.locator('#servers > li[data-name=notes]').getByRole('link', { name: '1', exact: true }).click();
  await page.getByText('1 tool in quarantine').waitFor();
  assert.match(page.url(), /#tools\?server=notes&held=yes$/);
  await found.waitFor();
  const { digest } = (await rest('GET', 'tools/notes:added_note/diff')).data;
  assert.equal((await rest('POST', 'tools/notes:added_note/approve', { digest })).status, 200);
  await page.getByText('No tool fits.').waitFor();
  await visit(page, 'servers');
  await page.evaluate(() => history.back());
  await page.getByText('No tool fits.').waitFor();

  step('a definition that waits is compared and approved as it was seen, with a second word');
  await go(page, '#tools?q=added_note');
  await found.waitFor();
  offers([note(HOSTILE, { idempotentHint: true, openWorldHint: false })]);
  await call('write', 'notes:add_tool', {}, 'another definition');
  await found.getByText('in quarantine').waitFor();
  await found.getByText('What waits for approval').click();
  await found.getByRole('button', { name: 'Approve' }).waitFor();
  const compared = await found.innerText();
  for (const part of ['another one is accepted', 'loosened', 'Keeps notes for you', '<img src=x onerror=', '\\u{202e}']) {
    assert.ok(compared.includes(part), `${part}: ${compared}`);
  }
  assert.equal(await found.locator('img, script').count(), 0);
  await sound(page, 'definition');
  dialogs.sure = false;
  await found.getByRole('button', { name: 'Approve' }).click();
  assert.match(dialogs.asked.pop(), /Approve notes:added_note as it is defined now/);
  assert.match(await found.innerText(), /in quarantine/);
  dialogs.sure = true;
  await found.getByRole('button', { name: 'Approve' }).click();
  await until(async () => !(await found.innerText()).includes('in quarantine'), () => found.innerText());
  await found.getByText('the accepted one').waitFor();
  assert.equal(await found.getByRole('button', { name: 'Approve' }).count(), 0);
  dialogs.asked.length = 0;
}

function note(description, annotations) {
  return { name: 'added_note', description, inputSchema: { type: 'object' }, annotations };
}
