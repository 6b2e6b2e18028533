// The config: shown without secrets, compared with its file, read again, refused; and the log.

import assert from 'node:assert/strict';

import { sound, step, until, visit } from '../checks.mjs';
import { KEY, configure } from '../proxy.mjs';

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

  step('the log is verified');
  await page.getByRole('button', { name: 'Verify the log' }).click();
  await page.getByText('The log is as it was written.').waitFor();
  await page.getByRole('link', { name: 'Changes of the config' }).click();
  await page.locator('#rows li').nth(1).waitFor();
}
