// Approvals view: waiting calls, decisions, and standing approvals.

import assert from 'node:assert/strict';

import { count, decide, go, keepsFocus, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, call, rest, session } from '../proxy.mjs';

// Characters that `src/cli/terminal_safe.rs` escapes: each is invisible or resembles another character.
const UNSEEN = [...'\u{200b}\u{61c}\u{3164}\u{e0041}\u{115f}\u{1160}\u{ffa0}\u{ad}\u{fe0f}\u{200d}\u{2028}\u{2029}\u{feff}\u{e000}\u{85}\u{2800}\u{180e}\u{2066}\u{fff9}\u{1d173}\u{34f}',
  ...'\u{180b}\u{180d}\u{fe00}\u{fffb}\u{1d17a}\u{e0100}\u{e01ef}\u{e0001}\u{f0000}\u{10fffd}\u{7}\u{1b}\u{7f}\u{9b}\u{202e}\u{0}\u{378}'];
const shown = (char) => `\\u{${char.codePointAt(0).toString(16)}}`;

/** Clicks Approve on the first card at each change of `place`. The returned function stops this and returns a boolean
 * for each click: true if the click took effect. */
async function clicks(page, place, options) {
  const watched = await page.evaluateHandle(([of, how]) => {
    const counted = [];
    const watcher = new MutationObserver(() => {
      const card = document.querySelector('#approvals > li');
      card.querySelector('.primary').dispatchEvent(new MouseEvent('click', { detail: 1, bubbles: true }));
      counted.push(card.dataset.asked !== undefined);
    });
    watcher.observe(document.querySelector(of), how);
    return { watcher, counted };
  }, [place, options]);
  return () => watched.evaluate(({ watcher, counted }) => {
    watcher.disconnect();
    return counted;
  });
}

