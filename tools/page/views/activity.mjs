// Activity view: filters, text search, time range, combined rows, URL state, keyboard, and live updates.

import assert from 'node:assert/strict';

import { ZONE, all, copies, count, drawn, go, hold, save, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, call, rest, session } from '../proxy.mjs';

const CANCEL_PX = 20; // width of the browser's clear button in a search field
const ANSWERS = 20; // number of search requests before the page offers to continue
const PAGE = 50; // number of records requested at once

export async function look({ page, wrong }) {
  const field = (name) => page.locator('#filters label', { hasText: new RegExp(`^\\s*${name}\\b`) }).locator('input, select');
  /** Shows the field of a filter that is hidden by default. */
  const add = (name) => page.getByLabel('Add a filter').selectOption({ label: name });
  /** Clears the filters, if any are set. */
  const clear = async () => {
    const button = page.locator('#filters').getByRole('button', { name: 'Clear' });
    if (await button.isVisible()) await button.click();
  };
  const record = page.locator('#record');
  const text = page.getByLabel('Text', { exact: true });
  const focused = () => page.evaluate(() => document.activeElement.querySelector('.name')?.textContent);
  await visit(page, 'activity');
  await page.locator('#rows li').nth(8).waitFor();
  await sound(page, 'activity');
  const [words, room] = await text.evaluate((it) => {
    const pen = Object.assign(document.createElement('canvas').getContext('2d'), { font: getComputedStyle(it).font });
    const { paddingLeft, paddingRight } = getComputedStyle(it);
    return [pen.measureText(it.placeholder).width, it.clientWidth - Number.parseFloat(paddingLeft) - Number.parseFloat(paddingRight)];
  });
  assert.ok(words + CANCEL_PX < room, `the placeholder of the search field fits: ${words} of ${room} px`);

  step('filters are in one row, and rows show the principal and the client');
  const tops = await page.locator('#filters').evaluate((it) => [...it.children].filter((one) => one.offsetParent).map((one) => one.getBoundingClientRect().top + one.offsetHeight / 2));
  assert.ok(Math.max(...tops) - Math.min(...tops) < 3, `${tops}`);
  const agent = await session();
  assert.equal(await agent('read', 'stub:echo', { note: 'of an agent' }, 'asked by an agent'), true);
  await until(async () => /anonymous\s+page-test/.test(await page.locator('#rows li', { hasText: 'asked by an agent' }).innerText()), () => page.locator('#rows li').first().innerText());
  assert.match(await page.locator('#rows li', { hasText: 'breaks its schema' }).locator('.who').innerText(), /^admin/);

  step('rows of server and catalog events describe the event');
  for (const said of [/server.*chatty[\s\S]*connected, 122 tools/, /server.*absent[\s\S]*no-such-program/, /catalog.*notes[\s\S]*added add_tool/]) {
    await page.locator('#rows li', { hasText: said }).first().waitFor();
  }

  step('times are local and descending, with UTC in the tooltips');
  const moment = page.locator('#rows time').first();
  const [utc, title] = [await moment.getAttribute('datetime'), await moment.getAttribute('title')];
  assert.match(title, new RegExp(`^${utc}, began .*Z$`));
  const ended = await page.locator('#rows time').evaluateAll((them) => them.map((it) => it.getAttribute('datetime')));
  assert.deepEqual(ended, ended.toSorted().reverse(), 'the newest record is first');
  assert.match(utc, /Z$/);
  assert.equal(await moment.innerText(), new Intl.DateTimeFormat('sv', { timeZone: ZONE, timeStyle: 'medium' }).format(new Date(utc)));

  step('a refusal and its decision share one row with the reason');
  const refused = page.locator('#rows li', { hasText: 'breaks its schema' });
  assert.equal(await refused.count(), 1);
  assert.match(await refused.innerText(), /output schema validation failed.*\/value/s);
  const pretends = page.locator('#rows li', { hasText: 'pretends to read' });
  assert.match(await pretends.innerText(), /call_tool_destructive/);
  assert.equal(await pretends.locator('.cause').getAttribute('class'), 'cause rejected', 'the cause has the color of the status');
  await call('read', 'stub:blob', { size: 'x' }, 'has wrong arguments');
  const misfits = page.locator('#rows li', { hasText: 'has wrong arguments' });
  await until(async () => await misfits.count() === 1 && /Arguments of 'stub:blob' do not fit: \/size/.test(await misfits.innerText()), () => misfits.allInnerTexts());
  assert.equal(await misfits.locator('.cause').count(), 1, 'the row shows one reason');
  await misfits.getByRole('link').click();
  await record.getByText('input validation').waitFor();
  const verdict = (await record.innerText()).split('Arguments\n')[0];
  assert.ok(/rejected/.test(verdict) && !/blocked|want integer/.test(verdict), `the verdict has the reason and the outcome once: ${verdict}`);
  await record.getByRole('link', { name: 'What the rules say about this call' }).click();
  await page.locator('#explained').getByText(/^The call was rejected for another reason: Arguments of/).waitFor();
  assert.match(await page.locator('#explained').innerText(), /The rules allow it[\s\S]*checked apart from the rules/);
  await go(page, '#activity');
  const alone = await page.locator('#rows li', { hasText: /^\s*[\d:]+\s*decision/ }).count();
  assert.equal(alone, 0, 'no decision has a separate row');

  step('a row shows the reason of the decision beside a different error of the call');
  const lists = /api\/v1\/activity\?/;
  await page.route(lists, async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    for (const it of json.data.activities) {
      if (it.type === 'tool_call' && it.intent?.reason === 'pretends to read') it.error_message = "Tool 'stub:delete_item' not found";
    }
    await route.fulfill({ response, json });
  });
  await page.reload();
  await until(async () => /'stub:delete_item' not found[\s\S]*use call_tool_destructive/.test(await pretends.innerText()), () => pretends.innerText());
  await page.unroute(lists);
  await page.reload();
  await page.locator('#rows li').nth(8).waitFor();

  step('filters select rows and are in the URL');
  await field('Status').selectOption('blocked');
  // Decisions about refused calls are blocked, too, but they withheld no result and are not listed.
  await all(page, '#rows li', (row) => row.includes('blocked') && !/\bdecision\b/.test(row));
  await field('Type').selectOption('tool_call');
  await add('Tool');
  assert.ok(await field('Tool').evaluate((it) => it === document.activeElement));
  await field('Tool').fill('violate');
  await count(page, '#rows li', 1);
  assert.match(page.url(), /#activity\?.*tool=violate/);
  await page.reload();
  await count(page, '#rows li', 1);
  assert.equal(await field('Tool').inputValue(), 'violate');
  await copies(page, page.locator('#view-activity'), 'Copy link', page.url());
  assert.match(await save(page, 'activity'), /^time,type,server,tool,[^\r]*\r\n[^,]+,tool_call,stub,violate,admin,node,read,blocked,[\d.]+,breaks its schema,[^]*\r\n$/);
  await field('Tool').fill('no such tool');
  await page.getByText('No record matches the filters.').waitFor();
  await field('Tool').fill('violate');
  await count(page, '#rows li', 1);

  step('an invalid filter is reported until it is cleared, and status=refused selects blocked and rejected calls');
  const refusal = page.locator('#view-activity .trouble');
  await go(page, '#activity?status=no-such-status');
  await refusal.getByText(/status.*no-such-status/).waitFor();
  await count(page, '#rows li', 0);
  await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange'))); // other requests succeed
  await call('read', 'stub:echo', {}, 'arrives under no filter');
  await drawn(page);
  assert.ok(await refusal.isVisible() && await page.locator('#none').isHidden());
  await count(page, '#rows li', 0);
  await sound(page, 'activity-refused');
  await refusal.getByRole('link', { name: 'Clear the filters' }).click();
  await page.locator('#rows li').nth(8).waitFor();
  assert.ok(await refusal.isHidden());
  wrong.expected(/400/);
  await go(page, '#activity?status=refused');
  await all(page, '#rows li', (row) => /blocked|rejected/.test(row));
  assert.equal(await field('Status').inputValue(), 'blocked,rejected');
  await go(page, '#activity?type=tool_call&status=blocked&tool=violate');
  await count(page, '#rows li', 1);

  step('a record opens and closes by keyboard and by URL');
  await page.locator('#filters').getByRole('button', { name: 'Clear' }).focus();
  await page.keyboard.press('Tab');
  assert.equal(await focused(), 'stub:violate');
  await page.keyboard.press('Enter');
  for (const text of ['Verdict', 'output validation', '/value', 'strict', 'Intent', 'Timing', 'in the proxy', 'at the server', 'Size']) {
    await record.getByText(text).first().waitFor();
  }
  assert.match(page.url(), /record=[0-9A-Z]{26}/);
  const began = record.locator('dd time').first();
  const day = new Intl.DateTimeFormat('sv', { timeZone: ZONE, dateStyle: 'short', timeStyle: 'medium' });
  assert.equal((await began.innerText()).slice(0, 19), day.format(new Date(await began.getAttribute('datetime'))), 'the record has the same time zone');
  const cut = await page.locator('#rows .why bdi').first().evaluate((it) => (it.clientHeight / Number.parseFloat(getComputedStyle(it).lineHeight)) % 1);
  assert.ok(cut < 0.05 || cut > 0.95, `no line of a reason is clipped: ${cut}`);
  await sound(page, 'record');
  await page.reload();
  await record.getByText('Verdict').waitFor();
  await page.goBack();
  await record.waitFor({ state: 'hidden' });
  await page.goForward();
  await record.getByText('Verdict').waitFor();
  await record.getByRole('button', { name: 'Close' }).click();
  await record.waitFor({ state: 'hidden' });
  assert.ok(!page.url().includes('record='), page.url());
  assert.equal(await focused(), 'stub:violate');
  await page.keyboard.press('Enter');
  await record.getByText('Verdict').waitFor();
  await page.keyboard.press('Escape');
  await record.waitFor({ state: 'hidden' });
  assert.equal(await focused(), 'stub:violate');

  step('text search covers whole records, and a time range limits the list');
  await clear();
  await page.locator('#rows li').nth(8).waitFor();
  await text.fill('NO LONGER NEEDED');
  await count(page, '#rows li', 1);
  const note = page.getByText(/^1 found in \d+ records$/);
  const [above, below] = await Promise.all([note, page.locator('.row.head').first()].map((it) => it.boundingBox()));
  assert.ok(above.y + above.height + 6 < below.y, 'the note does not touch the list');
  await text.fill('');
  await field('When').selectOption('15m');
  await page.locator('#rows li').nth(8).waitFor();
  await field('When').selectOption('between');
  await field('To').fill('2020-01-01T00:00:01');
  await page.getByText('No record matches the filters.').waitFor();
  assert.match(page.url(), /to=2019-12-31T18%3A30%3A01/, 'the filter has the time zone of the browser');
  await field('To').fill('');
  await page.locator('#rows li').nth(8).waitFor();
  await field('From').fill('2100-01-01T00:00:01');
  await page.getByText('No record matches the filters.').waitFor();
  assert.match(page.url(), /from=2099-12-31T18%3A30%3A01/);
  await clear();
  await page.locator('#rows li').nth(8).waitFor();

  step('records are filtered by server, principal, session and request');
  const { data: { activities: [of] } } = await rest('GET', 'activity?type=tool_call&principal=anonymous&limit=1');
  assert.ok(of.session_id && of.request_id, JSON.stringify(of));
  const ids = (rows) => rows.evaluateAll((them) => them.map((it) => it.dataset.key));
  for (const [name, parameter, value] of [['Server', 'server', 'notes'], ['Principal', 'principal', 'anonymous'], ['Session', 'session_id', of.session_id], ['Request', 'request_id', of.request_id]]) {
    await add(name);
    await field(name).fill(value);
    const fits = (await rest('GET', `activity?${parameter}=${encodeURIComponent(value)}&limit=100`)).data.activities;
    const folded = fits.filter((it) => !(it.parent_id && fits.some((other) => other.id === it.parent_id)));
    assert.ok(folded.length > 0 && folded.length < 50, `${name}: ${folded.length}`);
    await until(async () => `${await ids(page.locator('#rows li'))}` === `${folded.map((it) => it.id)}`, async () => `${name}: ${await ids(page.locator('#rows li'))}`);
    await clear();
    await page.locator('#rows li').nth(8).waitFor();
  }

  step('an arrow key focuses the first row, and the headings do not cover the focused row');
  await go(page, '#activity');
  await page.reload();
  await page.locator('#rows li').nth(8).waitFor();
  await page.keyboard.press('ArrowDown');
  assert.ok(await page.evaluate(() => document.activeElement === document.querySelector('#rows li a')), 'the first row has the focus');
  for (const key of [...'jjjjjjjjjjjjjjjjjjjj', ...'kkkkkkkkkkkkkkk']) await page.keyboard.press(key);
  const [upper, under] = await page.evaluate(() => [document.activeElement.getBoundingClientRect().top, document.querySelector('.row.head').getBoundingClientRect().bottom]);
  assert.ok(upper >= under - 1, `the focused row at ${upper} is under the headings, which end at ${under}`);
  await page.evaluate(() => scrollTo(0, 0));

  step('keys move through the list and to the search field');
  await page.locator('#rows a').first().focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('j');
  assert.equal(await page.locator('#rows a:focus').count(), 1);
  assert.equal(await page.locator('#rows li').nth(2).locator('a:focus').count(), 1);
  await page.keyboard.press('/');
  assert.equal(await text.evaluate((it) => it === document.activeElement), true);

  step('Enter and ArrowDown move from the search field to the first result, and Escape keeps the text');
  const leads = async (key) => {
    await text.focus();
    await page.keyboard.press(key);
    await until(() => page.evaluate(() => document.activeElement === document.querySelector('#rows li a')), () => `${key} does not focus the first row`);
  };
  await text.fill('no longer needed');
  await leads('Enter');
  await count(page, '#rows li', 1);
  assert.equal(await focused(), 'stub:delete_item', 'the search result has the focus');
  await leads('ArrowDown');
  await text.focus();
  await page.keyboard.press('Escape');
  assert.deepEqual([await text.inputValue(), await text.evaluate((it) => it === document.activeElement)], ['no longer needed', false]);
  await clear();
  await page.locator('#rows li').nth(8).waitFor();

  step('unknown views, filters and records in the URL are reported');
  const said = page.locator('#failed');
  await go(page, '#activity?intent=write&tool=echo');
  await said.getByText('Unknown filter: intent').waitFor();
  await all(page, '#rows li', (row) => row.includes('stub:echo'));
  assert.match(page.url(), /#activity\?tool=echo$/);
  await go(page, '#no-such-view?x=1');
  await said.getByText("There is no view 'no-such-view'.").waitFor();
  await page.locator('#now-tiles').waitFor();
  assert.match(page.url(), /#now$/);
  await go(page, '#servers');
  await until(async () => !await said.isVisible(), () => said.innerText());
  await go(page, '#activity?record=nope');
  await record.getByText('There is no record with this id, or it is not kept any more.').waitFor();
  wrong.expected(/404/);
  await go(page, '#activity');
  await page.locator('#rows li').nth(8).waitFor();

  step('keys and buttons step through the records while a record is open');
  await page.locator('#rows a').first().click();
  const current = () => page.locator('#rows a').evaluateAll((all) => all.findIndex((it) => it.hasAttribute('aria-current')));
  for (const [key, at] of [['', 0], ['j', 1], ['j', 2], ['k', 1]]) {
    if (key) await page.keyboard.press(key);
    await until(async () => await current() === at && await record.isVisible(), current);
  }
  for (const [name, at] of [['Older record', 2], ['Newer record', 1]]) {
    await record.getByRole('button', { name }).click();
    await until(async () => await current() === at, current);
  }
  await page.keyboard.press('Escape');
  await record.waitFor({ state: 'hidden' });

  step('new calls appear without a reload if they match the filters');
  const rows = await page.locator('#rows li').count();
  await call('read', 'stub:echo', { note: 'arrives' }, 'came while you looked');
  await count(page, '#rows li', rows + 1);
  assert.match(await page.locator('#rows li').first().innerText(), /stub:echo/);
  await page.locator('#live[data-state=live]').waitFor();
  await call('read', 'stub:violate', {}, 'refused while you looked');
  const live = page.locator('#rows li', { hasText: 'refused while you looked' });
  await until(async () => (await live.count()) === 1 && /output schema validation/.test(await live.innerText()), () => live.allInnerTexts());
  await count(page, '#rows li', rows + 2);
  await field('Intent').selectOption('destructive');
  await all(page, '#rows li', (row) => row.includes('destructive'));
  const destructive = await page.locator('#rows li').count();
  await call('read', 'stub:echo', {}, 'does not fit');
  await call('destructive', 'stub:delete_item', {}, 'fits');
  await count(page, '#rows li', destructive + 1);
  await all(page, '#rows li', (row) => row.includes('destructive'));

  step('a call that arrives while the list loads is listed');
  const early = page.locator('#rows li', { hasText: 'came while the list loaded' });
  await page.route('**/api/v1/activity?*', async (route) => {
    const response = await route.fetch();
    await call('destructive', 'stub:delete_item', {}, 'came while the list loaded');
    await early.waitFor();
    await route.fulfill({ response });
  }, { times: 1 });
  await clear();
  await page.locator('#rows li', { hasText: 'does not fit' }).waitFor();
  await early.waitFor();

  step('a paused list stays unchanged, counts new records, and shows them after it resumes');
  await clear();
  await page.locator('#rows li').nth(8).waitFor();
  await page.locator('#pause').click();
  const top = await ids(page.locator('#rows li'));
  for (let at = 0; at < 2; at += 1) await call('read', 'stub:echo', {}, `came while it was paused, ${at}`);
  await page.getByRole('button', { name: 'Resume (2 new)' }).waitFor();
  assert.deepEqual(await ids(page.locator('#rows li')), top);
  assert.equal(await page.locator('#pause').getAttribute('aria-pressed'), 'true');
  await sound(page, 'activity-paused');
  await page.locator('#pause').click();
  await page.locator('#rows li', { hasText: 'came while it was paused, 1' }).waitFor();
  await page.getByRole('button', { name: 'Pause', exact: true }).waitFor();

  step('hostile text is shown as text');
  await add('Tool');
  await field('Tool').fill('write_item');
  await count(page, '#rows li', 1);
  await page.locator('#rows a').first().click();
  await record.getByText('<img src=x onerror=').first().waitFor();
  const shown = await record.innerText();
  assert.ok(shown.includes('\\u{202e}') && !shown.includes('\u202e'), `the bidirectional override is escaped: ${HOSTILE}`);
  assert.equal(await record.locator('img, script').count(), 0);
  assert.equal(await page.title(), 'Activity – mcpproxy');
  await sound(page, 'hostile');

  step('an input event without a changed filter keeps the record open');
  await page.evaluate(() => {
    document.querySelector('#filters').dispatchEvent(new Event('input'));
    return new Promise((done) => { setTimeout(done, 500); }); // longer than the debounce interval
  });
  assert.ok(await record.isVisible());

  step('the whole record is shown, and its parts are copied');
  await copies(page, record, 'Copy Arguments', /"note": "<img src=x/);
  await copies(page, record, 'Copy Answer', /content/);
  await record.getByText('Whole record').click();
  await record.getByText('"prev_hash"').waitFor();
  await copies(page, record, 'Copy whole record', /"prev_hash": "[0-9a-f]{64}"/);

  step('a decision links to its call');
  await clear();
  await field('Type').selectOption('policy_decision');
  await all(page, '#rows li', (row) => row.includes('decision'));
  await page.locator('#rows a', { hasText: 'violate' }).first().click();
  await record.getByRole('link', { name: 'the call' }).click();
  await record.locator('.tags').getByText('tool call').waitFor();
  await record.getByText('call_tool_read', { exact: true }).waitFor();
  await record.locator('.decision').getByText('output validation').waitFor();

  step('the timeline of a call includes the wait for approval');
  const waits = call('write', 'stub:no_hints', {}, 'waited for a person');
  let waiting = [];
  await until(async () => {
    waiting = (await rest('GET', 'approvals')).data.approvals;
    return waiting.length > 0;
  }, () => 'no call waits for approval');
  await go(page, '#activity?type=approval');
  await page.locator('#rows li', { hasText: 'waiting' }).first().getByRole('link').click();
  await record.getByRole('link', { name: 'Its approval, while the call waits' }).click();
  await until(() => page.evaluate((id) => document.activeElement.dataset.id === id, waiting[0].id), () => page.url());
  await go(page, '#activity');
  await page.locator('#rows li').nth(8).waitFor();
  await rest('POST', `approvals/${waiting[0].id}`, { decision: 'approve' });
  assert.equal(await waits, 200);
  await clear();
  await page.locator('#rows li', { hasText: 'waited for a person' }).filter({ hasText: 'success' }).getByRole('link').first().click();
  await record.locator('.timeline').getByText('waiting for approval').waitFor();
  const parts = await record.locator('.timeline rect').evaluateAll((all) => all.map((it) => [it.classList[1], Number.parseFloat(it.getAttribute('x')), Number.parseFloat(it.getAttribute('width'))]));
  assert.deepEqual(parts.map(([name]) => name), ['approval', 'proxy', 'upstream']);
  assert.ok(parts.every(([, x, width], at) => width > 0 && (at === 0 ? x === 0 : Math.abs(x - parts[at - 1][1] - parts[at - 1][2]) < 0.1)), `${parts}`);
  assert.match(await record.locator('.timeline svg').getAttribute('aria-label'), /waiting for approval, .* in the proxy, .* at the server$/);

  step('a call and its approval share one row, and the answer replaces the request');
  const approved = page.locator('#rows li', { hasText: 'waited for a person' });
  await until(async () => await approved.count() === 1 && /approved by admin over/.test(await approved.innerText()), () => approved.allInnerTexts());
  await go(page, '#activity?type=approval');
  const answered = page.locator('#rows li', { hasText: 'stub:no_hints' });
  await until(async () => await answered.count() === 1 && /approved/.test(await answered.innerText()), () => answered.allInnerTexts());
  assert.equal(await page.locator('#rows li', { hasText: 'waiting' }).count(), 0);
  await answered.getByRole('link').click();
  await record.locator('.timeline').getByText('waiting for approval').waitFor();
  const facts = await record.innerText();
  assert.match(facts, /answer\s+approved by admin over/);
  assert.match(facts, /ended\s/);
  assert.ok(!/at the server|recorded|"door"/.test(facts.split('Whole record')[0]), facts);
  await record.getByRole('link', { name: 'its call' }).click();
  await until(async () => await approved.count() === 1 && await page.locator('#rows li').count() === 1, () => page.url());

  step('a call found by text shows its approver, even if the approval does not match the text');
  await go(page, '#activity?q=waited for a person');
  await until(async () => await approved.count() === 1 && /approved by admin over/.test(await approved.innerText()), () => approved.allInnerTexts());
  await go(page, '#activity');
  await approved.getByRole('link').click();
  await record.locator('dd', { hasText: 'approved by admin over' }).waitFor();

  step('the rules explain the call of a record with its arguments');
  const asks = record.getByRole('link', { name: 'What the rules say about this call' });
  const form = page.locator('#explain-form');
  const explained = async (...expected) => {
    await page.locator('#explained .card').waitFor();
    const names = ['principal', 'tool', 'action', 'sensitivity', 'reason', 'args'];
    assert.deepEqual(await Promise.all(names.map((name) => form.locator(`[name=${name}]`).inputValue())), expected);
    return page.locator('#explained').innerText();
  };
  await asks.click();
  assert.match(await explained('admin', 'stub:no_hints', 'write', 'internal', 'waited for a person', '{}'), /The rules allow it/);
  await page.goBack();
  await record.locator('.timeline').waitFor();

  const openRecord = async (reason) => {
    await go(page, '#activity');
    await page.locator('#rows li', { hasText: reason }).first().getByRole('link').click();
    await record.locator('dd', { hasText: reason }).waitFor();
  };
  assert.equal(await call('read', 'stub:blob', { path: '/etc/passwd' }, 'reads what nobody may', 'private'), 403);
  await openRecord('reads what nobody may');
  await asks.click();
  const args = '{\n  "path": "/etc/passwd"\n}';
  assert.match(await explained('admin', 'stub:blob', 'read', 'private', 'reads what nobody may', args), /The rules refuse it[\s\S]*nobody-reads-etc/);
  const source = page.locator('#explain-source');
  assert.ok(!/may differ/.test(await source.innerText()), 'a complete record has no warning');
  await sound(page, 'policy-record');
  await page.reload();
  await page.getByText('The rules refuse it').waitFor();
  await source.getByRole('link', { name: 'this record' }).click();
  await record.locator('dd', { hasText: 'reads what nobody may' }).waitFor();

  step('a decision links to the same explanation, and redacted or truncated arguments cause a warning');
  await go(page, '#activity?type=policy_decision&tool=blob');
  await page.locator('#rows li', { hasText: 'nobody-reads-etc' }).getByRole('link').click();
  await record.locator('.tags').getByText('decision', { exact: true }).waitFor();
  await asks.click();
  await page.getByText('The rules refuse it').waitFor();
  for (const [words, more, says] of [
    ['names a secret', { password: 'correct horse battery' }, 'Secrets in its arguments were replaced by [redacted].'],
    ['says too much', { path: `/etc/${'x'.repeat(100_000)}` }, 'Its arguments were cut in the log'],
  ]) {
    await call('read', 'stub:blob', more, words);
    await openRecord(words);
    await asks.click();
    await source.getByText(says).waitFor();
    await source.getByText('The answer may differ').waitFor();
    await page.locator('#explained .card').waitFor();
  }
  await form.locator('[name=client]').fill('another');
  assert.equal(await source.innerText(), '', 'an edited call is not attributed to the record');
  await go(page, '#activity?type=server_change');
  await page.locator('#rows li', { hasText: /server\s*chatty/ }).first().getByRole('link').click();
  await record.locator('.tags').getByText('server', { exact: true }).waitFor();
  assert.equal(await asks.count(), 0, 'a server record has no link to the rules');
  await go(page, `#policy?record=${(await rest('GET', 'activity?type=server_change&limit=1')).data.activities[0].id}`);
  await source.getByText('Only calls of tools can be explained.').waitFor();
  await openRecord('waited for a person');

  step('an id is copied, and a record links to related records');
  await copies(page, record, 'Copy id', /^[0-9A-Z]{26}$/);
  await record.getByRole('link', { name: 'other records' }).first().click();
  await page.locator('#rows li').nth(8).waitFor();
  assert.match(page.url(), /server=stub/);

  step('a late response does not replace a record that was opened after it');
  await go(page, '#activity');
  await page.reload();
  await page.locator('#rows li').nth(8).waitFor();
  const [late, other] = await ids(page.locator('#rows li'));
  const press = (id) => page.locator(`#rows [data-key="${id}"] a`).click();
  const isNotKept = (route) => route.fulfill({ status: 404, json: { success: false, error: 'There is no such record' } });
  const comes = await hold(page, `**/api/v1/activity/${late}`, isNotKept);
  await press(late);
  await press(other);
  await record.getByText(other).first().waitFor();
  await comes();
  wrong.expected(/404/);
  assert.ok((await record.innerText()).includes(other), await record.innerText());

  step('a click on a row repeats a failed request');
  await page.route(`**/api/v1/activity/${late}`, (route) => route.abort('failed'), { times: 1 });
  await press(late);
  await page.locator('#failed').getByText('mcpproxy does not answer').waitFor();
  wrong.expected(/ERR_FAILED/);
  await record.waitFor({ state: 'hidden' });
  await press(late);
  await record.getByText(late).first().waitFor();
  await page.locator('#failed').waitFor({ state: 'hidden' });
  await page.keyboard.press('Escape');
  await record.waitFor({ state: 'hidden' });

  step('the Older button loads older records');
  for (let at = 0; at < PAGE + 5; at += 1) await call('read', 'stub:echo', { at }, `one of many, ${at}`);
  await page.reload();
  const reasons = () => page.locator('#rows li .why').allInnerTexts();
  await count(page, '#rows li', PAGE);
  assert.match((await reasons())[0], new RegExp(`one of many, ${PAGE + 4}`));
  assert.ok(!(await reasons()).some((why) => /one of many, 4$/.test(why)), 'the first page does not contain it');
  await page.getByRole('button', { name: 'Older' }).click();
  await until(async () => (await reasons()).some((why) => /one of many, 4$/.test(why)), reasons);
  const all_of_them = (await reasons()).filter((why) => /one of many/.test(why));
  assert.deepEqual(all_of_them.map((why) => Number(/one of many, (\d+)/.exec(why)[1])),
    Array.from({ length: PAGE + 5 }, (_, at) => PAGE + 4 - at), 'each record is listed once, in order');
  while (await page.getByRole('button', { name: 'Older' }).isVisible()) {
    const [came] = await Promise.all([page.waitForResponse(/api\/v1\/activity\?.*cursor=/), page.getByRole('button', { name: 'Older' }).click()]);
    await came.finished();
    await drawn(page);
  }
  assert.match(await page.locator('#rows li').last().innerText(), /start|connected|server/i);

  step('late older records are not added to a list with other filters');
  await page.reload();
  await page.locator('#rows li').nth(8).waitFor();
  const olderCome = await hold(page, /api\/v1\/activity\?.*cursor=/);
  await page.getByRole('button', { name: 'Older' }).click();
  await field('Status').selectOption('blocked');
  await all(page, '#rows li', (row) => row.includes('blocked'));
  const listed = await ids(page.locator('#rows li'));
  await olderCome();
  assert.deepEqual(await ids(page.locator('#rows li')), listed);
  await clear();

  step('text search continues in older records on request');
  let told = 0;
  await page.route(/api\/v1\/activity\?.*text=/, async (route) => {
    told += 1;
    // The log of this test is too short for a response without a match, so such responses are simulated.
    if (told > ANSWERS) await route.continue();
    else await route.fulfill({ json: { success: true, data: { activities: [], searched: 1000, next_cursor: 'more', limit: PAGE } } });
  });
  await page.route(/cursor=more/, async (route) => {
    if (told < ANSWERS) {
      await route.fallback();
      return;
    }
    told += 1;
    const url = new URL(route.request().url());
    url.searchParams.delete('cursor');
    await route.fulfill({ response: await route.fetch({ url: url.href }) });
  });
  await text.fill('no longer needed');
  await page.getByText(`0 found in ${(ANSWERS * 1000).toLocaleString('en')} records; there are older ones`).waitFor();
  assert.equal(told, ANSWERS, 'the search stops until the user continues it');
  await count(page, '#rows li', 0);
  await page.getByRole('button', { name: 'Search older records' }).click();
  await count(page, '#rows li', 1);
  assert.match(await page.locator('#rows').innerText(), /no longer needed/);
  await page.unroute(/cursor=more/);
  await page.unroute(/api\/v1\/activity\?.*text=/);
  await clear();
}
