// Empty states: each view of a proxy without config and requests describes the next step.

import assert from 'node:assert/strict';

import { copies, go, sound, step, visit, watch } from '../checks.mjs';
import { KEY, untouched } from '../proxy.mjs';

const ADDS = 'mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp';

export async function look({ browser }) {
  const proxy = await untouched();
  const page = await browser.newPage();
  const wrong = watch(page, proxy.base);
  try {
    await page.goto(`${proxy.base}/ui/`);
    await page.getByLabel('API key').fill(KEY);
    await page.keyboard.press('Enter');
    wrong.expected(/401/);

    for (const [name, says, commands] of [
      ['now', 'No server is configured.', [ADDS, 'mcpproxy import']],
      ['activity', 'No agent has called anything yet.', [`${proxy.base}/mcp`]],
      ['approvals', 'No call waits for approval.', []],
      ['principals', 'Nobody has called a tool in this period.', []],
      ['servers', 'No server is configured.', [ADDS, 'mcpproxy import']],
      ['tools', 'No server offers a tool.', []],
      ['policy', 'There are no rules', ['mcpproxy policy check rules.cedar']],
      ['settings', 'A change of the file applies as soon as it is written.', []],
    ]) {
      step(`the empty view ${name} describes the next step`);
      await visit(page, name);
      const view = page.locator(`#view-${name}`);
      await view.getByText(says).waitFor();
      if (name === 'now') await view.getByText('No calls in this time').nth(1).waitFor();
      for (const command of commands) await copies(page, view, `Copy ${command}`, command);
      await sound(page, `empty-${name}`);
    }
    assert.equal(await page.getByRole('navigation').getByRole('link', { name: 'Fleet' }).count(), 0, 'the navigation has no fleet link without a fleet');

    step('the fleet view reports that there is no fleet');
    await go(page, '#fleet');
    await page.getByText('This proxy is not part of a fleet.').waitFor();
    assert.ok(await page.getByText('Living nodes').isHidden());
    await copies(page, page.locator('#view-fleet'), 'Copy mcpproxy guide fleet-setup', 'mcpproxy guide fleet-setup');
    await sound(page, 'empty-fleet');

    step('a filtered list without matches links to the whole list');
    await go(page, '#activity?type=tool_call&range=1h');
    await page.getByText('No record matches the filters.').waitFor();
    await page.getByRole('link', { name: 'Show all records' }).click();
    await page.getByText('No agent has called anything yet.').waitFor();
    await go(page, '#tools?held=yes');
    await page.getByText('No tool is in quarantine.').waitFor();
    await page.getByRole('link', { name: 'Show all tools' }).click();
    await page.getByText('No server offers a tool.').waitFor();
    wrong.none();
  } catch (error) {
    console.error(wrong.all().join('\n'));
    throw error;
  } finally {
    await page.close();
    await proxy.end();
  }
}
