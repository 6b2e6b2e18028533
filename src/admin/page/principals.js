// The principals view: a list of callers, and a page for one of them with its access, calls, standing approvals and records.

import { RANGES, heads, line } from './activity.js';
import { stands } from './approvals.js';
import { arrange, chip, command, el, empty, fill, markChips, moving, number, option, redraw, rowsOpen, tag, when } from './dom.js';
import { STATUSES } from './now.js';
import { ask, attempt } from './rest.js';
import { change, here, link } from './route.js';

const PERIOD = '24h'; // where the address names none
const PAGE = 100; // calls per request
const MAX_PAGES = 5; // maximum requests for the list
const LATEST = 20; // records of the open principal
/** Names of tokens. Commands are shown for these only. */
const TOKEN = /^token:([A-Za-z0-9][\w.-]{0,63})$/;

const period = el('select', { name: 'period' }, Object.keys(RANGES).map((name) => option(name, `last ${name}`)));
const field = el('input', { name: 'name', autocomplete: 'off', spellcheck: 'false', placeholder: 'token:NAME' });
const form = el('form', { id: 'principal-form', class: 'chips', 'aria-label': 'Selection' }, chip('Principal', field), chip('Period', period));
const count = el('p', { id: 'principal-count', class: 'quiet', role: 'status' });
const table = el('div', { id: 'principals' });
const title = el('div', { class: 'path' });
const access = el('div', { id: 'principal-access', class: 'empty' });
const outcomes = el('ul', { id: 'principal-calls', class: 'legend' });
const records = el('ol', { class: 'records', 'aria-label': 'Latest records, newest first' });
const recorded = el('p', { class: 'more' });
const standing = el('ul', { class: 'cards standing', 'aria-label': 'Standing approvals' });
const none = el('p', { class: 'quiet' }, 'None.');
const part = (words, ...parts) => el('div', { class: 'card' }, el('h2', {}, words), parts);
const one = el('div', { id: 'principal', hidden: true }, title,
  el('div', { class: 'pair' }, part('Access', access), part('Calls', outcomes), part('Standing approvals', none, standing)),
  el('h2', {}, 'Latest records'), el('div', { class: 'list' }, heads('Client'), records), recorded);
let [asked, shown, newest] = [0, undefined, undefined]; // `newest`: the record up to which calls were counted

export const principals = {
  name: 'principals',
  label: 'Principals',
  root: el('div', {}, form, count, table, one),

  show({ name = '', period: wanted }) {
    if (document.activeElement !== field) field.value = name;
    period.value = Object.hasOwn(RANGES, wanted ?? '') ? wanted : PERIOD;
    markChips(form);
    period.closest('.chip').classList.toggle('set', period.value !== PERIOD);
    const key = JSON.stringify([name, period.value]);
    if (key !== shown) clear();
    shown = key;
    one.hidden = !name;
    for (const place of [count, table]) place.hidden = Boolean(name);
    if (name) introduce(name);
    principals.refresh();
  },

  refresh: () => attempt(() => (here().parameters.name ? loadOne(here().parameters.name) : loadAll())),

  forget() {
    clear();
    form.reset();
    fill(title);
    fill(access);
    shown = undefined;
  },
};

function clear() {
  asked += 1;
  newest = undefined;
  for (const place of [count, table, outcomes, records, recorded, standing]) fill(place);
}

const since = () => new Date(Date.now() - RANGES[period.value] * 1000).toISOString();

// ---- All of them

/** Lists the principals of the newest calls, because the log has no index of principals. */
async function loadAll() {
  const mine = ++asked;
  const found = new Map();
  let [read, next] = [0, undefined];
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const { data } = await ask('activity', { type: 'tool_call', start_time: since(), limit: PAGE, exclude_payloads: true, cursor: next });
    if (mine !== asked) return;
    for (const it of data.activities) {
      if (!found.has(it.principal)) found.set(it.principal, { name: it.principal, last: it.timestamp, calls: 0, failed: 0, refused: 0 });
      const row = found.get(it.principal);
      row.calls += 1;
      row.failed += it.status === 'error' ? 1 : 0;
      row.refused += ['blocked', 'rejected'].includes(it.status) ? 1 : 0;
    }
    read += data.activities.length;
    next = data.next_cursor;
    if (!next) break;
  }
  const rows = [...found.values()];
  count.textContent = read ? `${number(rows.length)} ${rows.length === 1 ? 'principal' : 'principals'} in ${next ? `the newest ${number(read)}` : number(read)} calls of the period` : '';
  const head = [['Principal', 'wide'], ['Calls', 'num'], ['Failed', 'num'], ['Refused', 'num'], ['Last call', 'num']];
  redraw(table, rows.length === 0 ? empty('Nobody has called a tool in this period.', el('p', {}, el('a', { href: link('activity') }, 'Show all records')))
    : el('table', { class: 'rows' }, el('thead', {}, el('tr', {}, head.map(([words, kind]) => el('th', { scope: 'col', class: kind }, words)))),
      el('tbody', {}, rows.map((it) => el('tr', { 'data-key': it.name },
        el('th', { scope: 'row' }, el('a', { href: link('principals', { ...here().parameters, name: it.name }) }, el('bdi', {}, it.name))),
        counted(it, it.calls), counted(it, it.failed, 'error'), counted(it, it.refused, 'blocked,rejected'), el('td', { class: 'num' }, when(it.last)))))));
}

