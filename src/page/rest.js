// Asking /api/v1. The session is in a cookie that no script sees; the header says that it is the
// page that asks, which no form and no page of another origin can send.

import { $, visible } from './dom.js';

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

/** What is done when the session is over. */
export function whenLocked(work) {
  locked = work;
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
  const response = await asked;
  const text = await response.text();
  const id = response.headers.get('X-Request-Id') ?? '';
  if (response.ok) return { data: JSON.parse(text).data, text, id };
  let said = {};
  try { said = JSON.parse(text) ?? {}; } catch { /* not ours: a proxy's page */ }
  throw new Refused(response.status, said.error ?? response.statusText, said);
}

export const segment = encodeURIComponent;

/** Runs something that asks; what goes wrong is said at the top, once it works again it is gone. */
export async function attempt(work) {
  try {
    await work();
    $('trouble').hidden = true;
    return true;
  } catch (error) {
    if (error.status === 401) {
      locked('The session is over: log in again.');
      return false;
    }
    $('trouble').hidden = false;
    $('trouble').textContent = visible(error instanceof Refused ? error.message : `The server does not answer (${error.message}).`);
    return false;
  }
}
