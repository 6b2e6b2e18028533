// Asking /api/v1. The session is in a cookie that no script sees; the header says that it is the
// page that asks, which no form and no page of another origin can send.

import { $, anchor, button, fill, moving, para, visible } from './dom.js';
import { here, link } from './route.js';

const HEADERS = { 'X-Mcpproxy-Source': 'page' };

/** An answer that is no success: its HTTP status, the server's words, and the rest that it says. */
export class Refused extends Error {
  constructor(status, message, more = {}) {
    super(message);
    this.status = status;
    this.more = more;
  }
}

let locked = () => {};
let session = 0; // how many there were: an answer that comes after the page was locked is nobody's any more

/** What is done when the session is over. */
export function whenLocked(work) {
  locked = work;
}

/** The page is locked: nothing that was asked before is shown, nor what became of it. */
export function forgetAsked() {
  session += 1;
  for (const { id } of document.querySelectorAll('.banner, .trouble')) say(id);
  for (const dialog of document.querySelectorAll('dialog')) dialog.close();
}

/** Says something above the views, or nothing any more. */
function say(id, ...words) {
  const hidden = words.length === 0;
  if (hidden && $(id).hidden) return;
  moving(() => {
    $(id).hidden = hidden;
    fill($(id), ...words);
  });
}

/** Fetches from our server; `path` begins at the root. */
export function get(path, more = {}) {
  const { headers, ...rest } = more;
  return fetch(path, { credentials: 'same-origin', cache: 'no-store', headers: { ...HEADERS, ...headers }, ...rest });
}

export function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== '' && value !== undefined);
  const query = given.length ? `?${new URLSearchParams(given)}` : '';
  return answered(get(`/api/v1/${path}${query}`));
}

export function send(path, body, { method = 'POST', headers = {} } = {}) {
  const content = body === undefined ? undefined : JSON.stringify(body);
  const type = content === undefined ? {} : { 'Content-Type': 'application/json' };
  return answered(get(`/api/v1/${path}`, { method, headers: { ...type, ...headers }, body: content }));
}

async function answered(asked) {
  const mine = session;
  const response = await asked;
  const text = await response.text();
  if (mine !== session) throw new Error('the page was locked meanwhile');
  const id = response.headers.get('X-Request-Id') ?? '';
  if (response.ok) return { data: JSON.parse(text).data, text, id };
  let said = {};
  try { said = JSON.parse(text) ?? {}; } catch { /* not ours: a proxy's page */ }
  throw new Refused(response.status, said.error ?? response.statusText, said);
}

export const segment = encodeURIComponent;

/**
 * Loads something that nobody asked for. A failure is shown until the next success: an error of the API in the `view` whose content
 * was loaded, with a link that clears its filters; others at the top.
 */
export function attempt(work, view) {
  const [place, top] = [view ? `trouble-${view}` : 'trouble', 'trouble'];
  return run(work, () => [place, top].forEach((id) => say(id)), (words, isRefused) => say(isRefused ? place : top, para(words),
    isRefused && here().view === view && link(view) !== location.hash && para(anchor(link(view), 'Clear the filters'))));
}

/** Does what somebody asked for; that it failed is said until they have read it, or do something else. */
export function act(work) {
  withdraw();
  return run(work, () => {}, (words) => notice(words));
}

/** Says something about the address until it was read. */
export const notice = (...words) => say('failed', para(words), button('Dismiss', withdraw));

/** Removes the notice. */
export const withdraw = () => say('failed');

async function run(work, well, failed) {
  const mine = session;
  try {
    await work();
    if (mine === session) well();
    return mine === session;
  } catch (error) {
    if (mine !== session) return false;
    if (error.status === 401) locked('The session is over: log in again.');
    else {
      const isRefused = error instanceof Refused;
      failed(visible(isRefused ? error.message : `mcpproxy does not answer (${error.message}). The page shows what it said last, and asks again.`), isRefused);
    }
    return false;
  }
}
