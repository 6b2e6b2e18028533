// Principals view: the list, the details of a principal (calls, standing approvals, records), and the creation, renewal
// and revocation of tokens.

import assert from 'node:assert/strict';

import { copies, count, go, keepsFocus, refresh, save, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, KEY, base, rest, session } from '../proxy.mjs';

export async function look({ page, wrong }) {
  const row = (name) => page.locator('#principals tbody tr', { has: page.getByRole('link', { name, exact: true }) });
  const one = page.locator('#principal');
  const open = (name) => go(page, `#principals?name=${encodeURIComponent(name)}`);

  step('principals are listed with their calls and outcomes');
  const { data: { name: token, token: secret } } = await rest('POST', 'tokens', { name: 'helper', servers: ['stub'], operations: ['read'] });
  const { status } = await fetch(`${base}/api/v1/tools/call`, {
    method: 'POST', headers: { 'X-API-Key': secret, 'Content-Type': 'application/json' },
    body: JSON.stringify({ tool_name: 'call_tool_read', arguments: { name: 'stub:echo', args: {}, intent: { operation_type: 'read', data_sensitivity: 'internal', reason: 'of a token' } } }),
  });
  assert.deepEqual([token, status], ['helper', 200]);
  await rest('POST', 'tokens', { name: 'spare', expires_in: 86400 });
  const agent = await session();
  assert.equal(await agent('read', 'stub:echo', {}, 'of nobody known'), true);
  await visit(page, 'principals');
  for (const name of ['admin', 'anonymous', 'token:helper', 'token:spare']) await row(name).waitFor();
  await page.locator('#principal-count', { hasText: /^4 principals, (the newest 500|\d+) calls of the period/ }).waitFor();
  const heads = await page.locator('#principals thead th').allInnerTexts();
  const cells = async (name, ...wanted) => {
    const all = await row(name).locator('th, td').allInnerTexts();
    return wanted.map((head) => all[heads.indexOf(head)]);
  };
  assert.deepEqual(await cells('token:helper', 'Kind', 'Calls', 'Errors', 'Refused', 'Standing'), ['agent token, no expiry', '1', '0', '0', '0']);
  const [spare, used, newest] = await cells('token:spare', 'Kind', 'Calls', 'Last call');
  assert.match(spare, /^agent token, until /);
  assert.deepEqual([used, newest], ['0', 'none'], 'the token is unused');
  assert.deepEqual(await cells('anonymous', 'Kind', 'Clients'), ['no credential', 'page-test']);
  await row('admin').locator('polyline').waitFor({ state: 'attached' });
  await sound(page, 'principals');
  await keepsFocus(page, row('admin').getByRole('link').first(), ['activity']);

  step('principals are sorted, searched, and opened by keyboard');
  const names = () => page.locator('#principals tbody th').allInnerTexts();
  const calling = page.locator('#principals thead th', { hasText: 'Calls' });
  for (const [direction, at, name] of [['descending', 0, 'admin'], ['ascending', -1, 'admin'], [null, -1, 'token:spare']]) {
    await calling.getByRole('button').click();
    await until(async () => await calling.getAttribute('aria-sort') === direction, () => calling.evaluate((it) => it.outerHTML));
    assert.equal((await names()).at(at), name);
  }
  await page.locator('#principals thead').getByRole('button', { name: 'Principal' }).click();
  await until(async () => `${await names()}` === 'admin,anonymous,token:helper,token:spare', names);
  assert.match(await save(page, 'principals'), /^principal,kind,[^]*\r\nadmin,API key,[^]*\r\nanonymous,no credential,,page-test,\d+,/);
  await row('admin').getByRole('link').first().focus();
  await page.keyboard.press('j');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'anonymous');
  await page.keyboard.press('/');
  await page.keyboard.type('page-TEST');
  await until(async () => `${await names()}` === 'anonymous', names);
  assert.match(page.url(), /#principals\?sort=Principal&q=page-TEST$/);
  await page.keyboard.press('Enter');
  await one.getByRole('heading', { name: 'anonymous', exact: true }).waitFor();
  await copies(page, one, 'Copy name', 'anonymous');
  await page.keyboard.press('Escape');
  await count(page, '#principals tbody tr', 4);
  await page.locator('#principal-form [name=q]').fill('token:none');
  await page.getByText('No principal in this period matches.').waitFor();
  await page.getByRole('link', { name: 'Open token:none all the same' }).click();
  await one.getByRole('heading', { name: 'token:none' }).waitFor();
  await one.getByText('0 calls in the last 24 hours').waitFor();
  await one.getByText('There is no such token now.').waitFor();
  await visit(page, 'principals');

  step('a token is created with the API key, used, renewed and revoked');
  const adder = page.locator('#token-adder');
  await page.locator('#principal-form').getByRole('button', { name: 'Create a token', exact: true }).click();
  assert.match(page.url(), /#principals\?add=yes$/);
  await adder.getByLabel('Name').fill('made');
  await adder.getByRole('checkbox', { name: 'stub', exact: true }).check();
  await adder.getByRole('checkbox', { name: 'read', exact: true }).check();
  await adder.getByLabel('Tools').pressSequentially('echo, no_such*, stub:read_');
  const proposed = page.locator('#token-tools option');
  await until(async () => (await proposed.evaluateAll((all) => all.map((it) => it.value))).includes('echo, no_such*, stub:read_item'), () => proposed.evaluateAll((all) => all.map((it) => it.value)));
  await page.keyboard.press('Tab');
  await adder.getByText('No known tool matches no_such*, stub:read_.').waitFor();
  await adder.getByLabel('Tools').fill('echo, read_*');
  await page.keyboard.press('Tab');
  assert.equal(await adder.locator('#unknown-tools').innerText(), '');
  await sound(page, 'token-add');
  await adder.getByLabel('API key').fill(KEY);
  await adder.getByRole('button', { name: 'Create', exact: true }).click();
  const shown = page.getByRole('group', { name: 'secret' });
  const use = async (token, operation = 'read') => (await fetch(`${base}/api/v1/tools/call`, {
    method: 'POST', headers: { 'X-API-Key': token, 'Content-Type': 'application/json' },
    body: JSON.stringify({ tool_name: `call_tool_${operation}`, arguments: { name: 'stub:echo', args: {}, intent: { operation_type: operation, data_sensitivity: 'internal', reason: 'of a new token' } } }),
  })).status;
  const first = await shown.innerText();
  assert.match(first, /^mcpp_/);
  assert.equal(await use(first), 200);
  const { data: { token: made } } = await rest('GET', 'principals/token:made');
  assert.deepEqual([made.servers, made.operations, made.tools], [['stub'], ['read'], ['echo', 'read_*']]);
  assert.equal((Date.parse(made.expires) - Date.parse(made.created)) / 86_400_000 > 89, true);
  await page.locator('#token-adding').getByText('"require_mcp_auth": true').waitFor();
  await page.getByRole('button', { name: 'Done' }).click();
  await row('token:made').getByRole('link').first().click();
  const dialog = page.getByRole('dialog');
  const key = dialog.getByLabel('API key');
  await one.getByRole('button', { name: 'New secret', exact: true }).click();
  await key.fill('wrong');
  await page.keyboard.press('Enter');
  await dialog.getByText('Wrong API key.').waitFor();
  wrong.expected(/ 401 /);
  await key.fill(KEY);
  await page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'hidden' });
  await until(() => shown.evaluate((it) => it === document.activeElement), () => page.evaluate(() => document.activeElement.outerHTML));
  const second = await shown.innerText();
  assert.deepEqual([second !== first, await use(first), await use(second)], [true, 401, 200]);
  await shown.evaluate((it) => { it.textContent = `mcpp_${'x'.repeat(43)}`; }); // the secret differs in each run
  await sound(page, 'principal-secret');
  await one.getByRole('button', { name: 'Revoke token', exact: true }).click();
  await key.fill(KEY);
  await sound(page, 'token-revoke');
  await dialog.getByRole('button', { name: 'Revoke', exact: true }).click();
  await one.getByText('There is no such token').waitFor();
  assert.deepEqual([await use(second), await shown.count(), await one.getByRole('button', { name: 'Revoke token', exact: true }).count()], [401, 0, 0]);
  await visit(page, 'principals');

  step('the newest calls are counted, and older calls on request');
  let [last, pages] = [undefined, 0];
  await page.route('**/api/v1/activity?type=tool_call*', async (route) => {
    const response = await route.fetch();
    const { data, ...rest } = await response.json();
    last = data.activities.at(-1)?.id ?? last;
    pages = route.request().url().includes('cursor=') ? pages + 1 : 1;
    await route.fulfill({ response, json: { ...rest, data: { ...data, next_cursor: data.next_cursor ?? last } } });
  });
  const older = page.getByRole('button', { name: 'Count older calls' });
  await refresh(page, 'activity');
  await older.waitFor();
  await page.locator('#principal-count', { hasText: 'the newest' }).waitFor();
  await older.click();
  await until(() => pages === 10, () => `${pages} pages`);
  await page.unroute('**/api/v1/activity?type=tool_call*');
  await refresh(page, 'activity');
  await older.waitFor({ state: 'hidden' });

  step('a principal shows its latest records and its calls by status, with links to records');
  await row('admin').getByRole('link').first().click();
  await one.getByRole('heading', { name: 'admin', exact: true }).waitFor();
  await one.getByText('The holder of the API key').waitFor();
  const calls = page.locator('#principal-calls');
  const total = async (parameters) => (await rest('GET', `activity?type=tool_call&limit=1&with_total=true&${parameters}`)).data.total;
  for (const name of ['success', 'error', 'blocked', 'rejected']) {
    const expected = await total(`principal=admin&status=${name}`);
    assert.ok(expected > 0, name);
    await calls.getByRole('link', { name: `${name} ${expected.toLocaleString('en')}`, exact: true }).waitFor();
  }
  await one.getByText(new RegExp(`^${await total('principal=admin')} calls in the last 24 hours, \\d+(\\.\\d+)? % succeeded$`)).waitFor();
  await until(async () => await one.locator('.records > li').count() > 5, () => one.innerText());
  await keepsFocus(page, one.locator('.records a').first(), ['activity', 'approvals']);
  await sound(page, 'principal');
  await one.getByRole('link', { name: 'All principals' }).click();
  await row('admin').locator('.error-count a').click();
  await page.waitForURL(/#activity\?type=tool_call&principal=admin&range=24h&status=error$/);
  await page.goBack();
  await row('admin').locator('td').last().click();
  await one.getByRole('heading', { name: 'admin', exact: true }).waitFor();
  await calls.getByRole('link', { name: /^rejected/ }).click();
  await page.locator('#rows li').first().waitFor();
  assert.match(page.url(), /#activity\?type=tool_call&principal=admin&range=24h&status=rejected$/);
  await page.goBack();
  await one.locator('.records a').first().click();
  await page.locator('#record').waitFor();
  assert.match(page.url(), /#activity\?principal=admin&record=/);

  step('a period without calls shows zero calls and is in the URL');
  await page.clock.install();
  await open('admin');
  await page.clock.fastForward(40 * 60_000);
  await page.locator('#principal-form [name=period]').selectOption('15m');
  assert.match(page.url(), /#principals\?name=admin&period=15m$/);
  await until(async () => /success 0/.test(await calls.innerText()), () => calls.innerText());
  assert.equal(await calls.getByRole('link').count(), 0);
  await one.getByRole('link', { name: 'All principals' }).click();
  await page.locator('#principal-count', { hasText: /^2 principals, no call of the period$/ }).waitFor();
  await count(page, '#principals tbody tr', 2); // the tokens
  await page.clock.resume();
  await page.reload();

  step('a record links to its principal');
  await go(page, '#activity?principal=token%3Ahelper');
  await page.locator('#rows a').first().click();
  await page.locator('#record dd').getByRole('link', { name: 'token:helper', exact: true }).click();
  await one.getByRole('heading', { name: 'token:helper' }).waitFor();

  step('the permissions of a token are shown, with a link to the rules');
  for (const [words, value] of [['servers', 'stub'], ['tools', 'all'], ['operations', 'read'], ['expires', 'never']]) {
    await page.locator(`#principal dd[data-key="${words}"]`, { hasText: new RegExp(`^${value}$`) }).waitFor();
  }
  await sound(page, 'principal-token');
  await one.getByRole('link', { name: 'What the rules say' }).click();
  await until(async () => await page.locator('#explain-form [name=principal]').inputValue() === 'token:helper', () => page.url());
  const read = await page.evaluate(async () => (await fetch('/api/v1/tokens', { headers: { 'X-Mcpproxy-Source': 'page' } })).status);
  assert.equal(read, 401, 'a session of the page has no access to the endpoint that creates tokens');
  wrong.expected(/401/);

  step('a hostile principal name is shown as text and is in no command');
  await open(`token:${HOSTILE}; rm -rf ~`);
  await one.getByText('No principal has such a name.').waitFor();
  assert.equal(await page.locator('#view-principals').locator('img, script').count() + await one.locator('.command').count(), 0);
  assert.ok((await one.innerText()).includes('\\u{202e}'));

  step('a standing approval is revoked');
  await open('anonymous');
  await one.getByText('"require_mcp_auth": true').waitFor();
  await one.getByText('None.', { exact: true }).waitFor();
  const waits = agent('write', 'stub:no_hints', {}, 'to be approved for an hour');
  let waiting;
  await until(async () => {
    [waiting] = (await rest('GET', 'approvals')).data.approvals;
    return waiting !== undefined;
  }, () => 'no call waits for approval');
  const { id, call: { digest } } = waiting;
  await rest('POST', `approvals/${id}`, { decision: 'approve', digest, for: '1h' });
  assert.equal(await waits, true);
  await refresh(page, 'approvals');
  const records = one.locator('.records > li');
  await records.filter({ hasText: 'to be approved for an hour' }).filter({ hasText: 'approved by admin' }).waitFor();
  const approvals = (await records.allInnerTexts()).filter((it) => /\napproval [^]*(waiting|approved)/.test(it));
  assert.deepEqual(approvals, [], 'a call and its approval share one row');
  const card = one.locator('.standing > li:not([data-moved])', { hasText: 'stub:no_hints' });
  await card.waitFor();
  await keepsFocus(page, card.getByRole('button', { name: 'Revoke' }), ['approvals', 'activity']);
  await sound(page, 'principal-standing');
  await open('admin');
  await one.getByText('None.', { exact: true }).waitFor();
  assert.equal(await one.locator('.standing > li').count(), 0, 'a standing approval is shown only for its principal');
  await open('anonymous');
  await card.getByRole('button', { name: 'Revoke' }).click();
  await one.getByText('None.', { exact: true }).waitFor();
  assert.deepEqual((await rest('GET', 'approvals')).data.standing, []);
  await rest('DELETE', 'tokens/helper');
}
