// The fleet: the living nodes, the position of each, and a dead node.

import assert from 'node:assert/strict';

import { copies, count, go, keepsFocus, sound, step, until, visit } from '../checks.mjs';
import { node } from '../proxy.mjs';

export async function look({ page }) {
  step('this node and another one live');
  const rows = page.locator('#fleet-nodes tbody tr');
  const other = await node('other');
  try {
    await visit(page, 'fleet');
    await until(async () => {
      await visit(page, 'now');
      await visit(page, 'fleet');
      return await rows.count() === 2 && /living/i.test(await rows.first().innerText());
    }, () => page.locator('#view-fleet').innerText());
    await count(page, '#fleet-faults li', 0);
    await sound(page, 'fleet');
    assert.match(await page.locator('#fleet-nodes tbody').innerText(), /its own/);
    assert.ok(!/false/.test(await page.locator('#view-fleet').innerText()), 'no word of a config file stands for what it means');
    await keepsFocus(page, page.getByRole('region', { name: 'Nodes of the fleet' }), ['fleet']);
    await copies(page, page.locator('#view-fleet'), 'Copy mcpproxy activity verify --store URL', 'mcpproxy activity verify --store URL');

    step('records of a single node are shown');
    await go(page, '#activity?node=other');
    const listed = page.locator('#rows a');
    await until(async () => await listed.count() > 0, () => page.locator('#view-activity').innerText());
    assert.equal(await page.getByLabel('Node', { exact: true }).inputValue(), 'other');
    assert.ok(await page.locator('#lacking').isHidden(), await page.locator('#lacking').innerText());
    await listed.first().click();
    await page.locator('#record dd', { hasText: /^other its other records/ }).waitFor();
    await sound(page, 'activity-node');

    step('a node that was killed is found gone');
    other.kill('SIGKILL');
    await until(async () => {
      await visit(page, 'now');
      await visit(page, 'fleet');
      return /silent/i.test(await rows.first().innerText());
    }, () => page.locator('#view-fleet').innerText());
    await sound(page, 'fleet-gone');

    step('what only a dead node has is told as missing');
    await go(page, '#activity');
    await page.locator('#lacking').getByText('Records of other are incomplete').waitFor();
  } finally {
    other.kill('SIGKILL');
  }
}
