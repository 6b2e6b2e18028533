// Fleet view: living nodes with their positions, and a dead node.

import assert from 'node:assert/strict';

import { copies, count, go, keepsFocus, sound, step, until, visit } from '../checks.mjs';
import { node } from '../proxy.mjs';

export async function look({ page }) {
  step('a second node is listed as living');
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
    assert.ok(!/false/.test(await page.locator('#view-fleet').innerText()), 'no boolean of the config is shown verbatim');
    await keepsFocus(page, page.getByRole('region', { name: 'Nodes of the fleet' }), ['fleet']);
    await copies(page, page.locator('#view-fleet'), 'Copy mcpproxy activity verify --store URL', 'mcpproxy activity verify --store URL');

    step('nodes are sorted, searched and pinged, and link to their records');
    const names = () => page.locator('#fleet-nodes tbody th bdi').allInnerTexts();
    await page.locator('#fleet-nodes thead').getByRole('button', { name: 'In the store' }).click();
    await until(async () => `${await names()}` === 'page,other', names);
    assert.match(page.url(), /#fleet\?sort=In\+the\+store$/);
    await page.locator('#fleet-form [name=state]').selectOption('silent');
    await page.getByText('No node matches.').waitFor();
    await page.getByRole('link', { name: 'Show all nodes' }).click();
    await until(async () => `${await names()}` === 'other,page', names);
    await page.getByRole('button', { name: 'Ping the nodes' }).click();
    await rows.first().getByText('answers').waitFor();
    assert.ok(!/answers/.test(await rows.last().innerText()), 'this node does not ping itself');
    await copies(page, page.locator('#view-fleet'), 'Copy id of the fleet', /^[0-9a-f]{32}$/);
    await page.locator('.tile', { hasText: 'Living nodes' }).getByText('2 of 2').waitFor();
    await page.locator('#fleet-form [name=q]').fill('OTH');
    await until(async () => `${await names()}` === 'other', names);
    await page.locator('#fleet-nodes th a').click();
    assert.match(page.url(), /#activity\?node=other$/);

    step('records of a single node are shown');
    const listed = page.locator('#rows a');
    await until(async () => await listed.count() > 0, () => page.locator('#view-activity').innerText());
    assert.equal(await page.getByLabel('Node', { exact: true }).inputValue(), 'other');
    assert.ok(await page.locator('#lacking').isHidden(), await page.locator('#lacking').innerText());
    await listed.first().click();
    await page.locator('#record dd', { hasText: /^other other records/ }).waitFor();
    await sound(page, 'activity-node');

    step('a killed node is reported as silent');
    other.kill('SIGKILL');
    await until(async () => {
      await visit(page, 'now');
      await visit(page, 'fleet');
      return /silent/i.test(await rows.first().innerText());
    }, () => page.locator('#view-fleet').innerText());
    await sound(page, 'fleet-gone');

    step('records that only a dead node has are reported as missing');
    await go(page, '#activity');
    await page.locator('#lacking').getByText('Records of other are incomplete').waitFor();
  } finally {
    other.kill('SIGKILL');
  }
}
