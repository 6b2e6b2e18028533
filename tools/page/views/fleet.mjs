// The fleet: who lives, how far each is, and a node that is gone.

import { count, sound, step, until, visit } from '../checks.mjs';
import { node } from '../proxy.mjs';

export async function look({ page }) {
  step('this node and another one live');
  const rows = page.locator('#fleet-nodes tbody tr');
  const other = await node('other');
  try {
    await visit(page, 'fleet');
    await until(async () => {
      await page.getByRole('link', { name: /^Now/ }).click();
      await visit(page, 'fleet');
      return await rows.count() === 2 && /living/i.test(await rows.first().innerText());
    }, () => page.locator('#view-fleet').innerText());
    await count(page, '#fleet-faults li', 0);
    await sound(page, 'fleet');

    step('a node that was killed is found gone');
    other.kill('SIGKILL');
    await until(async () => {
      await page.getByRole('link', { name: /^Now/ }).click();
      await visit(page, 'fleet');
      return /silent/i.test(await rows.first().innerText());
    }, () => page.locator('#view-fleet').innerText());
    await sound(page, 'fleet-gone');
  } finally {
    other.kill('SIGKILL');
  }
}
