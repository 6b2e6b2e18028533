// How it is now: tiles, servers, faults, and plots that zoom and lead to records.

import assert from 'node:assert/strict';

import { count, shot, sound, step, until, visit } from '../checks.mjs';
import { call } from '../proxy.mjs';

export async function look({ page }) {
  await visit(page, 'now');
  await page.locator('#outcomes rect.bar.success').first().waitFor();
  await sound(page, 'now');

  step('what is wrong is said, and counts lead to records');
  await page.locator('#faults').getByText('absent').waitFor();
  const tile = (name) => page.locator('#now-tiles .tile', { hasText: name });
  await tile('calls a second').locator('polyline').waitFor({ state: 'attached' });
  for (let at = 0; at < 5; at += 1) await call('read', 'stub:error', {}, 'to be seen in the rate');
  await until(async () => /[1-9]/.test(await tile('errors, last minute').locator('b').innerText()), () => tile('errors, last minute').innerText());
  await page.locator('#now-servers tr', { hasText: 'stub' }).getByRole('link').nth(2).click();
  await page.locator('#rows li').first().waitFor();
  assert.match(page.url(), /server=stub&status=error/);
  await page.goBack();

  step('outcomes and latencies over time, by status and intent');
  for (const status of ['error', 'blocked', 'rejected']) {
    await page.locator(`#outcomes rect.bar.${status}`).first().waitFor({ state: 'attached' });
  }
  await page.locator('#latencies .p99').first().waitFor({ state: 'attached' });
  await page.locator('#past-form [name=period]').selectOption('1h');
  await count(page, '#outcomes g', 13);
  await page.getByText('As a table').click();
  await page.locator('#past-form [name=by]').selectOption('intent');
  await page.locator('#outcomes rect.bar.destructive').first().waitFor();
  await until(async () => /destructive/.test(await page.locator('#plot-table').innerText()), () => page.locator('#plot-table').innerText());
  await sound(page, 'now-plots');

  step('a plot is zoomed by dragging and by buttons, and the zoom stands in the address');
  const plot = page.locator('#outcomes');
  await plot.evaluate((it) => it.scrollIntoView({ block: 'center' }));
  const box = await plot.boundingBox();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.98, box.y + 60, { steps: 5 });
  await page.mouse.up();
  await until(async () => await page.locator('#outcomes g').count() < 13, () => page.url());
  assert.match(page.url(), /from=.*to=/);
  await page.reload();
  await until(async () => {
    const steps = await page.locator('#outcomes g').count();
    return steps > 0 && steps < 13;
  }, () => page.url());
  await page.getByRole('button', { name: 'All of the period' }).click();
  await count(page, '#outcomes g', 13);
  await page.getByRole('button', { name: 'Zoom in' }).click();
  await until(async () => await page.locator('#outcomes g').count() < 13, () => page.url());
  await page.getByRole('button', { name: 'Later' }).click();
  await page.getByRole('button', { name: 'Earlier' }).click();
  await page.getByRole('button', { name: 'Zoom out' }).click();
  await count(page, '#outcomes g', 13);
  await shot(page, 'zoomed');

  step('a click on a step shows its records');
  await plot.evaluate((it) => it.scrollIntoView({ block: 'center' }));
  const drawn = await plot.boundingBox();
  await page.mouse.click(drawn.x + drawn.width - 12, drawn.y + 60);
  await page.locator('#rows li').first().waitFor();
  assert.match(page.url(), /#activity\?type=tool_call&from=/);
  await visit(page, 'now');
}