export async function look({ page, wrong }) {
  const cards = page.locator('#approvals > li');
  const still = page.locator('#approvals > li:not([data-moved])');
  const card = (words) => still.filter({ hasText: words });
  /** Text of a card without the remaining time, which changes. */
  const untimed = (text) => text.replace(/ in \d+ \w+\n/, '\n');
  const press = (it, name) => it.getByRole('button', { name, exact: true }).click();
  /** Waits until no card is left. A decided card disappears after the pointer leaves it. */
  const none = async () => {
    await page.mouse.move(2, 2);
    await count(page, '#approvals > li', 0);
  };

  step('a waiting call appears without a reload, and its hostile text is shown as text');
  await visit(page, 'approvals');
  await page.getByText('No call waits for approval.').waitFor();
  const harmless = call('write', 'stub:no_hints', { note: HOSTILE }, HOSTILE);
  await cards.first().waitFor();
  assert.equal(await page.locator('#waiting').innerText(), '1');
  const text = await cards.first().innerText();
  for (const part of ['stub:no_hints', '<img src=x onerror=', '\\u{202e}']) assert.ok(text.includes(part), part);
  assert.match(text, /expires\s+\d\d:\d\d:\d\d in [45] min/);
  assert.equal(await cards.locator('img, script').count(), 0);
  assert.equal(await page.title(), '(1) Approvals – mcpproxy');
  await page.locator('#approval-count', { hasText: /^1 call waits$/ }).waitFor();
  await sound(page, 'approvals');

  step('a waiting call links to its tool, principal, earlier calls and rules');
  for (const [name, address] of [
    ['stub:no_hints', /#tools\?tool=stub%3Ano_hints$/], ['admin', /#principals\?name=admin$/],
    ['its earlier calls', /#activity\?server=stub&tool=no_hints&principal=admin$/], ['what the rules say', /#policy\?principal=admin&tool=stub%3Ano_hints&part=explain&approval=\S+$/],
  ]) {
    await still.first().getByRole('link', { name, exact: true }).click();
    await until(() => address.test(page.url()), () => page.url());
    if (name === 'what the rules say') {
      await page.locator('#explained .card').waitFor();
      assert.equal(await page.locator('#explain-form [name=tool]').inputValue(), 'stub:no_hints');
      assert.equal(await page.locator('#explain-form [name=action]').inputValue(), 'write');
    }
    await go(page, '#approvals');
    await still.first().waitFor();
  }
  await press(still.first(), 'Approve');
  assert.equal(await harmless, 200);
  await cards.first().getByText('Approved.').waitFor();
  await none();
  await page.getByText('No call waits for approval.').waitFor();
  await count(page, 'dialog', 0); // a non-destructive call needs no confirmation

  step('a double click answers one call, and a card that moves under the pointer is not answered');
  const wanted = call('write', 'stub:no_hints', { note: 'wanted' }, 'wanted');
  await card('wanted').waitFor();
  const others = ['second', 'third'].map((note) => call('write', 'stub:no_hints', { note }, note));
  await count(page, '#approvals > li:not([data-moved])', 3);
  const [read, unread] = [await cards.nth(0).innerText(), await cards.nth(1).innerText()];
  assert.match(read, /wanted/);
  const at = await cards.first().getByRole('button', { name: 'Approve' }).boundingBox();
  await page.mouse.click(at.x + 10, at.y + 10, { clickCount: 2, delay: 10 });
  assert.equal(await wanted, 200);
  await cards.first().getByText('Approved.').waitFor();
  await page.mouse.click(at.x + 10, at.y + 10);
  assert.equal((await rest('GET', 'approvals')).data.approvals.length, 2);
  await page.evaluate(() => { // clicks as soon as another card is at that place
    const list = document.querySelector('#approvals');
    new MutationObserver((_changes, seen) => {
      seen.disconnect();
      list.firstElementChild.querySelector('.primary').dispatchEvent(new MouseEvent('click', { detail: 1, bubbles: true }));
      window.hinted = list.firstElementChild.querySelector('.hint').textContent;
    }).observe(list, { childList: true });
  });
  await page.mouse.move(2, 2);
  await count(page, '#approvals > li', 2);
  assert.equal(await page.evaluate(() => window.hinted), 'The list just moved: click again');
  await cards.first().getByText('The list just moved').waitFor({ state: 'hidden' });
  assert.equal(untimed(await cards.first().innerText()), untimed(unread), 'the second card is first now and has no answer');
  await count(page, '#approvals > li:not([data-moved])', 2);
  assert.equal((await rest('GET', 'approvals')).data.approvals.length, 2);

  step('a call answered elsewhere is marked and keeps its place under the pointer');
  const [{ id }] = (await rest('GET', 'approvals')).data.approvals.filter((it) => it.call.reason === unread.match(/second|third/)[0]);
  await cards.first().getByRole('button', { name: 'Deny' }).hover();
  assert.equal((await rest('POST', `approvals/${id}`, { decision: 'deny' })).status, 200);
  await cards.first().getByText('It is no longer waiting.').waitFor();
  assert.ok(await cards.first().getByRole('button', { name: 'Approve' }).isDisabled());
  await page.mouse.move(2, 2);
  await count(page, '#approvals > li', 1);
  await still.first().getByRole('button', { name: 'Deny' }).focus();
  await page.keyboard.press('Enter');
  assert.deepEqual(await Promise.all(others), [403, 403]);
  await count(page, '#approvals > li', 0);
  assert.ok(await page.evaluate(() => document.activeElement.id === 'main'), 'the view has the focus');

  step('all waiting calls are denied together after a confirmation');
  const flood = ['one', 'two', 'three'].map((note) => call('write', 'stub:no_hints', { note }, `flood ${note}`));
  await count(page, '#approvals > li', 3);
  await page.locator('#approval-count', { hasText: /^3 calls wait$/ }).waitFor();
  const denyAll = page.getByRole('button', { name: 'Deny all' });
  await denyAll.click();
  await sound(page, 'dialog');
  assert.match(await decide(page, false), /^Deny all 3 waiting calls\?\s+stub:no_hints of admin: flood/);
  assert.equal((await rest('GET', 'approvals')).data.approvals.length, 3);
  await denyAll.click();
  await decide(page);
  assert.deepEqual(await Promise.all(flood), [403, 403, 403]);
  await none();
  await page.locator('#decided li', { hasText: /denied by admin over page/ }).nth(2).waitFor();

  step('invisible and ambiguous characters of a waiting call are escaped');
  const hides = call('write', 'stub:no_hints', { note: `begins${UNSEEN.join('')}ends\n\tand goes on` }, `because${UNSEEN.join('')}`);
  await card('begins').waitFor();
  // JSON has its own escapes for control characters.
  const [, spelled] = /begins(.*)ends/.exec(await card('begins').getByRole('group', { name: 'Arguments' }).textContent());
  assert.equal(spelled, UNSEEN.map((char) => (char < ' ' ? JSON.stringify(char).slice(1, -1) : shown(char))).join(''));
  await card('begins').getByText(`because${UNSEEN.map(shown).join('')}`).waitFor();
  const kept = await page.evaluate(async () => (await import('/ui/dom.js')).visible('safe\n\ttext é 📖 日本 עברית ไทย'));
  assert.equal(kept, 'safe\n\ttext é 📖 日本 עברית ไทย');
  await press(card('begins'), 'Deny');
  assert.equal(await hides, 403);
  await none();

  step('a destructive call is approved after a confirmation or denied, and its standing approval is revoked');
  const destroys = call('destructive', 'stub:both_hints', { note: 'gone for good' }, 'cleaning up');
  await still.first().waitFor();
  await press(still.first(), 'Approve');
  assert.match(await decide(page, false), /destructive call of stub:both_hints\?[\s\S]*admin[\s\S]*this call[\s\S]*gone for good/);
  await count(page, '#approvals > li', 1);
  await still.first().getByRole('combobox').selectOption('1h');
  await press(still.first(), 'Approve');
  assert.match(await decide(page), /1 hour, any arguments/);
  assert.equal(await destroys, 200);
  await page.locator('#standing li').getByText('stub:both_hints').waitFor();
  await page.locator('#standing li').getByText(/^in \d+ min$/).waitFor();
  await none();
  await sound(page, 'approvals-standing');
  assert.equal(await call('destructive', 'stub:both_hints', {}, 'goes without asking'), 200);
  const end = page.locator('#standing li:not([data-moved])').getByRole('button', { name: 'Revoke' });
  await keepsFocus(page, end, ['approvals']);
  await end.click();
  await count(page, '#standing li', 0);
  const denied = call('destructive', 'stub:both_hints', {}, 'asks again');
  await still.first().waitFor();
  await press(still.first(), 'Deny');
  assert.equal(await denied, 403);
  await cards.first().getByText('Denied.').waitFor();
  await none();
  assert.equal(await page.locator('#waiting').isVisible(), false);

  step('a session approval applies only to its session');
  const [mine, another] = [await session(), await session()];
  const first = mine('write', 'stub:no_hints', {}, 'of a session');
  await card('of a session').getByRole('combobox').selectOption('this session, any arguments');
  await press(card('of a session'), 'Approve');
  assert.match(await decide(page), /this session, any arguments/);
  assert.equal(await first, true);
  await page.locator('#standing li', { hasText: 'session' }).waitFor();
  await none();
  assert.equal(await mine('write', 'stub:no_hints', { other: true }, 'asks nobody'), true);
  const asks = another('write', 'stub:no_hints', {}, 'of another session');
  await press(card('of another session'), 'Deny');
  assert.equal(await asks, false);
  await none();
  await end.click();
  await count(page, '#standing li', 0);

  step('long arguments are expanded on request, and the call is approved');
  const long = `begins ${'x'.repeat(6000)} ends`;
  const waits = call('write', 'stub:no_hints', { note: long }, 'long');
  await still.first().waitFor();
  const argumentsOf = still.first().getByRole('group', { name: 'Arguments' });
  const cut = await argumentsOf.innerText();
  assert.ok(cut.includes('begins') && !cut.includes('ends'), cut.slice(-40));
  const whole = await clicks(page, '#approvals > li', { childList: true });
  await still.first().getByRole('button', { name: /^Show all 5\.\d+ KiB/ }).click();
  await until(async () => (await argumentsOf.innerText()).includes(long), () => argumentsOf.innerText());
  assert.equal(await cards.first().getByRole('button', { name: /^Show all/ }).count(), 0);
  assert.deepEqual(await whole(), [false], 'a click on a card that has just moved is ignored');
  await press(still.first(), 'Approve');
  assert.equal(await waits, 200);
  await none();

  step('clicks are ignored just after a message above the cards moves them');
  const moves = call('write', 'stub:no_hints', {}, 'moves');
  await card('moves').waitFor();
  let fails = true;
  await page.route('**/api/v1/approvals', (route) => (fails
    ? route.fulfill({ status: 500, json: { success: false, error: 'it cannot be said now what waits' } }) : route.continue()));
  const trouble = page.locator('#trouble');
  const counted = await clicks(page, '#trouble', { attributeFilter: ['hidden'] });
  await trouble.getByText('it cannot be said now what waits').waitFor();
  await card('moves').waitFor();
  fails = false;
  await trouble.waitFor({ state: 'hidden' });
  await page.unroute('**/api/v1/approvals');
  wrong.expected(/500/);
  const all = await counted();
  assert.ok(all.length >= 2 && !all.includes(true), `${all}`);
  await press(card('moves'), 'Deny');
  assert.equal(await moves, 403);
  await none();

  step('a call ends only if a complete list of its node omits it, and waits again if a list contains it');
  let told = { unseen: [{ node: 'third', why: 'third says nothing' }] };
  await page.route('**/api/v1/approvals', async (route) => {
    const response = await route.fetch();
    const { data, ...rest } = await response.json();
    for (const it of data.approvals) if (it.call.reason === 'on another node') it.node = 'other';
    await route.fulfill({ response, json: { ...rest, data: { ...data, ...told } } });
  });
  const lists = async (node, why, more) => {
    told = { unseen: [{ node, why }], ...more };
    await page.locator('#approvals-unseen').getByText(why).waitFor();
  };
  const ends = page.locator('#approvals .outcome');
  const calls = ['on this node', 'on another node'].map((words) => call('write', 'stub:no_hints', {}, words));
  await card('on this node').waitFor();
  await card('on another node').waitFor();
  // A card under the mouse stays in place after the end of its call. This browser reports no mouse, so one is simulated.
  await page.evaluate(() => { window.matchMedia = () => ({ matches: true }); });
  await card('on this node').getByRole('button', { name: 'Deny' }).hover();
  const own = await card('on this node').elementHandle();
  await lists('other', 'other says nothing', { approvals: [], heard: [] });
  assert.deepEqual(await ends.allInnerTexts(), ['It is no longer waiting.']);
  assert.match(await own.innerText(), /It is no longer waiting/);
  await lists('third', 'third still says nothing', {});
  await count(page, '#approvals .outcome', 0);
  await card('on this node').waitFor();
  assert.ok(await own.evaluate((it) => it.isConnected && [...it.querySelectorAll('.answer > *')].every((one) => !one.disabled)), 'the call can be answered');
  await lists('third', 'third says nothing of many', { approvals: [], heard: [], left_out: 2 });
  await lists('', 'nobody knows which nodes there are', { approvals: [], heard: [] });
  assert.equal(await ends.count(), 0);
  await count(page, '#approvals > li', 2);
  await lists('', 'nobody knows it still, but one node has said all', { approvals: [], heard: ['other'] });
  await count(page, '#approvals > li', 1);
  await card('on this node').waitFor();
  await page.unroute('**/api/v1/approvals');
  for (const { id: each } of (await rest('GET', 'approvals')).data.approvals) await rest('POST', `approvals/${each}`, { decision: 'deny' });
  assert.deepEqual(await Promise.all(calls), [403, 403]);
  await none();

  step('list keys move through the waiting calls and the latest decisions');
  const two = ['first', 'last'].map((note) => call('write', 'stub:no_hints', { note }, note));
  await count(page, '#approvals > li:not([data-moved])', 2);
  await page.locator('#decided li').first().waitFor();
  await page.evaluate(() => document.activeElement.blur());
  const places = () => page.evaluate(() => [...document.querySelectorAll('#approvals > li, #decided .records a')].indexOf(document.activeElement));
  for (const [key, at] of [['ArrowDown', 0], ['j', 1], ['ArrowDown', 2], ['ArrowUp', 1], ['k', 0]]) {
    await page.keyboard.press(key);
    assert.equal(await places(), at, key);
  }
  assert.equal(await page.locator('#decided .row.head span').last().innerText(), 'Waited');
  await page.getByRole('button', { name: 'Deny all' }).click();
  await decide(page);
  await Promise.all(two);
  await none();

  step('earlier decisions are listed with their outcome, approver and scope');
  await page.getByRole('link', { name: 'Earlier decisions' }).click();
  await page.locator('#rows li', { hasText: /approved by admin over page for 1 h/ }).first().waitFor();
  await page.locator('#rows li', { hasText: /denied by admin over page/ }).first().waitFor();
  await page.locator('#rows li', { hasText: /approved by admin over page for the session/ }).first().waitFor();
}
