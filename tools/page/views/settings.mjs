// The config: shown without secrets, compared with its file, reloaded, rejected, and changed on the page; and the log.

import assert from 'node:assert/strict';

import { copies, sound, step, until, visit } from '../checks.mjs';
import { KEY, configure, configured, written } from '../proxy.mjs';

export async function look({ page, wrong }) {
  step('the config in force is shown without secrets');
  await visit(page, 'settings');
  const standing = page.locator('#standing-config');
  await page.getByText('Config in force, secrets hidden').click();
  await standing.getByText('output_validation').waitFor();
  const text = await standing.innerText();
  assert.ok(!text.includes(KEY) && text.includes('(not shown)'), text);
  assert.match(text, /"command": ".*\/examples\/stub"[\s\S]*"args": \[\s*"stdio"\s*\]/, 'how a server is reached is no secret');
  assert.match(text, /"url": "http:\/\/127\.0\.0\.1:\d+\/mcp"/);
  await page.getByRole('button', { name: 'Compare with the file' }).click();
  await page.getByText('The file matches the config in force.').waitFor();
  await sound(page, 'settings');

  step('a file that counts from the next start on is compared with what is in force');
  configure({ activity: { retention_days: 7, durability: 'before_reply' } });
  await page.getByRole('button', { name: 'Reload' }).click();
  await until(async () => /activity/.test(await page.locator('#view-settings').innerText()), () => page.locator('#view-settings').innerText());
  await page.getByRole('button', { name: 'Compare with the file' }).click();
  await page.getByText('Takes effect at the next start').first().waitFor();
  await copies(page, standing, 'Copy config', /"output_validation"/);

  step('a file that cannot be used is told here and in the overview, and mended');
  configure('{ "tools_limit": 0 }');
  await page.getByRole('button', { name: 'Reload' }).click();
  await page.locator('#difference').getByText('tools_limit').first().waitFor();
  wrong.expected(/422/);
  await page.getByText('the previous config stays in force').first().waitFor();
  await page.getByRole('button', { name: 'Compare with the file' }).click();
  await page.getByText('The file is invalid:').waitFor();
  assert.equal(await page.locator('[data-faults=config]').getByText('tools_limit').count(), 0, 'the file is told of in one place');
  await sound(page, 'settings-rejected');
  await visit(page, 'now');
  await page.locator('#faults').getByText('tools_limit').waitFor();
  configure({ tools_limit: 9 });
  await visit(page, 'settings');
  await page.getByRole('button', { name: 'Reload' }).click();
  await until(async () => /"tools_limit": 9/.test(await standing.innerText()), () => standing.innerText());

  step('settings are changed here: what that does is shown first, and comments and secrets stay');
  configure(`// ours\n${JSON.stringify({ ...configured(), tools_limit: 9 }, null, 2)}`);
  const edit = async () => {
    await page.getByRole('button', { name: 'Change settings' }).click();
    await page.getByRole('button', { name: 'Edit as JSON' }).click();
  };
  await edit();
  const field = page.getByLabel('Settings, as JSON');
  await until(async () => /"tools_limit": 9/.test(await field.inputValue()), () => field.inputValue());
  const shown = await field.inputValue();
  assert.ok(!shown.includes(KEY) && shown.includes('(not shown)'), shown);
  const show = page.getByRole('button', { name: 'Preview changes' });
  const proposed = page.locator('#proposed');
  await show.click();
  await proposed.getByText('Nothing has changed.').waitFor();
  await field.fill(shown.replace('"tools_limit": 9', '"tools_limit": '));
  await show.click();
  await proposed.getByText(/^Invalid JSON at line \d+ column 1: /).waitFor();
  await field.fill(shown.replace('"tools_limit": 9', '"tools_limit": 0'));
  await show.click();
  await proposed.getByText(/line \d+ column \d+: .*tools_limit: must be/).waitFor();
  wrong.expected(/422/);
  await field.fill(shown.replace('"api_key": "(not shown)"', '"api_key": "another-key-of-more-than-thirty-two-letters"'));
  await show.click();
  await proposed.getByText('not a setting that can be changed here').waitFor();
  wrong.expected(/422/);
  await field.fill(shown.replace('"tools_limit": 9', '"tools_limit": 8, "logging": { "format": "json" }'));
  await show.click();
  await proposed.getByText('Applies at once').waitFor();
  await proposed.getByText('Takes effect at the next start').waitFor();
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
  await edit();
  await until(async () => /"tools_limit": 7/.test(await field.inputValue()), () => field.inputValue());
  await field.fill((await field.inputValue()).replace('"tools_limit": 7', '"tools_limit": 8'));
  await show.click();
  await page.getByRole('button', { name: 'Write and apply' }).click();
  await field.waitFor({ state: 'hidden' });
  // The config in force may still be the earlier one, and is then shown as such.
  await until(async () => /"tools_limit": 8/.test(await standing.innerText()), () => standing.innerText());
  await page.locator('#difference').getByText('The config is in force.').waitFor();
  assert.equal(configured().tools_limit, 8);
  assert.equal(configured().api_key, KEY);
  assert.match(written(), /^\/\/ theirs\n/);

  step('a form made from the schema changes what can be changed, of the proxy and of a server');
  await page.getByRole('button', { name: 'Change settings' }).click();
  const form = page.locator('#settings-form');
  const setting = (name) => form.getByLabel(name, { exact: true });
  assert.equal(await setting('tools_limit').inputValue(), '8');
  assert.deepEqual(await Promise.all(['type', 'min', 'max'].map((it) => setting('tools_limit').getAttribute(it))), ['number', '1', '100']);
  await form.getByText('Tools that retrieve_tools answers with').waitFor();
  await show.click();
  await proposed.getByText('Nothing has changed.').waitFor();
  await setting('tools_limit').fill('12');
  await form.getByText('output validation', { exact: true }).click();
  assert.equal(await setting('output_validation.mode').inputValue(), 'strict');
  assert.equal(await setting('output_validation.assert_formats').locator('option').first().innerText(), 'default: no');
  await setting('output_validation.assert_formats').selectOption('yes');
  assert.equal(await form.getByLabel('api_key').count() + await form.getByLabel('listen').count(), 0, 'what cannot be changed here is not offered');
  await sound(page, 'settings-form');
  await form.getByLabel('Settings of').selectOption('stub');
  await setting('call_timeout').fill('42s');
  await setting('disabled_tools').fill('number_*, never');
  assert.equal(await form.getByLabel('command').count(), 0);
  await page.getByRole('button', { name: 'Edit as JSON' }).click();
  assert.match(await field.inputValue(), /"assert_formats": true/);
  await page.getByRole('button', { name: 'Edit as a form' }).click();
  assert.equal(await setting('tools_limit').inputValue(), '12');
  await show.click();
  await proposed.getByText('Applies at once').waitFor();
  assert.match(await proposed.innerText(), /mcpServers\.stub\.call_timeout[\s\S]*42s[\s\S]*tools_limit[\s\S]*- 8[\s\S]*\+ 12/);
  await page.getByRole('button', { name: 'Write and apply' }).click();
  await until(() => configured().tools_limit === 12, () => written());
  const { mcpServers: { stub }, output_validation: judged } = configured();
  assert.deepEqual([stub.call_timeout, stub.disabled_tools, stub.args, judged], ['42s', ['number_*', 'never'], ['stdio'], { mode: 'strict', assert_formats: true }]);
  await form.waitFor({ state: 'hidden' });
  await page.locator('#difference').getByText('The config is in force.').waitFor();
  await page.getByRole('button', { name: 'Change settings' }).click();
  await setting('tools_limit').fill('');
  await show.click();
  await page.getByRole('button', { name: 'Write and apply' }).click();
  await until(() => configured().tools_limit === undefined, () => written());
  await form.waitFor({ state: 'hidden' });
  configure({ tools_limit: 8 });
  await page.getByRole('button', { name: 'Reload' }).click();
  await until(async () => /"tools_limit": 8/.test(await standing.innerText()), () => standing.innerText());

  step('the log is verified');
  await page.getByRole('button', { name: 'Verify the log' }).click();
  await page.getByText('The log is intact.').waitFor();
  await page.getByRole('link', { name: 'Changes of the config' }).click();
  await page.locator('#rows li').nth(1).waitFor();
  assert.match(await page.locator('#rows li').first().innerText(), /config\s+removed mcpServers\.stub\.call_timeout.*added tools_limit/, 'the row says what was changed');
  // The last change was triggered by the file or by the button, whichever was first.
  await page.locator('#rows li').filter({ hasText: 'removed tools_limit' }).first().locator('a').first().click();
  await page.locator('#record').getByText('tools_limit').first().waitFor();
  assert.match(await page.locator('#record').innerText(), /admin/);
}
