// The records: filters, text, time, one row for a refusal and its decision, the address, keys, live.

import assert from 'node:assert/strict';

import { all, count, shot, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, call } from '../proxy.mjs';

const CANCEL_PX = 20; // what a browser keeps free in a search field
const PAGE = 50; // records that are asked for at once

export async function look({ page }) {
  const field = (name) => page.locator('#filters label', { hasText: new RegExp(`^\\s*${name}\\b`) }).locator('input, select');
  const clear = () => page.locator('#filters').getByRole('button', { name: 'Clear' }).click();
  const record = page.locator('#record');
  const focused = () => page.evaluate(() => document.activeElement.querySelector('.name')?.textContent);
  await visit(page, 'activity');
  await page.locator('#rows li').nth(8).waitFor();
  await sound(page, 'activity');
  const [words, room] = await field('Text').evaluate((it) => {
    const pen = Object.assign(document.createElement('canvas').getContext('2d'), { font: getComputedStyle(it).font });
    const { paddingLeft, paddingRight } = getComputedStyle(it);
    return [pen.measureText(it.placeholder).width, it.clientWidth - Number.parseFloat(paddingLeft) - Number.parseFloat(paddingRight)];
  });
  assert.ok(words + CANCEL_PX < room, `what the field is for can be read: ${words} of ${room}`);

  step('a refusal and its decision are one row, with the reason in it');
  const refused = page.locator('#rows li', { hasText: 'breaks its schema' });
  assert.equal(await refused.count(), 1);
  assert.match(await refused.innerText(), /output validation.*\/value/s);
  const pretends = page.locator('#rows li', { hasText: 'pretends to read' });
  assert.match(await pretends.innerText(), /call_tool_destructive/);
  const alone = await page.locator('#rows li', { hasText: /^\s*[\d:]+\s*decision/ }).count();
  assert.equal(alone, 0, 'no decision stands beside its call');

  step('filters leave what fits, and stand in the address');
  await field('Status').selectOption('blocked');
  await all(page, '#rows li', (row) => row.includes('blocked'));
  await field('Type').selectOption('tool_call');
  await field('Tool').fill('violate');
  await count(page, '#rows li', 1);
  assert.match(page.url(), /#activity\?.*tool=violate/);
  await page.reload();
  await count(page, '#rows li', 1);
  assert.equal(await field('Tool').inputValue(), 'violate');
  await field('Tool').fill('no such tool');
  await page.getByText('No record fits the filters.').waitFor();
  await field('Tool').fill('violate');
  await count(page, '#rows li', 1);

  step('a record opens and closes with the keyboard, and by the address');
  await page.locator('#filters button[type=reset]').focus();
  await page.keyboard.press('Tab');
  assert.equal(await focused(), 'stub:violate');
  await page.keyboard.press('Enter');
  for (const text of ['Verdict', 'output validation', '/value', 'strict', 'Intent', 'Timing', 'Size']) {
    await record.getByText(text).first().waitFor();
  }
  assert.match(page.url(), /record=[0-9A-Z]{26}/);
  await sound(page, 'record');
  await page.reload();
  await record.getByText('Verdict').waitFor();
  await page.goBack();
  await record.waitFor({ state: 'hidden' });
  await page.goForward();
  await record.getByText('Verdict').waitFor();
  await page.keyboard.press('Escape');
  await record.waitFor({ state: 'hidden' });
  assert.equal(await focused(), 'stub:violate');

  step('a text is searched in whole records, and a time bounds them');
  await clear();
  await page.locator('#rows li').nth(8).waitFor();
  await field('Text').fill('NO LONGER NEEDED');
  await count(page, '#rows li', 1);
  await page.getByText(/\d+ records searched/).waitFor();
  await field('Text').fill('');
  await field('When').selectOption('15m');
  await page.locator('#rows li').nth(8).waitFor();
  await field('When').selectOption('between');
  await field('To').fill('2020-01-01T00:00:01');
  await page.getByText('No record fits the filters.').waitFor();
  assert.match(page.url(), /to=2020-01-01/);
  await clear();
  await page.locator('#rows li').nth(8).waitFor();

  step('arrows move through the list');
  await page.locator('#rows a').first().focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('j');
  assert.equal(await page.locator('#rows a:focus').count(), 1);
  assert.equal(await page.locator('#rows li').nth(2).locator('a:focus').count(), 1);
  await page.keyboard.press('/');
  assert.equal(await field('Text').evaluate((it) => it === document.activeElement), true);

  step('a call arrives by itself, and only where it fits the filters');
  const rows = await page.locator('#rows li').count();
  await call('read', 'stub:echo', { note: 'arrives' }, 'came while you looked');
  await count(page, '#rows li', rows + 1);
  assert.match(await page.locator('#rows li').first().innerText(), /stub:echo/);
  await page.locator('#live[data-state=live]').waitFor();
  await call('read', 'stub:violate', {}, 'refused while you looked');
  const live = page.locator('#rows li', { hasText: 'refused while you looked' });
  await until(async () => (await live.count()) === 1 && /output validation/.test(await live.innerText()), () => live.allInnerTexts());
  await count(page, '#rows li', rows + 2);
  await field('Intent').selectOption('destructive');
  await all(page, '#rows li', (row) => row.includes('destructive'));
  const destructive = await page.locator('#rows li').count();
  await call('read', 'stub:echo', {}, 'does not fit');
  await call('destructive', 'stub:delete_item', {}, 'fits');
  await count(page, '#rows li', destructive + 1);
  await all(page, '#rows li', (row) => row.includes('destructive'));

  step('what an attacker wrote stays text');
  await clear();
  await field('Tool').fill('write_item');
  await count(page, '#rows li', 1);
  await page.locator('#rows a').first().click();
  await record.getByText('<img src=x onerror=').first().waitFor();
  const shown = await record.innerText();
  assert.ok(shown.includes('\\u{202e}') && !shown.includes('\u202e'), `the turning character is shown: ${HOSTILE}`);
  assert.equal(await record.locator('img, script').count(), 0);
  assert.equal(await page.title(), 'Activity – mcpproxy');
  await shot(page, 'hostile');

  step('a record stays open when the form says once more what it said');
  await page.evaluate(() => {
    document.querySelector('#filters').dispatchEvent(new Event('input'));
    return new Promise((done) => { setTimeout(done, 500); }); // past the pause that ends typing
  });
  assert.ok(await record.isVisible());

  step('an id is copied, and what belongs together is a click away');
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await record.getByRole('button', { name: 'Copy id' }).click();
  await record.getByText('Copied').waitFor();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^[0-9A-Z]{26}$/);
  await record.getByRole('link', { name: 'all of it' }).first().click();
  await page.locator('#rows li').nth(8).waitFor();
  assert.match(page.url(), /server=stub/);
  await clear();

  step('older records are a click away');
  for (let at = 0; at < PAGE + 5; at += 1) await call('read', 'stub:echo', { at }, `one of many, ${at}`);
  await page.reload();
  const reasons = () => page.locator('#rows li .why').allInnerTexts();
  await count(page, '#rows li', PAGE);
  assert.match((await reasons())[0], new RegExp(`one of many, ${PAGE + 4}`));
  assert.ok(!(await reasons()).some((why) => /one of many, 4$/.test(why)), 'the first page ends before it');
  await page.getByRole('button', { name: 'Older' }).click();
  await until(async () => (await reasons()).some((why) => /one of many, 4$/.test(why)), reasons);
  const all_of_them = (await reasons()).filter((why) => /one of many/.test(why));
  assert.deepEqual(all_of_them.map((why) => Number(/one of many, (\d+)/.exec(why)[1])),
    Array.from({ length: PAGE + 5 }, (_, at) => PAGE + 4 - at), 'each once, in their order');
  while (await page.getByRole('button', { name: 'Older' }).isVisible()) await page.getByRole('button', { name: 'Older' }).click();
  assert.match(await page.locator('#rows li').last().innerText(), /start|connected|server/i);
}
