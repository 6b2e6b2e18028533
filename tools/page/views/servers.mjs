// Servers view: list, search, panel, adding, removal, restart, disabling, login, and log.

import assert from 'node:assert/strict';

import { ZONE, copies, count, decide, go, keepsFocus, refresh, save, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, KEY, call, configure, configured, offers, rest } from '../proxy.mjs';

const [MANY, SHOWN] = [150, 100]; // number of servers, and number shown at first

export async function look({ page, wrong }) {
  await visit(page, 'servers');
  const row = (name) => page.locator(`#servers tbody tr[data-name="${name}"]`);
  const panel = page.locator('#server');
  const search = page.locator('#server-form [name=q]');
  const names = () => page.locator('#servers tbody tr').evaluateAll((all) => all.map((it) => it.dataset.name));
  /** Opens the panel of a server by a click on its row. */
  const open = async (name) => {
    await row(name).getByRole('rowheader').getByRole('link').click();
    await panel.getByRole('heading', { name, exact: true }).waitFor();
  };

  step('servers are listed with state and reason, failed servers first');
  await row('stub').locator('.connected').waitFor();
  await row('absent').locator('.failed').waitFor();
  assert.match(await row('absent').innerText(), /no-such-program/);
  assert.match(await row('locked').innerText(), /needs login run mcpproxy/, 'the reason does not repeat the state');
  assert.deepEqual(await names(), ['absent', 'locked', 'chatty', 'notes', 'stub']);
  const heights = await page.locator('#servers tbody tr').evaluateAll((all) => all.map((it) => it.offsetHeight / Number.parseFloat(getComputedStyle(it).lineHeight)));
  assert.ok(heights.every((high) => high < 4.5), `a reason has at most three lines: ${heights}`);
  assert.ok(await row('absent').locator('.cut').evaluate((it) => it.scrollHeight <= it.clientHeight + 1 && it.scrollWidth <= it.clientWidth + 1), 'the reason is not clipped');
  await page.locator('#view-servers').getByText('3 of 5 connected').waitFor();
  const heads = await page.locator('#servers thead th').allInnerTexts();
  const cell = (name, head) => row(name).locator('th, td').nth(heads.indexOf(head)).innerText();
  const { calls } = (await rest('GET', 'servers')).data.servers.find((it) => it.name === 'stub');
  await until(async () => await cell('stub', 'Refused') === String(calls.blocked + calls.rejected), () => row('stub').innerText());
  assert.equal(await cell('absent', 'Median'), '–', 'no median is shown without calls');
  await sound(page, 'servers');

  step('a click in a row opens its panel, and a column heading sorts the list');
  await row('chatty').locator('td').nth(4).click();
  await panel.getByRole('heading', { name: 'chatty', exact: true }).waitFor();
  await page.keyboard.press('Escape');
  const calling = page.locator('#servers thead th', { hasText: 'Calls' });
  await calling.getByRole('button').click();
  await until(async () => (await names())[0] === 'stub', names);
  assert.equal(await calling.getAttribute('aria-sort'), 'descending');
  assert.match(page.url(), /#servers\?sort=Calls$/);
  await calling.getByRole('button').click();
  await until(async () => (await names()).at(-1) === 'stub' && await calling.getAttribute('aria-sort') === 'ascending', names);
  await calling.getByRole('button').click();
  await until(async () => (await names())[0] === 'absent', names);
  assert.equal(await calling.getAttribute('aria-sort'), null);

  step('servers are searched and filtered by state, and the search is in the URL');
  await search.fill('NO-SUCH');
  await until(async () => `${await names()}` === 'absent', names);
  assert.match(page.url(), /#servers\?q=NO-SUCH$/);
  await page.reload();
  await row('absent').waitFor();
  assert.deepEqual([await names(), await search.inputValue()], [['absent'], 'NO-SUCH']);
  await search.fill('nothing at all');
  await page.getByRole('link', { name: 'Show all servers' }).click();
  await until(async () => (await names()).length === 5 && await search.inputValue() === '', names);
  await page.locator('#server-form [name=state]').selectOption('connected');
  await until(async () => `${await names()}` === 'chatty,notes,stub', names);
  await page.locator('#server-form [name=state]').selectOption('');

  step('a long list is shown in part, and hostile text is shown as text');
  await page.route('**/api/v1/servers', async (route) => {
    const response = await route.fetch();
    const { data } = await response.json();
    const many = Array.from({ length: MANY }, (_, at) => ({ ...data.servers[0], name: `many_${at}_${'of-long-names-'.repeat(3)}`, state: 'needs-login', quarantined: 12, reason: HOSTILE }));
    await route.fulfill({ response, json: { success: true, data: { servers: many } } });
  });
  await page.reload();
  await count(page, '#servers tbody tr', SHOWN);
  const [many] = await names();
  await sound(page, 'servers-many');
  await row(many).getByText('<img src=x onerror=').waitFor();
  assert.ok((await row(many).innerText()).includes('\\u{202e}'));
  await open(many);
  await panel.getByText('<img src=x onerror=').first().waitFor();
  await panel.getByRole('link', { name: 'compare and approve them' }).waitFor(); // the action for quarantined tools
  assert.equal(await page.locator('#view-servers').locator('img, script').count(), 0);
  await panel.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: `Show all ${MANY}` }).click();
  await count(page, '#servers tbody tr', MANY);
  await page.unroute('**/api/v1/servers');
  await page.reload();
  await row('stub').waitFor();

  step('a server is added with the API key, and a wrong key is cleared');
  const add = page.locator('#server-form').getByRole('button', { name: 'Add a server', exact: true });
  const adding = page.locator('#adding');
  const adder = page.locator('#server-adder');
  const [key, submit] = [adder.getByLabel('API key'), adder.getByRole('button', { name: 'Add', exact: true })];
  const box = (name) => adder.getByRole('textbox', { name, exact: true });
  const wrongly = (name, said) => until(() => page.evaluate(([field, words]) => {
    const one = document.querySelector(`#server-adder [name="${field}"]`);
    return one.getAttribute('aria-invalid') === 'true' && one === document.activeElement && document.getElementById(one.getAttribute('aria-describedby')).textContent.includes(words);
  }, [name, said]), () => adder.innerText());
  assert.equal(await add.getAttribute('aria-expanded'), 'false');
  await add.click();
  assert.equal(await add.getAttribute('aria-expanded'), 'true');
  assert.match(page.url(), /#servers\?add=yes$/);
  await sound(page, 'servers-add');
  const { command, args } = configured().mcpServers.stub;
  await box('Name').fill('added');
  await box('Command').fill([command, ...args].map((word) => `"${word}"`).join(' '));
  await box('Environment').fill('E2E_NAME=a value');
  await submit.click();
  await wrongly('key', 'Enter the API key.');
  await key.fill('wrong');
  await submit.click();
  await wrongly('key', 'Wrong API key.');
  wrong.expected(/ 401 /);
  assert.deepEqual([await key.inputValue(), await box('Name').inputValue()], ['', 'added']);
  await key.fill(KEY);
  await submit.click();
  await panel.getByRole('heading', { name: 'added', exact: true }).waitFor();
  assert.match(page.url(), /#servers\?name=added$/);
  await adding.waitFor({ state: 'hidden' });
  await row('added').locator('.connected').waitFor();
  assert.deepEqual(configured().mcpServers.added, { command, args, env: { E2E_NAME: 'a value' } });
  await panel.getByRole('button', { name: 'Close' }).click();

  step('a server is removed with the API key');
  await open('added');
  const remove = panel.getByRole('button', { name: 'Remove', exact: true });
  const dialog = page.getByRole('dialog');
  await remove.click();
  await dialog.getByText('Remove added from the config file?').waitFor();
  await sound(page, 'server-remove');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await dialog.waitFor({ state: 'detached' });
  await remove.click();
  await dialog.getByLabel('API key').fill('wrong');
  await page.keyboard.press('Enter');
  await dialog.getByText('Wrong API key.').waitFor();
  wrong.expected(/ 401 /);
  assert.ok(configured().mcpServers.added);
  await dialog.getByLabel('API key').fill(KEY);
  await page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'detached' });
  await panel.waitFor({ state: 'hidden' });
  await until(async () => !(await names()).includes('added') && configured().mcpServers.added === undefined, names);
  assert.ok(await search.evaluate((it) => it === document.activeElement), 'the search field has the focus');

  step('an invalid value is reported at its field, and the key is kept for the next attempt');
  await add.click();
  await key.fill(KEY);
  for (const [fields, name, said] of [
    [{}, 'name', 'Enter a name.'], [{ Name: 'stub' }, 'name', "There is already a server 'stub'."], [{ Name: 'n' }, 'command', 'Enter the command.'],
    [{ Command: '"x' }, 'command', 'A quote is not closed.'], [{ Command: 'x', Environment: 'NAME' }, 'env', "Write NAME=VALUE on each line, not 'NAME'."],
    [{ Environment: '' }, 'command', 'x is not found on PATH'], [{ Name: 'a:b' }, 'name', "a server's name may contain"],
  ]) {
    for (const [field, value] of Object.entries(fields)) await box(field).fill(value);
    await submit.click();
    await wrongly(name, said);
  }
  wrong.expected(/ 422 /);
  assert.equal(await key.inputValue(), KEY);
  await sound(page, 'servers-add-refused');

  step('selected servers are imported from the JSON of another program');
  await adder.getByText('Import JSON').click();
  await box('Servers').fill('{"mcpServers": {\n // none\n x');
  await adder.getByText(/Invalid JSON: .*line 3 column 2/).waitFor();
  const pasted = `"mcpServers": { // of another program
    "stub": {"command": "x"}, "mcpproxy": {"url": "${page.url().split('/ui')[0]}/mcp"}, "asks": {"command": "x", "env": {"T": "\${input:token}"}},
    "remote": {"serverUrl": "http://127.0.0.1:9/mcp", "disabled": true}, "unwanted": {"command": "x"}, "weird": {"cmd": "x"},
  }`;
  await box('Servers').fill(pasted);
  const choice = (name) => adder.getByRole('checkbox', { name: new RegExp(`^${name}\\b`) });
  await adder.getByText('(the name is taken: change it above)').waitFor();
  await adder.getByText('(no command and no url)').waitFor();
  assert.deepEqual(await Promise.all(['stub', 'mcpproxy', 'asks', 'remote', 'unwanted', 'weird'].map((name) => choice(name).isChecked())), [false, false, true, true, true, false]);
  await choice('unwanted').uncheck();
  await sound(page, 'servers-add-json');
  await submit.click();
  const done = adding.locator('.came');
  await done.getByText('Added asks, remote.').waitFor();
  await row('remote').locator('.disabled').waitFor();
  assert.deepEqual([configured().mcpServers.asks, configured().mcpServers.unwanted], [{ command: 'x', env: { T: '${input:token}' }, enabled: false }, undefined]);
  await done.getByRole('button', { name: 'Done' }).click();
  configure();
  await until(async () => !(await names()).includes('remote'), names);

  step('the CSV file has the filters and the order of the list, and formulas are escaped');
  await page.route('**/api/v1/servers', async (route) => {
    const response = await route.fetch();
    const { data } = await response.json();
    const [absent] = data.servers.filter((it) => it.name === 'absent');
    await route.fulfill({ response, json: { success: true, data: { servers: [...data.servers, { ...absent, name: '=1+1', reason: 'says "no", and\nmore' }, { ...absent, name: '@x', reason: '\t-1' }] } } });
  });
  await go(page, '#servers?state=failed&sort=-Server');
  await until(async () => `${await names()}` === 'absent,@x,=1+1', names);
  const saved = await save(page, 'servers');
  assert.match(saved, /^server,state,reason,tools,[^\r]*\r\nabsent,failed,[^]*\r\n'@x,failed,'\t-1,[^]*\r\n'=1\+1,failed,"says ""no"", and\nmore",0,/);
  await page.unroute('**/api/v1/servers');
  await go(page, '#servers');
  await until(async () => (await names()).length === 5, names);

  step('unknown names in the URL are reported');
  await go(page, '#servers?name=no%E2%80%AEsuch');
  await page.locator('#failed').getByText("No server named 'no\\u{202e}such'.").waitFor();
  await until(() => /#servers$/.test(page.url()), () => page.url());
  assert.ok(await panel.isHidden() && (await names()).length === 5);
  await go(page, '#settings?server=nosuch');
  await page.locator('#failed').getByText("No server named 'nosuch'.").waitFor();
  await go(page, '#activity?server=nosuch');
  await page.locator('#none').getByText("No server named 'nosuch'.").waitFor();
  await go(page, '#activity?principal=token%3Anosuch');
  await page.locator('#none').getByText("No token named 'nosuch'.").waitFor();
  await go(page, '#approvals?id=nosuch');
  await page.locator('#failed').getByText("No call with the approval 'nosuch' waits now.").waitFor();
  await go(page, '#tools?tool=stub%3Anosuch');
  await page.locator('#failed').getByText("No server offers a tool named 'stub:nosuch' now.").waitFor();
  wrong.expected(/404/);
  await go(page, '#servers');

  step('buttons and keys change the open row, and the list stays sortable');
  await open('notes');
  for (const [press, name] of [['Next server', 'stub'], ['Previous server', 'notes'], ['k', 'chatty'], ['j', 'notes']]) {
    if (press.length === 1) await page.keyboard.press(press);
    else await panel.getByRole('button', { name: press }).click();
    await panel.getByRole('heading', { name, exact: true }).waitFor();
  }
  assert.equal(await page.locator('#servers thead th button').evaluateAll((all) => all.filter((it) => it.offsetParent && getComputedStyle(it, '::after').content === '"↕"').length), 5);
  await page.keyboard.press('Escape');

  step('Enter opens the panel of a row, and Escape closes it and restores the focus');
  await row('stub').getByRole('rowheader').getByRole('link').focus();
  await page.keyboard.press('Enter');
  await panel.getByRole('heading', { name: 'stub' }).waitFor();
  assert.match(page.url(), /name=stub/);
  await panel.getByText(/examples\/stub stdio$/).waitFor(); // the command of the server
  await panel.locator('.history li', { hasText: /connected, \d+ tools/ }).first().waitFor();
  await panel.locator('#definitions li', { hasText: 'added' }).first().waitFor();
  await sound(page, 'server');
  await page.keyboard.press('Escape');
  await panel.waitFor({ state: 'hidden' });
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'stub');
  await open('locked');
  await panel.locator('.reach').getByText(/^http:\/\/127/).waitFor();
  await panel.getByRole('button', { name: 'Close' }).click();
  await panel.waitFor({ state: 'hidden' });

  step('a changed tool definition is listed on its server without a reload');
  await open('notes');
  const definitions = panel.locator('#definitions li');
  await definitions.filter({ hasText: 'added add_tool' }).first().waitFor();
  offers([{ name: 'shown_on_its_server', inputSchema: { type: 'object' } }]);
  assert.equal(await call('write', 'notes:add_tool', {}, 'makes it say that its tools changed'), 200);
  await definitions.filter({ hasText: /added shown_on_its_server$/ }).waitFor();
  await definitions.filter({ hasText: /:\d\d new tools on a known server: shown_on_its_server/ }).waitFor();
  offers([{ name: 'shown_on_its_server', description: 'Another text', inputSchema: { type: 'object' } }]);
  assert.equal(await call('write', 'notes:add_tool', {}, 'leaves the number of tools as it is'), 200);
  await definitions.filter({ hasText: /changed shown_on_its_server/ }).first().waitFor();
  offers([]);
  assert.equal(await call('write', 'notes:add_tool', {}, 'makes it say so again'), 200);
  await definitions.filter({ hasText: /removed shown_on_its_server$/ }).waitFor();
  await panel.getByRole('link', { name: 'All definition changes' }).click();
  await page.locator('#rows li', { hasText: 'added shown_on_its_server' }).waitFor();
  assert.match(page.url(), /#activity\?server=notes&type=catalog_change$/);
  await page.goBack();
  await panel.getByRole('button', { name: 'Close' }).click();
  await panel.waitFor({ state: 'hidden' });

  step('the sparkline shows the calls of the last ten minutes on a time axis after a reload');
  await page.reload();
  await row('stub').locator('polyline').waitFor({ state: 'attached' });
  const places = (await row('stub').locator('polyline').getAttribute('points')).split(' ').map((it) => it.split(',').map(Number));
  assert.ok(places.length > 30 && places[0][0] < 5 && places.at(-1)[0] > 95, `${places}`);
  assert.ok(places.every(([x], at) => at === 0 || x >= places[at - 1][0]), `${places}`);
  assert.ok(places.some(([, y]) => y < 2) && places.slice(0, 5).every(([, y]) => y > 20), `no calls before the proxy was started: ${places}`);

  step('a sparkline is drawn for new calls');
  await page.clock.install();
  await page.reload();
  await row('stub').waitFor();
  for (let round = 0; round < 3; round += 1) {
    await call('read', 'stub:echo', {}, 'to be seen in the line');
    await page.clock.fastForward(11_000);
    await refresh(page, 'servers');
  }
  await row('stub').locator('polyline').waitFor({ state: 'attached' });
  await page.clock.resume();

  step('disabling a server requires a confirmation');
  await open('notes');
  const notes = panel;
  await notes.getByRole('button', { name: 'Disable' }).click();
  assert.match(await decide(page, false), /Disable notes/);
  assert.equal(await panel.isVisible(), true, 'Escape closes only the dialog');
  assert.equal(configured().mcpServers.notes.enabled, undefined);
  step('navigation closes the confirmation, and a server is disabled in the config file and enabled again');
  await notes.getByRole('button', { name: 'Disable' }).click();
  await page.goBack();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  await page.goForward();
  await notes.getByRole('button', { name: 'Disable' }).click();
  await decide(page);
  await notes.locator('.disabled').waitFor();
  assert.equal(configured().mcpServers.notes.enabled, false);
  await sound(page, 'server-disabled');
  await notes.getByRole('button', { name: 'Enable' }).click();
  await notes.locator('.connected').waitFor();
  assert.notEqual(configured().mcpServers.notes.enabled, false);

  step('changed counts keep the focus');
  const counts = () => call('read', 'stub:echo', {}, 'changes the counts');
  await keepsFocus(page, row('stub').getByRole('rowheader').getByRole('link'), ['servers'], counts);
  await open('stub');
  await keepsFocus(page, panel.locator('dd').getByRole('link').first(), ['servers'], counts);
  await open('notes');

  step('the error of an action stays until it is dismissed');
  await page.route('**/api/v1/servers/notes/restart', (route) => route.fulfill({ status: 500, json: { success: false, error: 'it cannot be restarted now' } }), { times: 2 });
  const failed = page.locator('#failed');
  await notes.getByRole('button', { name: 'Restart' }).click();
  await failed.getByText('it cannot be restarted now').waitFor();
  for (let round = 0; round < 2; round += 1) await refresh(page, 'servers', 'approvals');
  await sound(page, 'failed-action');
  assert.ok(await failed.isVisible(), 'a successful refresh does not hide the error');
  await failed.getByRole('button', { name: 'Dismiss' }).click();
  await failed.waitFor({ state: 'hidden' });
  await notes.getByRole('button', { name: 'Restart' }).click();
  await failed.getByText('it cannot be restarted now').waitFor();
  wrong.expected(/500/);

  step('a server is restarted, and its log is followed');
  const since = () => notes.locator('dl time').first().getAttribute('datetime');
  const before = await since();
  await notes.getByRole('button', { name: 'Restart' }).click();
  await until(async () => await since() !== before && await notes.locator('.connected').count() === 1, () => notes.innerText());
  await failed.waitFor({ state: 'hidden' });
  await notes.getByText('Log', { exact: true }).click();
  await notes.locator('.log').getByText('It has written nothing yet.').waitFor();
  await open('chatty');
  const said = panel.getByRole('log', { name: 'Log of chatty', includeHidden: true });
  await panel.getByText('Log', { exact: true }).click();
  await until(async () => /ready: the first line/.test(await said.innerText()), () => said.innerText());
  await call('read', 'chatty:say', { note: 'a line that follows\u202e' }, 'makes it say something');
  await until(async () => /asked: a line that follows\\u\{202e\}$/.test(await said.innerText()), () => said.innerText());
  const { lines } = (await rest('GET', 'servers/chatty/logs?limit=200')).data;
  const local = new Intl.DateTimeFormat('sv', { timeZone: ZONE, timeStyle: 'medium' });
  assert.equal((await said.innerText()).split('\n').at(-1).slice(0, 8), local.format(new Date(lines.at(-1).time)), 'the log has the time zone of the page');
  await sound(page, 'server-log');

  step('a login starts in the panel and completes in another tab');
  await open('locked');
  const locked = panel;
  assert.match(await locked.innerText(), /needs login/);
  await locked.getByRole('button', { name: 'Log in' }).click();
  const leads = locked.getByRole('link', { name: 'Open the login' });
  await leads.waitFor();
  await copies(page, locked, 'Copy address', await leads.getAttribute('href'));
  await sound(page, 'server-login');
  const [other] = await Promise.all([page.context().waitForEvent('page'), leads.click()]);
  await other.getByText('The login succeeded').waitFor();
  await other.close();
  await locked.locator('.connected').waitFor();
  await until(async () => await locked.getByRole('button', { name: 'Log in' }).count() === 0, () => locked.innerText());
  assert.equal(await call('read', 'locked:who_am_i', {}, 'to see whether the login counts'), 200);

  step('the counts of a server link to records and tools');
  await open('stub');
  await panel.locator('dd').getByRole('link').first().click();
  await page.locator('#tools tbody tr').first().waitFor();
  assert.match(page.url(), /#tools\?server=stub/);
  await page.goBack();
  await panel.getByRole('link', { name: 'All state changes' }).click();
  await page.locator('#rows li', { hasText: /connected, \d+ tools/ }).first().waitFor();
  await page.goBack();
  await row('stub').locator('td').nth(heads.indexOf('Refused') - 1).getByRole('link').click();
  await page.locator('#rows li').first().waitFor();
  assert.match(page.url(), /server=stub&status=blocked%2Crejected$/);
  await page.goto(page.url().replace(/#.*/, '#servers?name=absent'));
  await panel.getByText(/no-such-program/).first().waitFor();
}
