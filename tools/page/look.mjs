// End-to-end test of the page in a real browser, with the stub as upstream. Each module in `views/` exercises one view
// and runs axe on it in both color schemes and at the width of a phone. The test fails on a missing element, a console
// error, a violation of the content security policy, a request to another host, or a secret in a URL. It compares the
// screenshots in target/page with the accepted ones (looks.mjs).

import { createRequire } from 'node:module';
import { join } from 'node:path';

import { WAIT_MS, ZONE, shot, watch } from './checks.mjs';
import { compare } from './looks.mjs';
import { SHOTS, folder, makeCalls, serve } from './proxy.mjs';
import * as activity from './views/activity.mjs';
import * as approvals from './views/approvals.mjs';
import * as empty from './views/empty.mjs';
import * as fleet from './views/fleet.mjs';
import * as login from './views/login.mjs';
import * as now from './views/now.mjs';
import * as policy from './views/policy.mjs';
import * as principals from './views/principals.mjs';
import * as servers from './views/servers.mjs';
import * as settings from './views/settings.mjs';
import * as tools from './views/tools.mjs';

const FLAGS = [
  '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];

const { chromium } = createRequire(join(SHOTS, 'package.json'))('playwright-core');

const proxy = serve();
let browser;
try {
  await proxy.ready();
  browser = await chromium.launchPersistentContext(join(folder, 'browser'), {
    executablePath: '/usr/bin/chromium', headless: false, args: FLAGS,
    viewport: { width: 1280, height: 860 }, colorScheme: 'light', timezoneId: ZONE, reducedMotion: 'reduce',
  });
  browser.setDefaultTimeout(WAIT_MS);
  await browser.grantPermissions(['clipboard-read', 'clipboard-write']);
  const page = browser.pages()[0] ?? await browser.newPage();
  const context = { page, browser, wrong: watch(page) };
  try {
    await login.look(context);
    await empty.look(context);
    await page.bringToFront();
    await makeCalls();
    for (const view of [activity, now, approvals, servers, tools, policy, principals, fleet, settings]) await view.look(context);
    await login.leave(context);
    context.wrong.none();
    await page.goto('about:blank');
    await compare(page);
  } catch (error) {
    console.error(context.wrong.all().join('\n'));
    await shot(page, 'failed');
    throw error;
  }
  console.log(`all page tests passed; screenshots are in ${SHOTS}`);
} finally {
  await browser?.close();
  await proxy.end();
}
