// Tools view: list, search, panel, trial calls, and comparison and approval of definitions.

import assert from 'node:assert/strict';

import { copies, count, decide, go, save, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, call, offers, rest } from '../proxy.mjs';
import { LONG_NAME } from '../talker.mjs';

export async function look({ page, wrong }) {
  step('tools are listed in compact rows and pages');
  await visit(page, 'tools');
  const panel = page.locator('#tool');
  const rows = page.locator('#tools tbody tr');
  const row = (name) => page.locator(`#tools tbody tr[data-name="${name}"]`);
  /** Opens the panel of a tool by a click on its row. */
  const open = async (name) => {
    await row(name).locator('th a').click();
    await panel.getByRole('heading', { name, exact: true }).waitFor();
    return panel;
  };
  await rows.nth(20).waitFor();
  const tall = () => rows.filter({ hasNotText: LONG_NAME }).evaluateAll((all) => all
    .filter((it) => it.offsetHeight >= 3 * Number.parseFloat(getComputedStyle(it).lineHeight))
    .map((it) => `${it.offsetWidth} × ${it.offsetHeight}: ${it.innerText}`));
  await until(async () => (await tall()).length === 0, async () => `rows are too high: ${await tall()}`);
  assert.equal(await rows.count(), 50, 'a list of many tools is paged');
  await page.getByText(/^50 of \d{3} tools$/).waitFor();
  await sound(page, 'tools');

  step('tools hidden by rules are counted with a link to the rules, and tools are searched');
  await page.route('**/api/v1/status', async (route) => {
    const response = await route.fetch();
    const { data, ...rest } = await response.json();
    await route.fulfill({ response, json: { ...rest, data: { ...data, tools: data.tools + 3 } } });
  });
  await page.reload();
  await page.locator('#tool-count', { hasText: /^50 of \d{3} tools; 3 tools are hidden by rules$/ }).getByRole('link').click();
  await page.waitForURL(/#policy\?principal=admin&part=explain$/);
  await page.unroute('**/api/v1/status');
  await page.route('**/api/v1/servers', async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    for (const it of json.data.servers) if (it.name === 'stub') it.tools += 2;
    await route.fulfill({ response, json });
  });
  await go(page, '#tools?server=stub');
  await page.locator('#tool-count', { hasText: /; 2 tools are hidden by rules$/ }).waitFor();
  await page.unroute('**/api/v1/servers');
  await go(page, '#tools');
  await page.reload();
  await page.getByText(/^50 of \d{3} tools$/).waitFor();
  await page.getByRole('button', { name: /^Show more of \d{3}$/ }).click();
  await rows.nth(50).waitFor();
  assert.ok(await rows.nth(50).locator('th a').evaluate((it) => it === document.activeElement), 'the first new row has the focus');
  await page.locator('#tool-form [name=q]').fill('no hints');
  await row('stub:no_hints').getByText('asks a person').waitFor();
  assert.equal(await row('stub:no_hints').locator('th wbr').count(), 2, 'a name can wrap after its separators');
  await page.locator('#tool-form [name=bare]').check();
  assert.match(page.url(), /bare=yes/);
  await until(async () => (await rows.allInnerTexts()).every((it) => it.includes('not marked')), () => rows.allInnerTexts());
  await page.locator('#tool-form [name=bare]').uncheck();
  await page.locator('#tool-form [name=q]').fill('delete item');
  await rows.first().getByText('stub:delete_item').waitFor();
  assert.match(page.url(), /#tools\?q=delete\+item/);
  await page.reload();
  await rows.first().getByText('stub:delete_item').waitFor();

  step('tools are sorted by calls and errors, and the error counts link to records');
  await go(page, '#tools');
  await page.locator('#tools thead button', { hasText: 'Calls' }).click();
  const numbers = async (column) => (await page.locator(`#tools tbody td:nth-child(${column})`).allInnerTexts()).map((it) => Number(it.replaceAll(',', '')));
  const falls = (all) => all.length === 50 && all[0] > 1 && all.every((it, at) => at === 0 || all[at - 1] >= it);
  await until(async () => falls(await numbers(3)), () => numbers(3));
  assert.match(page.url(), /sort=Calls/);
  const saved = (await save(page, 'tools')).split('\r\n');
  assert.ok(saved.length > 120, 'the file includes tools that are not shown yet');
  assert.match(saved[0], /^tool,operation,in quarantine,marked,calls,errors,description$/);
  assert.equal(saved[1].split(',')[0], await rows.first().locator('th a').innerText());
  await page.locator('#tools thead button', { hasText: 'Calls' }).click();
  await until(async () => (await numbers(3)).every((it) => it === 0), () => numbers(3));
  await page.locator('#tools thead button', { hasText: 'Errors' }).click();
  await until(async () => (await numbers(4))[0] > 0, () => numbers(4));
  const failures = rows.first().locator('.error-count a');
  const failed = Number(await failures.innerText());
  await failures.click();
  await until(async () => await page.locator('#rows li').count() === failed, () => page.locator('#rows li').allInnerTexts());
  await page.goBack();
  await page.goBack();

  step('Enter opens the panel of a row, and Escape closes it and restores the focus');
  await row('stub:delete_item').locator('th a').focus();
  await page.keyboard.press('Enter');
  await panel.getByRole('heading', { name: 'stub:delete_item' }).waitFor();
  assert.match(page.url(), /tool=stub%3Adelete_item/);
  await page.keyboard.press('Escape');
  await panel.waitFor({ state: 'hidden' });
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'stub:delete_item');
  const first = await open('stub:delete_item');
  await first.getByText('Parameters').click();
  await first.getByText('Output schema').click();
  await first.locator('details[open] .code, details[open] p').nth(1).waitFor();
  await first.getByText('Definition', { exact: true }).click();
  await first.getByText('the accepted definition').waitFor();
  await copies(page, first, 'Copy parameters', /^\{[\s\S]*"type": "object"/);
  await copies(page, first, 'Copy name', 'stub:delete_item');
  await first.locator('dt', { hasText: /^wait_ms$/ }).locator('+ dd', { hasText: /^integer$/ }).waitFor();
  await sound(page, 'tool');
  await page.keyboard.press('j');
  const next = await rows.nth(1).locator('th a').innerText();
  await panel.getByRole('heading', { name: next, exact: true }).waitFor();
  await panel.getByRole('link', { name: 'what the rules say' }).waitFor();
  await first.getByRole('button', { name: 'Close' }).click();
  await page.locator('#tool-form [name=q]').fill('');
  await page.locator('#tool-form [name=server]').selectOption('notes');
  await count(page, '#tools tbody tr', 1);
  await page.locator('#tool-form [name=held]').check();
  await page.getByText('No tool matches.').waitFor();

  step('a search typed while the servers load covers all servers');
  let answer;
  const waited = new Promise((done) => { answer = done; });
  await page.route('**/api/v1/servers', async (route) => {
    await waited;
    await route.continue();
  });
  await page.getByRole('link', { name: 'Show all tools' }).click();
  await rows.nth(20).waitFor();
  await page.locator('#tool-form [name=q]').fill('echo');
  await rows.first().getByText('stub:echo').waitFor();
  answer();
  await page.unroute('**/api/v1/servers');

  step('a trial call is made and recorded');
  const echo = await open('stub:echo');
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
  await echo.getByRole('link', { name: 'Show its record' }).click();
  await count(page, '#rows li', 1);
  assert.match(await page.locator('#rows li').innerText(), /tried on the page/);
  await go(page, '#tools?q=delete_item');
  const deletes = await open('stub:delete_item');
  await deletes.getByText('Try a call').click();
  await deletes.locator('[name=operation]').selectOption('read');
  await deletes.getByRole('button', { name: 'Call' }).click();
  await deletes.getByText(/use call_tool_destructive/).waitFor();
  wrong.expected(/403/);
  await deletes.locator('[name=operation]').selectOption('destructive');
  await deletes.getByRole('button', { name: 'Call' }).click();
  assert.match(await decide(page, false), /Call stub:delete_item/);

  step('added and changed tools appear without a reload, and open sections stay open');
  await go(page, '#tools?server=notes');
  await count(page, '#tools tbody tr', 1);
  const adds = await open('notes:add_tool');
  await adds.getByText('Parameters').click();
  await adds.getByText('Try a call').click();
  await adds.locator('[name=reason]').fill('typed before something came');
  const found = row('notes:added_note');
  offers([note('Keeps notes for you', { destructiveHint: true })]);
  await call('write', 'notes:add_tool', {}, 'the first definition');
  await found.waitFor();
  await count(page, '#tools tbody tr', 2);
  assert.equal(await adds.locator('details[open]').count(), 2, 'open sections stay open');
  assert.equal(await adds.locator('[name=reason]').inputValue(), 'typed before something came');
  assert.ok(await adds.locator('[name=reason]').evaluate((it) => it === document.activeElement));
  await open('notes:added_note');
  await panel.getByText('Definition', { exact: true }).click();
  await panel.getByText('the accepted definition').waitFor();
  offers([note('Keeps notes for you', { readOnlyHint: true })]);
  await call('write', 'notes:add_tool', {}, 'a looser definition');
  await found.getByText('in quarantine').waitFor();
  await panel.getByText('in quarantine').waitFor();
  await panel.getByText('differs from the accepted definition').waitFor(); // the open definition is requested again

  step('quarantined tools are found by filter and from the count of their server, until they are approved');
  await go(page, '#tools');
  await page.getByText(/^50 of \d{3} tools$/).waitFor();
  await page.locator('#tool-form [name=held]').check();
  await page.getByText('1 tool in quarantine').waitFor();
  await count(page, '#tools tbody tr', 1);
  await visit(page, 'servers');
  await page.locator('#servers tr[data-name=notes]').getByRole('link', { name: '1 in quarantine' }).click();
  await page.getByText('1 tool in quarantine').waitFor();
  assert.match(page.url(), /#tools\?server=notes&held=yes$/);
  await found.waitFor();
  const { digest } = (await rest('GET', 'tools/notes:added_note/diff')).data;
  assert.equal((await rest('POST', 'tools/notes:added_note/approve', { digest })).status, 200);
  await page.getByText('No tool matches.').waitFor();
  await visit(page, 'servers');
  await page.evaluate(() => history.back());
  await page.getByText('No tool matches.').waitFor();

  step('a quarantined definition is compared, and approved after a confirmation');
  await go(page, '#tools?q=added_note');
  await found.waitFor();
  offers([note(HOSTILE, { idempotentHint: true, openWorldHint: false })]);
  await call('write', 'notes:add_tool', {}, 'another definition');
  await found.getByText('in quarantine').waitFor();
  await open('notes:added_note');
  await panel.getByRole('button', { name: 'Approve' }).waitFor();
  const compared = await panel.innerText();
  for (const part of ['differs from the accepted definition', 'loosened', 'Keeps notes for you', '<img src=x onerror=', '\\u{202e}']) {
    assert.ok(compared.includes(part), `${part}: ${compared}`);
  }
  assert.equal(await panel.locator('img, script').count(), 0);
  const beside = await panel.locator('.sides', { has: page.locator('.old') }).first().locator('pre').evaluateAll((all) => all.map((it) => it.getBoundingClientRect()).map(({ left, top }) => [left, top]));
  assert.ok(beside.length === 2 && beside[0][0] < beside[1][0] && Math.abs(beside[0][1] - beside[1][1]) < 2, `old and new are side by side: ${JSON.stringify(beside)}`);
  await sound(page, 'definition');
  // A click is ignored just after the definition appears under the pointer.
  await until(async () => {
    await panel.getByRole('button', { name: 'Approve' }).click();
    return await page.locator('dialog').count() > 0;
  }, () => 'no dialog is shown');
  assert.match(await decide(page, false), /Approve notes:added_note as it is defined now[^]*hidden-characters \(/, 'the findings are repeated');
  assert.match(await panel.innerText(), /in quarantine/);
  await panel.getByRole('button', { name: 'Approve' }).click();
  await decide(page);
  await until(async () => !(await panel.innerText()).includes('in quarantine'), () => panel.innerText());
  await panel.getByText('the accepted definition').waitFor();
  assert.equal(await panel.getByRole('button', { name: 'Approve' }).count(), 0);
}

function note(description, annotations) {
  return { name: 'added_note', description, inputSchema: { type: 'object' }, annotations };
}
