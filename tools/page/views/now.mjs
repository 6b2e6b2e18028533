// Overview: faults, tiles, and plots with zoom and links to records.

import assert from 'node:assert/strict';

import { DESK, PHONE, count, drawn, go, keepsFocus, refresh, sound, step, until, visit } from '../checks.mjs';
import { base, call, configure, rest } from '../proxy.mjs';
import { LONG_NAME } from '../talker.mjs';

const STEPS = 13; // time steps of the last hour

export async function look({ page }) {
  const place = () => new URLSearchParams(new URL(page.url()).hash.split('?')[1]);
  const table = page.locator('#plot-table');
  /** Follows a link to the activity view, checks that all records match, and returns. */
  const leads = async (it, address, fits = /./) => {
    await it.click();
    await page.locator('#rows li').first().waitFor();
    assert.match(page.url(), address);
    await until(async () => (await page.locator('#rows li').allInnerTexts()).every((row) => fits.test(row)), () => page.locator('#rows').innerText());
    await page.goBack();
    await page.locator('#outcomes rect.bar').first().waitFor();
  };
  const period = page.locator('#past-form [name=period]');
  const bars = page.locator('#outcomes g');
  const tile = (name) => page.locator('#now-tiles .tile', { has: page.locator('.name', { hasText: new RegExp(`^${name}$`) }) });
  const value = (name) => tile(name).locator('b').innerText();

  step('the URL without a fragment opens the overview, its period fits the data, and its selects work');
  await page.goto(`${base}/ui/`);
  await count(page, '#outcomes g', STEPS);
  assert.equal(await period.inputValue(), '1h', 'all calls were made in the last hour');
  await period.selectOption('7d');
  await until(async () => (await bars.count()) > STEPS, () => page.url());
  assert.equal(place().get('period'), '7d');
  await page.locator('#past-form [name=by]').selectOption('intent');
  await page.locator('#outcomes rect.bar.destructive').first().waitFor({ state: 'attached' });
  assert.deepEqual([place().get('period'), place().get('by'), await period.inputValue()], ['7d', 'intent', '7d']);
  await page.goto(`${base}/ui/#?period=1h`);
  await count(page, '#outcomes g', STEPS);
  assert.equal(await period.inputValue(), '1h');
  await page.goto(`${base}/ui/#overview?period=7d`);
  await until(async () => (await bars.count()) > STEPS, () => page.url());
  assert.equal(await period.inputValue(), '7d');
  await page.goto(`${base}/ui/#?period=24h`);
  await until(async () => (await bars.count()) > STEPS, () => page.url());

  await visit(page, 'now');
  await page.locator('#outcomes rect.bar.success').first().waitFor();
  await page.locator('#view-now').getByRole('link', { name: LONG_NAME }).waitFor();
  await sound(page, 'now');

  step('faults are listed and link to their details');
  await page.locator('#faults').getByRole('link', { name: 'absent' }).click();
  await page.locator('#server').getByText(/no-such-program/).first().waitFor();
  await page.goBack();
  configure('{ "tools_limit": 0 }');
  await rest('POST', 'config/reload');
  await page.locator('#faults').getByRole('link', { name: 'config' }).click();
  await page.locator('[data-faults=config] + .fault').getByText('tools_limit').waitFor();
  await until(() => page.evaluate(() => document.activeElement.id === 'settings-config'), () => page.evaluate(() => document.activeElement.outerHTML.slice(0, 200)));
  configure();
  await rest('POST', 'config/reload');
  await page.goBack();

  step('tiles show correct counts and link to their records');
  for (let at = 0; at < 5; at += 1) await call('read', 'stub:error', {}, 'to be seen in the rate');
  await refresh(page, 'status', 'activity/summary');
  const { data: summary } = await rest('GET', 'activity/summary?period=1h');
  assert.ok(summary.rejected_count > 0 && summary.blocked_count > 0, JSON.stringify(summary));
  await until(async () => await value('Refused') === String(summary.rejected_count + summary.blocked_count), () => tile('Refused').innerText());
  assert.match(await tile('Refused').innerText(), new RegExp(`${summary.rejected_count} not sent, ${summary.blocked_count} answers? blocked`));
  await until(async () => await value('Errors') === String(summary.error_count), () => tile('Errors').innerText());
  assert.equal(await value('Calls'), String(summary.total_count));
  await tile('Calls per second').locator('polyline').waitFor({ state: 'attached' });
  for (const name of ['Calls', 'Errors', 'Refused']) await tile(name).locator('polyline').waitFor({ state: 'attached' });
  await leads(tile('Calls per second'), /#activity\?range=15m$/);
  await leads(tile('Errors'), /type=tool_call&from=.*&status=error$/, /error/);
  await leads(tile('Refused'), /type=tool_call&from=.*&status=blocked%2Crejected$/, /blocked|rejected/);
  await tile('Waiting for approval').click();
  await page.getByText('No call waits for approval.').waitFor();
  await page.goBack();
  await tile('Duration').waitFor();
  await leads(tile('Duration'), /type=tool_call&from=.*&min_duration_ms=\d+$/);
  assert.match(await page.locator('#filters [name=min_duration_ms]').inputValue(), /^\d+$/);
  for (const it of await page.locator('#now-tiles .tile').all()) {
    const [high, wide, line] = await it.locator('b').evaluate((one) => [one.offsetHeight / Number.parseFloat(getComputedStyle(one).lineHeight), one.scrollWidth - one.clientWidth, getComputedStyle(one).textDecorationLine + getComputedStyle(one.parentElement).textDecorationLine]);
    assert.ok(high < 1.5 && wide <= 0, `a number and its unit are on one line: ${high}, ${wide}`);
    assert.equal(line, 'nonenone', 'no number is underlined');
  }

  step('the latest failures are listed and link to their records');
  const failures = page.locator('#failures');
  await until(async () => (await failures.locator('li').allInnerTexts()).length === 5 && /to be seen in the rate/.test(await failures.innerText()), () => failures.innerText());
  await leads(failures.getByRole('link', { name: 'All errors and refusals' }), /type=tool_call&status=error%2Cblocked%2Crejected&from=/, /error|blocked|rejected/);
  await failures.locator('li a').first().click();
  await page.locator('#record').getByText('Verdict').waitFor();
  await page.goBack();

  step('the overview takes at most three screens on a phone, even with long lists');
  const many = Array.from({ length: 10 }, (_, at) => ({ name: `server-${at}:tool`, count: 10 - at }));
  await page.route(/activity\/summary/, async (route) => {
    const response = await route.fetch();
    const { data, ...more } = await response.json();
    await route.fulfill({ response, json: { ...more, data: { ...data, top_servers: many, top_tools: many } } });
  });
  await page.route(/api\/v1\/status/, async (route) => {
    const response = await route.fetch();
    const { data, ...more } = await response.json();
    const faults = Array.from({ length: 9 }, (_, at) => ({ part: 'server', server: `server-${at}`, cause: 'it does not answer, and that is told in many words' }));
    await route.fulfill({ response, json: { ...more, data: { ...data, faults } } });
  });
  await page.setViewportSize(PHONE);
  await refresh(page, 'status', 'activity/summary');
  await page.getByRole('link', { name: 'All of them' }).last().waitFor();
  const long = await page.evaluate(() => document.documentElement.scrollHeight);
  assert.ok(long <= 3 * PHONE.height, `${long / PHONE.height} screens`);
  await page.setViewportSize(DESK);
  for (const path of [/activity\/summary/, /api\/v1\/status/]) await page.unroute(path);
  await refresh(page, 'status', 'activity/summary');

  step('plots and their table show outcomes by status and intent, and latencies');
  for (const status of ['error', 'blocked', 'rejected']) {
    await page.locator(`#outcomes rect.bar.${status}`).first().waitFor({ state: 'attached' });
  }
  await page.locator('#latencies .p99').first().waitFor({ state: 'attached' });
  for (const name of ['p50', 'p99']) {
    // One evaluation, because the view is redrawn periodically.
    const colours = await page.evaluate((kind) => ['#curves', '#latencies'].map((it) => getComputedStyle(document.querySelector(`${it} ${kind}`)).color), `.${name}`);
    assert.equal(colours[0], colours[1], `the legend has the color of the curve ${name}`);
  }
  await page.getByRole('figure', { name: 'Call durations' }).waitFor();
  await period.selectOption('1h');
  await count(page, '#outcomes g', STEPS);
  await leads(page.locator('#legend').getByRole('link', { name: 'blocked' }), /type=tool_call&from=.*&to=.*&status=blocked$/, /blocked/);
  await page.getByText('As a table').click();
  await page.locator('#past-form [name=by]').selectOption('intent');
  await page.locator('#outcomes rect.bar.destructive').first().waitFor();
  await until(async () => /destructive/.test(await table.innerText()), () => table.innerText());
  await sound(page, 'now-plots');
  await leads(table.getByRole('row').last().getByRole('link').last(), /type=tool_call&intent_type=(write|destructive|read)&from=/);
  await leads(page.getByRole('link', { name: 'Records of this time' }), /type=tool_call&from=[^&]+&to=[^&]+$/);
  await leads(page.locator('#view-now .tops').first().getByRole('link', { name: 'stub' }), /type=tool_call&server=stub$/, /stub:/);
  await leads(page.locator('#view-now .tops').last().getByRole('link', { name: LONG_NAME }), /server=chatty&tool=read_a_name/, /a_name_that_is_rather_long/);

  step('a refresh keeps the focus');
  const asks = ['status', 'activity/summary'];
  const another = () => call('read', 'stub:error', {}, 'changes what is counted');
  for (const it of [
    tile('Errors'), page.locator('#legend').getByRole('link').first(), page.locator('#now-about').getByRole('link'),
    page.getByRole('button', { name: 'Zoom in' }), table.getByRole('link').first(), page.locator('#view-now .tops').first().getByRole('link').first(),
  ]) await keepsFocus(page, it, asks, another);
  const failed = (await rest('GET', 'activity/summary?period=1h')).data.error_count;
  await until(async () => await value('Errors') === String(failed), () => tile('Errors').innerText()); // the focused tile is updated, too

  step('dragging zooms a plot, and the zoom is in the URL');
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
    assert.match(await page.locator('#zoom').innerText(), /\d\d:\d\d to \d\d:\d\d|\d\d:\d\d:\d\d to /, 'the range is shown');
    assert.equal(await page.locator('#outcomes g').count(), await page.locator('#latencies g').count(), 'both plots show the same time range');
    await page.reload();
    await until(async () => {
      const steps = await page.locator('#outcomes g').count();
      return steps > 0 && steps < STEPS;
    }, () => page.url());
    await page.getByRole('button', { name: 'All of the period' }).click();
    await count(page, '#outcomes g', STEPS);
    assert.ok(!place().has('from'), page.url());
  }

  step('buttons zoom and pan the plots and keep the focus');
  const press = async (name) => {
    const before = [place().get('from'), place().get('to')].map(Date.parse);
    const pressed = page.getByRole('button', { name, exact: true });
    await pressed.focus();
    const [came] = await Promise.all([page.waitForResponse(/activity\/summary\?/), page.keyboard.press('Enter')]);
    await came.finished();
    await drawn(page); // the next click applies to the rendered data
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
  await sound(page, 'zoomed');
  await press('All of the period');
  await count(page, '#outcomes g', STEPS);

  step('a zoom into a long period has smaller time steps');
  const now = Date.now();
  for (const [hours, steps] of [[1, 12], [4, 8]]) {
    const [from, to] = [hours, 0].map((back) => new Date(Math.floor(now / 1_800_000) * 1_800_000 - back * 3_600_000).toISOString());
    await go(page, `#now?period=7d&from=${from}&to=${to}`);
    await until(async () => [steps, steps + 1].includes(await page.locator('#outcomes g').count()), () => page.locator('#outcomes g').count());
  }
  await go(page, '#now?period=1h');
  await count(page, '#outcomes g', STEPS);

  step('a time step shows its values on hover, and a click opens its records');
  for (const name of ['outcomes', 'latencies']) {
    const plot = page.locator(`#${name}`);
    await plot.evaluate((it) => it.scrollIntoView({ block: 'center' }));
    const drawn = await plot.boundingBox();
    await page.mouse.move(drawn.x + drawn.width - 12, drawn.y + 60);
    await page.locator('#plot-hint').getByText(/^\S+: .*\d, p50 .*, p99 /).waitFor(); // of both plots at once
    await page.mouse.move(drawn.x + drawn.width - 12, drawn.y - 60);
    await page.locator('#plot-hint').getByText('Drag over a plot').waitFor();
    await page.mouse.click(drawn.x + drawn.width - 12, drawn.y + 60);
    await page.locator('#rows li').first().waitFor();
    assert.match(page.url(), /#activity\?type=tool_call&from=/);
    await page.goBack();
    await count(page, '#outcomes g', STEPS);
  }
  await go(page, '#now');
}
