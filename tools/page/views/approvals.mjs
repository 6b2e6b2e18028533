// Calls that wait for a person.

import assert from 'node:assert/strict';

import { count, shot, sound, step, until, visit } from '../checks.mjs';
import { HOSTILE, call } from '../proxy.mjs';

export async function look({ page, dialogs }) {
  step('a call that waits is there by itself, and what an attacker wrote in it stays text');
  await visit(page, 'approvals');
  await page.getByText('No call waits for approval.').waitFor();
  const harmless = call('write', 'stub:no_hints', { note: HOSTILE }, HOSTILE);
  const cards = page.locator('#approvals > li');
  await cards.first().waitFor();
  assert.equal(await page.locator('#waiting').innerText(), '1');
  const card = await cards.first().innerText();
  for (const part of ['stub:no_hints', '<img src=x onerror=', '\\u{202e}']) assert.ok(card.includes(part), part);
  assert.equal(await cards.locator('img, script').count(), 0);
  assert.equal(await page.title(), 'Approvals – mcpproxy');
  await sound(page, 'approvals');
  await cards.first().getByRole('button', { name: 'Approve' }).click();
  assert.equal(await harmless, 200);
  await count(page, '#approvals > li', 0);
  assert.deepEqual(dialogs.asked, [], 'one harmless call needs no second word');

  step('a destructive call is approved with a second word, or denied');
  const destroys = call('destructive', 'stub:both_hints', { note: 'gone for good' }, 'cleaning up');
  await cards.first().waitFor();
  dialogs.sure = false;
  await cards.first().getByRole('button', { name: 'Approve' }).click();
  assert.match(dialogs.asked.pop(), /destructive call of stub:both_hints/);
  await count(page, '#approvals > li', 1);
  dialogs.sure = true;
  await cards.first().getByRole('combobox').selectOption('1h');
  await cards.first().getByRole('button', { name: 'Approve' }).click();
  assert.equal(await destroys, 200);
  assert.match(dialogs.asked.pop(), /1 hour, any arguments/);
  await page.locator('#standing li').getByText('stub:both_hints').waitFor();
  await shot(page, 'approvals-standing');
  assert.equal(await call('destructive', 'stub:both_hints', {}, 'goes without asking'), 200);
  await page.locator('#standing li').getByRole('button', { name: 'End' }).click();
  await count(page, '#standing li', 0);
  const denied = call('destructive', 'stub:both_hints', {}, 'asks again');
  await cards.first().waitFor();
  await cards.first().getByRole('button', { name: 'Deny' }).click();
  assert.equal(await denied, 403);
  await count(page, '#approvals > li', 0);
  assert.equal(await page.locator('#waiting').isVisible(), false);

  step('arguments that are long are shown whole where somebody asks for it, and approved as they are');
  const long = `begins ${'x'.repeat(6000)} ends`;
  const waits = call('write', 'stub:no_hints', { note: long }, 'long');
  await cards.first().waitFor();
  const shown = cards.first().getByRole('group', { name: 'Arguments' });
  const cut = await shown.innerText();
  assert.ok(cut.includes('begins') && !cut.includes('ends'), cut.slice(-40));
  await cards.first().getByRole('button', { name: /^Show all 5\.\d+ KiB/ }).click();
  await until(async () => (await shown.innerText()).includes(long), () => shown.innerText());
  assert.equal(await cards.first().getByRole('button', { name: /^Show all/ }).count(), 0);
  await cards.first().getByRole('button', { name: 'Approve' }).click();
  assert.equal(await waits, 200);
  await count(page, '#approvals > li', 0);
  await page.getByRole('link', { name: 'What was answered before' }).click();
  await page.locator('#rows li').nth(3).waitFor();
}
