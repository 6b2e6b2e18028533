// The config: shown without secrets, compared with its file, read again, refused, changed here; and the log.

import assert from 'node:assert/strict';

import { copies, sound, step, until, visit } from '../checks.mjs';
import { KEY, configure, configured, written } from '../proxy.mjs';

export async function look({ page, wrong }) {
  step('the config in force is shown without secrets');
  await visit(page, 'settings');
  const standing = page.locator('#standing-config');
  await standing.getByText('output_validation').waitFor();
  const text = await standing.innerText();
  assert.ok(!text.includes(KEY) && text.includes('(not shown)'), text);
  await page.getByRole('button', { name: 'Compare with the file' }).click();
  await page.getByText('The file says what is in force.').waitFor();
  await sound(page, 'settings');

  step('a file that counts from the next start on is compared with what is in force');
  configure({ activity: { retention_days: 7, durability: 'before_reply' } });
  await page.getByRole('button', { name: 'Reload' }).click();
  await until(async () => /activity/.test(await page.locator('#view-settings').innerText()), () => page.locator('#view-settings').innerText());
  await page.getByRole('button', { name: 'Compare with the file' }).click();
  await page.getByText('Counts from the next start on').first().waitFor();
  await copies(page, standing, 'Copy config', /"output_validation"/);

  step('a file that cannot be used is told here and at the top of Now, and mended');
  configure('{ "tools_limit": 0 }');
  await page.getByRole('button', { name: 'Reload' }).click();
  await page.locator('#difference').getByText('tools_limit').first().waitFor();
  wrong.expected(/422/);
  await page.getByText('the config before it stays in force').first().waitFor();
  await page.getByRole('button', { name: 'Compare with the file' }).click();
  await page.getByText('The file cannot be used:').waitFor();
  await sound(page, 'settings-rejected');
  await visit(page, 'now');
  await page.locator('#faults').getByText('tools_limit').waitFor();
  configure({ tools_limit: 9 });
  await visit(page, 'settings');
  await page.getByRole('button', { name: 'Reload' }).click();
  await until(async () => /"tools_limit": 9/.test(await standing.innerText()), () => standing.innerText());

  step('settings are changed here: what that does is shown first, and comments and secrets stay');
  configure(`// ours\n${JSON.stringify({ ...configured(), tools_limit: 9 }, null, 2)}`);
  await page.getByRole('button', { name: 'Change settings' }).click();
  const field = page.getByLabel('Settings, as JSON');
  await until(async () => /"tools_limit": 9/.test(await field.inputValue()), () => field.inputValue());
  const shown = await field.inputValue();
  assert.ok(!shown.includes(KEY) && shown.includes('(not shown)'), shown);
  const show = page.getByRole('button', { name: 'Show what that changes' });
  const proposed = page.locator('#proposed');
  await show.click();
  await proposed.getByText('Nothing has changed.').waitFor();
  await field.fill(shown.replace('"tools_limit": 9', '"tools_limit": '));
  await show.click();
  await proposed.getByText(/^That cannot be read, at line \d+ column 1: /).waitFor();
  await field.fill(shown.replace('"tools_limit": 9', '"tools_limit": 0'));
  await show.click();
  await proposed.getByText(/line \d+ column \d+: .*tools_limit: must be/).waitFor();
  wrong.expected(/422/);
  await field.fill(shown.replace('"api_key": "(not shown)"', '"api_key": "another-key-of-more-than-thirty-two-letters"'));
  await show.click();
  await proposed.getByText('who is let in').waitFor();
  wrong.expected(/422/);
  await field.fill(shown.replace('"tools_limit": 9', '"tools_limit": 8, "logging": { "format": "json" }'));
  await show.click();
  await proposed.getByText('Applies at once').waitFor();
  await proposed.getByText('Counts from the next start on').waitFor();
  assert.match(await proposed.innerText(), /tools_limit[\s\S]*- 9[\s\S]*\+ 8[\s\S]*logging\.format/);
  const apart = await page.evaluate(() => document.querySelector('#difference + .card').getBoundingClientRect().top - document.querySelector('#difference').getBoundingClientRect().bottom);
  assert.ok(apart > 4, `the editor stands apart from the answer before it: ${apart}`);
  await sound(page, 'settings-change');
  assert.equal(configured().tools_limit, 9, 'nothing is written yet');

  step('somebody else wrote the file meanwhile: theirs is not written over');
  configure(`// theirs\n${JSON.stringify({ ...configured(), tools_limit: 7 }, null, 2)}`);
  await page.getByRole('button', { name: 'Write and apply' }).click();
  await proposed.getByText('The file has changed since it was read').waitFor();
  wrong.expected(/409/);
  assert.equal(configured().tools_limit, 7);
  await page.getByRole('button', { name: 'Discard' }).click();
  assert.equal(await field.isVisible(), false);
  await page.getByRole('button', { name: 'Change settings' }).click();
  await until(async () => /"tools_limit": 7/.test(await field.inputValue()), () => field.inputValue());
  await field.fill((await field.inputValue()).replace('"tools_limit": 7', '"tools_limit": 8'));
  await show.click();
  await page.getByRole('button', { name: 'Write and apply' }).click();
  // What is in force may still be theirs, and be told as that.
  await until(async () => /"tools_limit": 8/.test(await standing.innerText()), () => standing.innerText());
  await page.locator('#difference').getByText('It is in force.').waitFor();
  assert.equal(configured().tools_limit, 8);
  assert.equal(configured().api_key, KEY);
  assert.match(written(), /^\/\/ theirs\n/);

  step('the log is verified');
  await page.getByRole('button', { name: 'Verify the log' }).click();
  await page.getByText('The log is as it was written.').waitFor();
  await page.getByRole('link', { name: 'Changes of the config' }).click();
  await page.locator('#rows li').nth(1).waitFor();
  assert.match(await page.locator('#rows li').first().innerText(), /config\s+changed tools_limit/, 'the row says what was changed');
  await page.locator('#rows a').first().click();
  await page.locator('#record').getByText('tools_limit').first().waitFor();
  assert.match(await page.locator('#record').innerText(), /admin/);
}
