// How it is now: tiles, servers, faults, and plots that zoom and lead to records.

import assert from 'node:assert/strict';

import { count, go, keepsFocus, shot, sound, step, until, visit } from '../checks.mjs';
import { call } from '../proxy.mjs';
import { LONG_NAME } from '../talker.mjs';

const STEPS = 13; // of the last hour

export async function look({ page }) {
  const place = () => new URLSearchParams(new URL(page.url()).hash.split('?')[1]);
  const table = page.locator('#plot-table');
  /** Follows a link of this view to records that all fit, and comes back. */
  const leads = async (it, address, fits = /./) => {
    await it.click();
    await page.locator('#rows li').first().waitFor();
    assert.match(page.url(), address);
    await until(async () => (await page.locator('#rows li').allInnerTexts()).every((row) => fits.test(row)), () => page.locator('#rows').innerText());
    await page.goBack();
    await page.locator('#outcomes rect.bar').first().waitFor();
  };
  await visit(page, 'now');
  await page.locator('#outcomes rect.bar.success').first().waitFor();
  await page.locator('#view-now').getByRole('link', { name: LONG_NAME }).waitFor();
  await sound(page, 'now');

  step('what is wrong is said, and leads to where it is mended');
  await page.locator('#faults').getByRole('link', { name: 'absent' }).click();
  await page.locator('#servers > li[data-name=absent]').waitFor();
  await page.goBack();

  step('counts lead to records');
  const tile = (name) => page.locator('#now-tiles .tile', { has: page.getByText(name, { exact: true }) });
  await tile('calls a second').locator('polyline').waitFor({ state: 'attached' });
  for (let at = 0; at < 5; at += 1) await call('read', 'stub:error', {}, 'to be seen in the rate');
  await until(async () => /[1-9]/.test(await tile('errors, last minute').locator('b').innerText()), () => tile('errors, last minute').innerText());
  await leads(tile('calls a second').getByRole('link'), /#activity\?range=15m$/);
  await leads(tile('errors, last minute').getByRole('link'), /range=15m&status=error$/, /error/);
  await leads(tile('refused, last minute').getByRole('link'), /range=15m&status=blocked%2Crejected$/, /blocked|rejected/);
  await tile('wait for approval').getByRole('link').click();
  await page.getByText('No call waits for approval.').waitFor();
  await page.goBack();
  const [high, wide] = await tile('p99').locator('b').evaluate((it) => [it.offsetHeight / Number.parseFloat(getComputedStyle(it).lineHeight), it.scrollWidth - it.clientWidth]);
  assert.ok(high < 1.5 && wide <= 0, `a number and its unit stand in one line: ${high}, ${wide}`);
  await leads(page.locator('#now-servers tr', { hasText: 'stub' }).getByRole('link').nth(2), /server=stub&status=error$/, /error/);
  await leads(page.locator('#sums .tile', { hasText: 'rejected' }).getByRole('link'), /status=rejected$/, /rejected/);

  step('outcomes and latencies over time, by status and intent');
  for (const status of ['error', 'blocked', 'rejected']) {
    await page.locator(`#outcomes rect.bar.${status}`).first().waitFor({ state: 'attached' });
  }
  await page.locator('#latencies .p99').first().waitFor({ state: 'attached' });
  for (const name of ['p50', 'p99']) {
    const colours = await Promise.all([`#curves .${name}`, `#latencies .${name}`].map((it) => page.locator(it).first().evaluate((one) => getComputedStyle(one).color)));
    assert.equal(colours[0], colours[1], `the legend says which curve ${name} is`);
  }
  await page.getByRole('figure', { name: 'How long they took' }).waitFor();
  await page.locator('#past-form [name=period]').selectOption('1h');
  await count(page, '#outcomes g', STEPS);
  await leads(page.locator('#legend').getByRole('link', { name: 'blocked' }), /type=tool_call&from=.*&to=.*&status=blocked$/, /blocked/);
  await page.getByText('As a table').click();
  await page.locator('#past-form [name=by]').selectOption('intent');
  await page.locator('#outcomes rect.bar.destructive').first().waitFor();
  await until(async () => /destructive/.test(await table.innerText()), () => table.innerText());
  await sound(page, 'now-plots');
  await leads(table.getByRole('row').last().getByRole('link').last(), /type=tool_call&intent_type=(write|destructive|read)&from=/);
  await leads(page.getByRole('link', { name: 'Records of this time' }), /type=tool_call&from=[^&]+&to=[^&]+$/);
  await leads(page.locator('.tops').first().getByRole('link', { name: 'stub' }), /type=tool_call&server=stub$/, /stub:/);
  await leads(page.locator('.tops').last().getByRole('link', { name: LONG_NAME }), /server=chatty&tool=read_a_name/, /a_name_that_is_rather_long/);

  step('the focus stays where it is while the page looks again');
  const asks = ['status', 'servers', 'activity/summary'];
  const another = () => call('read', 'stub:error', {}, 'changes what is counted');
  for (const it of [
    tile('errors, last minute').getByRole('link'), page.locator('#now-servers').getByRole('link', { name: 'stub' }),
    page.locator('#now-servers').getByRole('region'), page.locator('#sums').getByRole('link').first(), page.locator('#legend').getByRole('link').first(),
    page.getByRole('button', { name: 'Zoom in' }), table.getByRole('link').first(), page.locator('.tops').first().getByRole('link').first(),
  ]) await keepsFocus(page, it, asks, another);
  await until(async () => { // and what has the focus is not left behind
    const [all, errors] = await Promise.all(['Calls', 'Errors'].map(async (head) => {
      const at = await page.locator('#now-servers th').allInnerTexts().then((heads) => heads.indexOf(head));
      return Number(await page.locator('#now-servers tr', { hasText: 'stub' }).locator('th, td').nth(at).innerText());
    }));
    return errors > 16 && all > errors;
  }, () => page.locator('#now-servers').innerText());

  step('a plot is zoomed by dragging, and the zoom stands in the address');
  for (const name of ['outcomes', 'latencies']) {
    const plot = page.locator(`#${name}`);
    await plot.evaluate((it) => it.scrollIntoView({ block: 'center' }));
    const box = await plot.boundingBox();
    await page.mouse.move(box.x + box.width * 0.6, box.y + 60);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.98, box.y + 60, { steps: 5 });
    await page.mouse.up();
    await until(async () => await page.locator(`#${name} g`).count() < STEPS, () => page.url());
    assert.match(page.url(), /from=.*to=/);
    assert.equal(await page.locator('#outcomes g').count(), await page.locator('#latencies g').count(), 'both plots show the same time');
    await page.reload();
    await until(async () => {
      const steps = await page.locator('#outcomes g').count();
      return steps > 0 && steps < STEPS;
    }, () => page.url());
    await page.getByRole('button', { name: 'All of the period' }).click();
    await count(page, '#outcomes g', STEPS);
    assert.ok(!place().has('from'), page.url());
  }

  step('buttons zoom and move, and keep the focus');
  const press = async (name) => {
    const before = [place().get('from'), place().get('to')].map(Date.parse);
    const pressed = page.getByRole('button', { name, exact: true });
    await pressed.focus();
    await page.keyboard.press('Enter');
    await until(async () => `${before}` !== `${[place().get('from'), place().get('to')].map(Date.parse)}`, () => `${name}: ${page.url()}`);
    assert.ok(await pressed.evaluate((it) => it === document.activeElement), `${name} keeps the focus`);
    const after = [place().get('from'), place().get('to')].map(Date.parse);
    return { moved: after[0] - before[0], span: after[1] - after[0], was: before[1] - before[0] };
  };
  assert.equal(await page.getByRole('button', { name: 'Zoom out' }).getAttribute('aria-disabled'), 'true');
  await press('Zoom in');
  await until(async () => await page.locator('#outcomes g').count() < STEPS, () => page.url());
  const nearer = await press('Zoom in');
  assert.ok(nearer.span < nearer.was, JSON.stringify(nearer));
  const earlier = await press('Earlier');
  assert.ok(earlier.moved < 0 && earlier.span === earlier.was, JSON.stringify(earlier));
  const later = await press('Later');
  assert.ok(later.moved > 0 && later.span === later.was, JSON.stringify(later));
  const farther = await press('Zoom out');
  assert.ok(farther.span > farther.was, JSON.stringify(farther));
  await shot(page, 'zoomed');
  await press('All of the period');
  await count(page, '#outcomes g', STEPS);

  step('a click on a step shows its records');
  for (const name of ['outcomes', 'latencies']) {
    const plot = page.locator(`#${name}`);
    await plot.evaluate((it) => it.scrollIntoView({ block: 'center' }));
    const drawn = await plot.boundingBox();
    await page.mouse.click(drawn.x + drawn.width - 12, drawn.y + 60);
    await page.locator('#rows li').first().waitFor();
    assert.match(page.url(), /#activity\?type=tool_call&from=/);
    await page.goBack();
    await count(page, '#outcomes g', STEPS);
  }
  await go(page, '#now');
}