/** A count of calls that leads to their records. */
function counted({ name }, value, status) {
  const records = () => link('activity', { type: 'tool_call', principal: name, range: period.value, status });
  return el('td', { class: status === 'error' ? 'num error-count' : 'num' },
    value ? el('a', { href: records() }, number(value)) : el('span', { class: 'quiet' }, '0'));
}

// ---- One of them

/** Shows the parts that need no request: name, admission, and the link to the rules. */
function introduce(name) {
  redraw(title, el('a', { href: link('principals', { ...here().parameters, name: '' }) }, 'All principals'), el('span', { class: 'quiet', 'aria-hidden': 'true' }, '›'),
    el('h2', {}, el('bdi', {}, name)));
  redraw(access, kind(name), el('p', {}, el('a', { href: link('policy', { principal: name }) }, 'What the rules say')));
}

/** Admission of a principal by the form of its name. Page sessions may not read tokens, so commands show and revoke them. */
function kind(name) {
  const token = TOKEN.exec(name)?.[1];
  const words = (...text) => el('p', {}, text);
  if (token) {
    return [words('An agent token. Its servers, tools, operations and expiry: ', command('mcpproxy token list')),
      words('To revoke it: ', command(`mcpproxy token revoke ${token}`))];
  }
  if (name === 'admin') return words('The holder of the API key: the command line, REST, and this page. No scope limits it, only the rules do.');
  if (name === 'anonymous') return words('Clients without a credential. They are refused with ', el('code', {}, '"require_mcp_auth": true'), ' in the config.');
  if (name.startsWith('jwt:')) return words('A login with your organization, admitted by ', el('code', {}, 'auth.jwt'), ' in the config.');
  if (name.startsWith('cert:')) return words('A client certificate, admitted by ', el('code', {}, 'tls.client_ca'), ' in the config.');
  return words('No principal has such a name.');
}

async function loadOne(name) {
  const mine = ++asked;
  const [{ data }, { data: waits }] = await Promise.all([ask('activity', { principal: name, limit: LATEST, exclude_payloads: true }), ask('approvals')]);
  if (mine !== asked) return;
  const theirs = waits.standing.filter((it) => it.principal === name);
  const there = new Map([...standing.children].map((card) => [card.dataset.id, card]));
  moving(() => {
    none.hidden = theirs.length > 0;
    arrange(standing, theirs.map((it) => there.get(it.id) ?? stands(it, () => loadOne(name))));
  });
  // Decisions about calls are left out: the error of the call has the reason.
  const lines = data.activities.filter((it) => it.type !== 'policy_decision' || !it.parent_id);
  redraw(records, lines.map((it) => el('li', { 'data-key': it.id }, line(it, { principal: name }))));
  redraw(recorded, lines.length ? el('a', { href: link('activity', { principal: name }) }, 'All records') : 'No records.');
  const top = `${period.value} ${data.activities[0]?.id}`;
  if (top !== newest) await loadCounts(name, mine, top);
}

/** Counts the calls of the period by status. */
async function loadCounts(name, mine, top) {
  const counted = await Promise.all(STATUSES.map(async (status) => {
    const { data } = await ask('activity', { type: 'tool_call', principal: name, status, start_time: since(), limit: 1, exclude_payloads: true, with_total: true });
    return [status, data.total];
  }));
  if (mine !== asked) return;
  newest = top;
  const filter = { type: 'tool_call', principal: name, range: period.value };
  redraw(outcomes, counted.map(([status, total]) => el('li', { 'data-key': status },
    total ? el('a', { href: link('activity', { ...filter, status }) }, tag(status, ' ', number(total))) : tag(status, ' 0'))));
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  change({ name: field.value.trim() });
});
field.addEventListener('change', () => change({ name: field.value.trim() }));
period.addEventListener('change', () => change({ period: period.value }, true));
rowsOpen(table);
