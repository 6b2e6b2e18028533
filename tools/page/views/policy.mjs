// Policy view: rules in force, explanation of a call, and replay of the log.

import assert from 'node:assert/strict';

import { count, go, sound, step, until, visit } from '../checks.mjs';

const DAY_MS = 86_400_000;

export async function look({ page, wrong }) {
  step('the rules in force are shown with their text');
  await visit(page, 'policy');
  const rule = page.locator('#rules > li', { hasText: 'ci-reads-no-records' });
  await rule.waitFor();
  assert.match(await rule.innerText(), /ask the operators[\s\S]*rules\.cedar:1/);
  await rule.getByText('forbid(principal').waitFor();

  await page.locator('#rule-faults').getByText('the rule can never match').waitFor();
  await rule.getByRole('link', { name: 'Its decisions' }).click();
  await until(async () => await page.locator('#filters [name=q]').inputValue() === 'ci-reads-no-records', () => page.url());
  await page.goBack();

  step('a long list of rules has a search field');
  await page.route('**/api/v1/policy', async (route) => {
    const response = await route.fetch();
    const { data, ...rest } = await response.json();
    const many = Array.from({ length: 9 }, (_, at) => ({ ...data.rules[0], rule: `rule-${at}` }));
    await route.fulfill({ response, json: { ...rest, data: { ...data, rules: [...data.rules, ...many] } } });
  });
  await visit(page, 'now');
  await visit(page, 'policy');
  await count(page, '#rules > li', 12);
  await page.keyboard.press('/');
  await page.keyboard.type('INTERNS');
  await count(page, '#rules > li', 1);
  await page.getByText('1 of 12 rules').waitFor();
  await page.unroute('**/api/v1/policy');
  await page.reload();
  await count(page, '#rules > li', 3);

  step('links focus the sections of the view');
  for (const [words, place] of [['Replay the log', 'policy-replay'], ['Explain a call', 'policy-explain']]) {
    await page.getByRole('link', { name: words }).click();
    await until(() => page.evaluate((id) => document.activeElement.id === id, place), () => page.url());
  }

  step('the decision about a call is explained');
  await page.locator('#principal-names option[value=admin]').waitFor({ state: 'attached' });
  await page.locator('#explain-form [name=principal]').fill('token:ci');
  await page.locator('#explain-form [name=tool]').fill('stub:records');
  await page.getByRole('button', { name: 'Explain' }).click();
  await page.getByText('The rules refuse it').waitFor();
  assert.match(await page.locator('#explained').innerText(), /ci-reads-no-records[\s\S]*holds/);
  await sound(page, 'policy');
  await page.locator('#explain-form [name=principal]').fill('admin');
  await page.locator('#explain-form [name=principal]').press('Enter');
  await page.getByText('The rules allow it').waitFor();

  step('groups, operation, sensitivity and arguments are passed to the rules');
  const field = (name) => page.locator('#explain-form label', { hasText: new RegExp(`^${name}\\b`) }).locator('input, select, textarea');
  await field('Groups').fill('interns, night shift');
  await field('Sensitivity').selectOption('private');
  await field('Operation').selectOption('write');
  await field('Arguments').fill('{"size": 3}');
  const [asks] = await Promise.all([page.waitForRequest('**/api/v1/policy/explain'), page.getByRole('button', { name: 'Explain' }).click()]);
  assert.deepEqual(asks.postDataJSON(), {
    principal: 'admin', tool: 'stub:records', args: { size: 3 }, groups: ['interns', 'night shift'], action: 'write', sensitivity: 'private',
  });
  await page.getByText('The rules refuse it').waitFor();
  assert.match(await page.locator('#explained').innerText(), /interns-write-nothing-private[\s\S]*holds[\s\S]*data_sensitivity\s+"?private/);
  await field('Groups').fill('');
  await page.getByRole('button', { name: 'Explain' }).click();
  await page.getByText('The rules allow it').waitFor();
  await field('Sensitivity').selectOption('');
  await field('Operation').selectOption('');

  step('invalid arguments and unknown tools are reported');
  await page.locator('#explain-form [name=args]').fill('{');
  await page.getByRole('button', { name: 'Explain' }).click();
  await page.getByText('The arguments are not JSON').waitFor();
  await page.locator('#explain-form [name=args]').fill('{}');
  await page.locator('#explain-form [name=tool]').fill('stub:nothing');
  await page.getByRole('button', { name: 'Explain' }).click();
  await page.getByText("Tool 'stub:nothing' not found").waitFor();
  wrong.expected(/404/);

  step('proposed rules are replayed on the calls in the log');
  await page.getByRole('button', { name: 'Insert the rules in force' }).click();
  assert.match(await page.locator('#replay-form [name=rules]').inputValue(), /ci-reads-no-records[\s\S]*nobody-reads-etc/);
  await page.locator('#replay-form [name=rules]').fill('@id("nobody-reads") forbid(principal, action == Action::"read", resource);');
  await page.getByRole('button', { name: 'Replay' }).click();
  await page.getByText(/newly refused, \d+ newly allowed/).waitFor();
  await page.locator('#replay-rows', { hasText: 'nobody-reads' }).waitFor();
  await until(() => page.evaluate(() => document.activeElement.id === 'replayed' && document.activeElement.getBoundingClientRect().top < innerHeight), () => 'the result is not visible or does not have the focus');
  await sound(page, 'policy-replay');
  await page.locator('#replay-rows tbody .num a').first().click();
  await until(() => /#activity\?type=tool_call&server=\w+&tool=\w+&principal=/.test(page.url()), () => page.url());
  await page.locator('#rows li').first().waitFor();
  await go(page, '#policy');

  step('refusals due to evaluation errors are counted with the reason');
  await page.locator('#replay-form [name=rules]').fill('@id("errs") forbid(principal, action == Action::"read", resource == Tool::"stub:records") when { context.args has size && context.args.size * 9223372036854775807 > 0 };');
  await page.getByRole('button', { name: 'Replay' }).click();
  await page.locator('#replayed', { hasText: 'of the newly refused because a rule cannot be evaluated:' }).getByText(/^rule 'errs': .*\(\d+\)$/).waitFor();

  step('the period of a replay is selected');
  for (const [words, days] of [['the last 7 days', 7], ['the last 30 days', 30], ['the whole log', undefined], ['the last day', 1]]) {
    await page.locator('#replay-form label', { hasText: /^Period/ }).getByRole('combobox').selectOption(words);
    const [asking] = await Promise.all([page.waitForRequest('**/api/v1/policy/replay'), page.getByRole('button', { name: 'Replay' }).click()]);
    const { start_time: from } = asking.postDataJSON();
    const back = from && Math.round((Date.now() - Date.parse(from)) / DAY_MS);
    assert.equal(back, days, words);
    await page.getByRole('button', { name: 'Stop' }).waitFor({ state: 'hidden' });
  }

  step('a running replay is stopped, and invalid rules are reported');
  const asked = [];
  let first;
  let release;
  const held = new Promise((done) => { release = done; });
  await page.route('**/api/v1/policy/replay', async (route) => {
    asked.push(route.request().postDataJSON().cursor);
    if (asked.length > 1) {
      await held;
      await route.fulfill({ json: { ...first, data: { ...first.data, total: { ...first.data.total, newly_refused: 4711 } } } });
      return;
    }
    // The log of this test has only one page; the first response claims that there is another.
    const response = await route.fetch();
    first = await response.json();
    await route.fulfill({ response, json: { ...first, data: { ...first.data, next_cursor: 'more' } } });
  });
  await page.getByRole('button', { name: 'Replay' }).click();
  await page.getByText('records so far…').waitFor();
  await until(() => asked.length === 2, () => `${asked}`);
  await page.getByRole('button', { name: 'Stop' }).click();
  assert.equal(await page.getByRole('button', { name: 'Stop' }).isVisible(), false);
  const stopped = await page.locator('#replayed').innerText();
  const late = page.waitForResponse('**/api/v1/policy/replay');
  release();
  await (await late).finished();
  await page.evaluate(() => new Promise((done) => { setTimeout(done, 200); })); // time for the page to render the response
  await page.unroute('**/api/v1/policy/replay');
  assert.deepEqual(asked, [undefined, 'more'], 'no further page is requested');
  assert.equal(await page.locator('#replayed').innerText(), stopped, 'the partial result stays');
  await page.locator('#replay-form [name=rules]').fill('forbid(');
  await page.getByRole('button', { name: 'Replay' }).click();
  await page.locator('#replayed .wrong', { hasText: 'rules:1' }).waitFor();
  wrong.expected(/400/);

  step('the view links to the decisions in the log');
  await page.getByRole('link', { name: 'What was decided' }).click();
  await until(async () => {
    const rows = await page.locator('#rows li').allInnerTexts();
    return rows.length > 0 && rows.every((row) => row.includes('decision'));
  }, () => page.locator('#rows').innerText());
  assert.match(page.url(), /#activity\?type=policy_decision$/);
}
