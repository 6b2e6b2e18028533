// The page: login, views, and periodic refresh.
//
// Records contain text written by agents and servers, including attackers. Every value is inserted as text, never as markup, and the
// page's content security policy prevents other scripts from running.

import { activity } from './activity.js';
import { approvals } from './approvals.js';
import { $, anchor, copy, el, moving, settle, visible } from './dom.js';
import { fleet } from './fleet.js';
import { live } from './live.js';
import { now } from './now.js';
import { policy } from './policy.js';
import { principals } from './principals.js';
import { ask, forgetAsked, notice, send, whenLocked, withdraw } from './rest.js';
import { here, link } from './route.js';
import { servers } from './servers.js';
import { settings } from './settings.js';
import { startTheme } from './theme.js';
import { tools } from './tools.js';

const VIEWS = [now, activity, approvals, principals, servers, tools, policy, fleet, settings];
const REFRESH_MS = 10000; // of data without a stream
const SEARCH_KEYS = ['ArrowDown', 'Enter', 'Escape']; // in a search field
const RESULTS = '.records a, .rows tbody th a, #rules a, .setting :is(input, select)';
let view;

// ---- Logging in and out

function lock(why = '') {
  live.stop();
  forgetAsked();
  VIEWS.forEach((it) => it.forget());
  view = undefined;
  $('open').hidden = true;
  $('locked').hidden = false;
  $('key-error').textContent = why;
  $('key').value = '';
  $('key').focus();
}

whenLocked(lock);

async function unlock(event) {
  event.preventDefault();
  const key = $('key').value.trim();
  $('key').value = '';
  try {
    await send('page/session', {}, { headers: { 'X-API-Key': key } });
    start();
  } catch (error) {
    lock(error.status === 401 ? 'Wrong API key.' : visible(error.message));
  }
}

/** Exchanges the one-time code in the fragment, which browsers do not send, and removes it from the address. */
async function enter() {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, '', location.pathname);
  await send('page/session', { code });
}

async function begin() {
  let why;
  try {
    await enter();
  } catch (error) {
    why = visible(error.message); // whoever is logged in all the same is not asked again
  }
  try {
    await ask('status');
    start();
  } catch (error) {
    lock(why ?? (error.status === 401 ? '' : visible(error.message)));
  }
}

function start() {
  $('locked').hidden = true;
  $('open').hidden = false;
  live.start();
  approvals.refresh();
  route();
  // One machine has no view of a fleet.
  fleet.exists().then((exists) => moving(() => { fleetLink.hidden = !exists; })).catch(() => {});
}

// ---- Views

for (const it of VIEWS) {
  $(`view-${it.name}`).append(el('div', { id: `trouble-${it.name}`, class: 'trouble wrong card fault', role: 'alert', hidden: true }), it.root);
  $('nav').append(anchor(link(it.name), it.label,
    it === approvals && [' ', el('span.badge', { id: 'waiting', hidden: true })]));
}

const fleetLink = document.querySelector(`nav a[href="${link(fleet.name)}"]`);
fleetLink.hidden = true;

/** The view, after the number of waiting calls. */
function title(of) {
  const many = $('waiting').textContent;
  document.title = `${many && `(${many}) `}${of.label} – mcpproxy`;
}
new MutationObserver(() => title(view ?? now)).observe($('waiting'), { childList: true });

function route() {
  if (/^#code=/.test(location.hash)) {
    begin();
    return;
  }
  if ($('open').hidden) return;
  const { view: wanted, parameters } = here();
  const known = VIEWS.find((it) => it.name === wanted);
  const next = known ?? now;
  const unknown = known && Object.keys(parameters).filter((name) => !next.takes.includes(name));
  for (const name of unknown ?? Object.keys(parameters)) delete parameters[name];
  for (const it of VIEWS) $(`view-${it.name}`).hidden = it !== next;
  for (const one of document.querySelectorAll('nav a')) {
    if (one.getAttribute('href') === link(next.name)) one.setAttribute('aria-current', 'page');
    else one.removeAttribute('aria-current');
  }
  aim();
  title(next);
  if (next !== view) {
    window.scrollTo(0, 0);
    withdraw();
  }
  view = next;
  if (!known || unknown.length) history.replaceState(null, '', link(next.name, parameters));
  next.show(parameters);
  if (!known) notice(`There is no view '${wanted}'.`);
  else if (unknown.length) notice(`Unknown filter: ${unknown.join(', ')}`);
}

/** On a phone the views are a row to be pushed: the one that is shown is in sight. */
function aim() {
  const one = $('nav').querySelector('[aria-current]');
  if (one) $('nav').scrollLeft = one.offsetLeft - ($('nav').clientWidth - one.offsetWidth) / 2;
}

function refresh() {
  if (document.hidden || $('open').hidden || !view) return;
  if (view !== approvals) approvals.refresh();
  if (view !== servers) servers.sample();
  view.refresh?.();
}

$('key-form').querySelector('code').after(' ', copy('mcpproxy page', 'mcpproxy page'));
$('key-form').addEventListener('submit', unlock);
$('skip').addEventListener('click', () => $('main').focus());
$('forget').addEventListener('click', () => {
  // Locked here whatever the server says, and when; there the session ends by itself at the latest.
  send('page/session', undefined, { method: 'DELETE' }).catch(() => {});
  lock();
});
document.addEventListener('keydown', (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || $('open').hidden || !view || document.querySelector('dialog')) return;
  const search = [...$(`view-${view.name}`).querySelectorAll('input[type=search]')].find((one) => one.offsetParent);
  if (event.target === search && SEARCH_KEYS.includes(event.key)) {
    // Enter opens the principal whose name was typed.
    if (event.key === 'Enter' && view === principals) return;
    event.preventDefault();
    settle();
    if (event.key === 'Escape') search.blur();
    else [...$(`view-${view.name}`).querySelectorAll(RESULTS)].find((one) => one.offsetParent)?.focus();
  } else if (event.key === '/' && search && !event.target.closest('input, textarea')) {
    event.preventDefault();
    search.focus();
  } else view.keys?.(event);
});
window.addEventListener('hashchange', route);
let frame;
window.addEventListener('resize', () => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    aim();
    view?.redraw?.();
  });
});
// A hidden tab holds no connection: a browser has few of them for one server.
document.addEventListener('visibilitychange', () => {
  if ($('open').hidden) return;
  if (document.hidden) live.stop();
  else {
    live.start();
    refresh();
  }
});
setInterval(refresh, REFRESH_MS);
setInterval(() => { if (!document.hidden && !$('open').hidden) view?.tick?.(); }, now.everyMs);

startTheme();
begin();
