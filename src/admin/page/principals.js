// The principals view: a list of callers, and a page for one of them with its access, calls, standing approvals and records.

import { secret, sendWithKey, tokenForm, withKey } from './adding.js';
import { LAST, RANGES, heads, recordList } from './activity.js';
import { stands } from './approvals.js';
import { csvButton } from './csv.js';
import { anchor, arrange, button, chip, copy, el, empty, fill, identifier, keyHelp, markChips, moving, number, option, pairs, para, percent, quiet, redraw, rowsOpen, searchField, settled, sortHead, sorted, stepLinks, stepRows, tag, visible, when, zero } from './dom.js';
import { STATUSES, share } from './now.js';
import { spark } from './plot.js';
import { subject } from './record.js';
import { ask, attempt, segment } from './rest.js';
import { change, go, here, link } from './route.js';

const PERIOD = '24h'; // where the address names none
const PAGE = 100; // calls per request
const PAGES = 5; // requests for the list before somebody asks for more
const LATEST = 20; // records of the open principal
const STEPS = 24; // of the line of calls
const TOOLS = 5; // that the open principal called most
/** Names of tokens. Commands are shown for these only. */
const TOKEN = /^token:([A-Za-z0-9][\w.-]{0,63})$/;
const COLUMNS = [
  { words: 'Principal', by: (it) => it.name, isText: true },
  { words: 'Kind', kind: 'late', by: (it) => kind(it.name)[0], isText: true },
  { words: 'Clients', kind: 'wide late', title: 'names that its clients report' },
  { words: 'Calls', kind: 'num', by: (it) => it.calls },
  { words: 'Errors', kind: 'num', title: 'calls that ended with an error', by: (it) => it.errors },
  { words: 'Refused', kind: 'num', title: 'rejected before the call, or its answer blocked', by: (it) => it.refused },
  { words: 'Standing', kind: 'num late', title: 'standing approvals', by: (it) => it.standing },
  { words: 'Over time', kind: 'late', title: 'from the oldest call that is counted until now' },
  { words: 'Last call', kind: 'num', by: (it) => it.last ?? '' },
];

const period = el('select', { name: 'period' }, Object.entries(LAST).map(([name, words]) => option(name, words)));
const search = searchField('Search principals');
const adder = button('Create a token', () => change({ add: adding.hidden ? 'yes' : '' }, true), { 'aria-expanded': 'false', 'aria-controls': 'token-adding' });
const form = el('form.chips', { id: 'principal-form', role: 'search' }, search, chip('Period', period), adder);
const adding = el('div', { id: 'token-adding', hidden: true });
const download = csvButton('principals', () => [
  ['principal', 'kind', 'expires', 'clients', 'calls', 'errors', 'refused', 'standing approvals', 'last call'],
  ...listed().map((it) => [it.name, kind(it.name)[0], it.token?.expires, [...it.clients].join(', '), it.calls, it.errors, it.refused, it.standing, it.last])]);
const count = el('p.quiet', { id: 'principal-count', role: 'status' });
const table = el('div', { id: 'principals' });
const more = button('Count older calls', () => {
  pages += PAGES;
  principals.refresh();
}, { hidden: true });
const everyone = el('div.list', {}, table, more, keyHelp());
const title = el('div.path', {});
const access = el('div.empty', { id: 'principal-access' });
const scope = el('div', { 'data-key': 'scope' });
const actions = el('div.answer', { 'data-key': 'actions' });
const renewed = el('div.came', { 'data-key': 'renewed', role: 'status' });
const sum = el('p', {});
const outcomes = el('ul.legend', { id: 'principal-calls' });
const called = el('ol.tops', { id: 'principal-tools', 'aria-label': 'Tools of the newest calls' });
const calledOf = el('p.quiet', { hidden: true }, `Tools of the newest ${PAGE} calls.`);
const records = el('ol.records', { 'aria-label': 'Latest records, newest first' });
const recorded = el('p.more', {});
const standing = el('ul.cards standing', { 'aria-label': 'Standing approvals' });
const none = quiet('None.');
const part = (words, ...parts) => el('div.card', {}, el('h2', {}, words), parts);
const one = el('div', { id: 'principal', hidden: true }, title,
  el('div.pair', {}, part('Access', access), part('Calls', sum, outcomes, called, calledOf), part('Standing approvals', none, standing)),
  el('h2', {}, 'Latest records'), el('div.list', {}, heads({ who: 'Client' }), records), recorded);
// `newest`: the record up to which calls were counted; `all`: the list, of the newest `read` calls if there are `older` ones
let [asked, shown, newest, pages, all, read, older] = [0, undefined, undefined, PAGES, [], 0, false];

export const principals = {
  name: 'principals',
  label: 'Principals',
  takes: ['name', 'q', 'period', 'sort', 'add'],
  root: el('div', {}, el('div.side', {}, download), form, adding, count, everyone, one),

  show({ name = '', q = '', period: wanted, add }) {
    if (document.activeElement !== search) search.value = q;
    for (const place of [search, adder, download]) place.hidden = Boolean(name);
    showAdding(add === 'yes' && !name);
    period.value = Object.hasOwn(RANGES, wanted ?? '') ? wanted : PERIOD;
    markChips(form);
    period.closest('.chip').classList.toggle('set', period.value !== PERIOD);
    const key = JSON.stringify([name, period.value]);
    const isSame = key === shown;
    if (!isSame) clear();
    shown = key;
    one.hidden = !name;
    for (const place of [count, everyone]) place.hidden = Boolean(name);
    if (name) introduce(name);
    else if (isSame && read) draw();
    principals.refresh();
  },

  refresh: () => attempt(() => (here().parameters.name ? loadOne(here().parameters.name) : loadAll()), 'principals'),

  forget() {
    clear();
    form.reset();
    showAdding(false);
    fill(title);
    fill(access);
    shown = undefined;
  },

  tick: () => [...standing.children].forEach((card) => card.tick()),

  keys(event) {
    const { name, ...rest } = here().parameters;
    if (event.key === 'Escape' && name) go('principals', rest);
    else if (!name) stepRows(event, table);
    else stepLinks(event, [...records.querySelectorAll('a')]);
  },
};

function clear() {
  asked += 1;
  [newest, pages, all, read] = [undefined, PAGES, [], 0];
  for (const place of [count, table, scope, actions, renewed, sum, outcomes, called, records, recorded, standing]) fill(place);
}

/** Shows or hides the form that creates tokens. */
function showAdding(shown) {
  if (shown !== adding.hidden) return;
  fill(adding, shown && tokenForm(loadAll, () => change({ add: '' }, true)));
  adding.hidden = !shown;
  adder.setAttribute('aria-expanded', shown);
  if (shown) adding.querySelector('input')?.focus();
}

const since = () => new Date(Date.now() - RANGES[period.value] * 1000).toISOString();

// ---- All of them

/** The newest calls of the period, and whether there are older ones. */
async function latest(isWanted) {
  const [calls, from] = [[], since()];
  let cursor;
  for (let page = 0; page < pages && isWanted(); page += 1) {
    const { data } = await ask('activity', { type: 'tool_call', start_time: from, limit: PAGE, exclude_payloads: true, cursor });
    calls.push(...data.activities);
    cursor = data.next_cursor;
    if (!cursor) break;
  }
  return [calls, Boolean(cursor)];
}

/** Lists all tokens, and the other principals of the newest calls, because the log has no index of principals. */
async function loadAll() {
  const mine = ++asked;
  const found = new Map();
  const [[calls, goesOn], { data: waits }, { data: tokens }] = await Promise.all([latest(() => mine === asked), ask('approvals'), ask('principals')]);
  if (mine !== asked) return;
  const add = (name, more) => {
    const standing = waits.standing.filter((it) => it.principal === name).length;
    found.set(name, { name, standing, calls: 0, errors: 0, refused: 0, clients: new Set(), times: [], ...more });
  };
  for (const { name, token } of tokens.principals) add(name, { token });
  for (const { principal: name, status, timestamp, metadata } of calls) {
    if (!found.has(name)) add(name);
    const row = found.get(name);
    row.last ??= timestamp;
    const count = metadata?.repeated ?? 1;
    row.calls += count;
    row.errors += status === 'error' ? 1 : 0;
    row.refused += ['blocked', 'rejected'].includes(status) ? count : 0;
    row.times.push(Date.parse(timestamp));
    if (metadata?.client_name) row.clients.add(metadata.client_name);
  }
  const latestFirst = (one, other) => ((one.last ?? '') < (other.last ?? '') ? 1 : -1);
  [all, read, older] = [[...found.values()].sort(latestFirst), calls.length, goesOn];
  draw();
}

/** The principals whose name or client contains a text. */
const matching = (text) => all.filter((it) => [it.name, ...it.clients].some((words) => words.toLowerCase().includes(text.toLowerCase())));

/** The principals as filtered and sorted. */
const listed = () => sorted(matching(here().parameters.q ?? ''), COLUMNS, here().parameters.sort);

function draw() {
  const { q = '', sort } = here().parameters;
  const rows = listed();
  const names = `${number(all.length)} ${all.length === 1 ? 'principal' : 'principals'}`;
  const of = read ? `${older ? `the newest ${number(read)}` : number(read)} ${read === 1 ? 'call' : 'calls'}` : 'no call';
  count.textContent = all.length ? `${names}, ${of} of the period${q ? `, ${number(rows.length)} shown` : ''}` : '';
  more.hidden = !older;
  // Of a longer list only the newest calls are read.
  const first = older ? Math.min(...all.flatMap((it) => it.times.slice(-1))) : Date.parse(since());
  const last = Date.now();
  const calls = (it) => {
    const steps = Array.from({ length: STEPS }, () => 0);
    for (const time of it.times) steps[Math.max(Math.min(Math.floor(STEPS * (time - first) / (last - first)), STEPS - 1), 0)] += 1;
    return spark(steps, `Calls of ${visible(it.name)} over time`);
  };
  redraw(table, all.length === 0 ? empty('Nobody has called a tool in this period.', para(anchor(link('activity'), 'Show all records')))
    : rows.length === 0 ? empty('No principal in this period matches.', para(anchor(link('principals', { name: q }), 'Open ', identifier(q), ' all the same')), para(anchor(link('principals'), 'Show all principals')))
      : el('table.rows', {}, sortHead(COLUMNS, sort, (to) => change({ sort: to }, true)),
        el('tbody', {}, rows.map((it) => el('tr', { 'data-key': it.name },
          el('th', { scope: 'row' }, el('a', { href: opening(it.name) }, identifier(it.name))),
          el('td.late quiet', {}, kind(it.name)[0], it.token ? [', ', expiry(it.token)] : TOKEN.test(it.name) && ', no longer there'),
          el('td.wide late', {}, el('span.cut quiet', { title: visible([...it.clients].join(', ')) }, [...it.clients].join(', '))),
          counted(it, it.calls), counted(it, it.errors, 'error'), counted(it, it.refused, 'blocked,rejected'),
          el('td.num late', {}, it.standing ? number(it.standing) : zero()),
          el('td.late', {}, it.calls > 0 && calls(it)), el('td.num', {}, it.last ? when(it.last) : el('span.quiet', {}, 'none')))))));
}

const expiry = ({ expires, expired }) => (expired ? el('span.wrong', {}, 'expired') : expires ? ['until ', when(expires)] : 'no expiry');

const opening = (name) => link('principals', { ...here().parameters, name });

/** A count of calls that leads to their records. */
function counted({ name }, value, status) {
  const records = () => link('activity', { type: 'tool_call', principal: name, range: period.value, status });
  return el('td', { class: status === 'error' ? 'num error-count' : 'num' },
    value ? el('a', { href: records() }, number(value)) : zero());
}

// ---- One of them

/** Shows the parts that need no request: name, admission, and the link to the rules. */
function introduce(name) {
  redraw(title, anchor(link('principals', { ...here().parameters, name: '' }), 'All principals'), el('span.quiet', { 'aria-hidden': 'true' }, '›'),
    el('h2', {}, identifier(name)), copy(name, 'name'));
  const [, ...about] = kind(name);
  redraw(access, about.map((words, at) => [para(words), at === 0 && TOKEN.test(name) && [scope, actions, renewed]]), para(anchor(link('policy', { principal: name, part: 'explain' }), 'What the rules say')));
}

/** Shows what a token may be used for. */
async function loadScope(name, mine) {
  const { data: { token } } = await ask(`principals/${segment(name)}`);
  if (mine !== asked) return;
  const all = (names) => (names.length ? names.map((it, at) => [at > 0 && ', ', identifier(it)]) : 'all');
  if (!token) fill(actions);
  else if (!actions.childElementCount) fill(actions, changes(token.name));
  redraw(scope, token ? pairs(['servers', all(token.servers)], ['tools', all(token.tools)], ['operations', all(token.operations)],
    ['expires', [token.expires ? when(token.expires) : 'never', token.expired && ' (expired)']]) : 'There is no such token now.');
}

/** Buttons that change a token. Each asks for the API key, because a session of the page may not. */
const changes = (token) => [
  button('New secret', () => withKey(`Replace the secret of ${token}? The present one is refused at once.`, 'New secret', '', async (key) => {
    const { data } = await sendWithKey(key, `tokens/${segment(token)}/rotate`);
    if (here().parameters.name !== `token:${token}`) return undefined;
    fill(renewed, secret(data));
    return renewed.querySelector('pre');
  })),
  button('Revoke token', () => withKey(`Revoke ${token}? Whoever uses it is refused at once.`, 'Revoke', 'danger', async (key) => {
    await sendWithKey(key, `tokens/${segment(token)}`, undefined, { method: 'DELETE' });
    fill(renewed);
    await principals.refresh();
    return title.querySelector('a');
  }), { class: 'deny' }),
];

/** Kind and admission of a principal by the form of its name. */
function kind(name) {
  if (TOKEN.test(name)) return ['agent token', 'An agent token.'];
  if (name === 'admin') return ['API key', 'The holder of the API key: the command line, REST, and this page. No scope limits it, only the rules do.'];
  if (name === 'anonymous') return ['no credential', ['Clients without a credential. They are refused with ', el('code', {}, '"require_mcp_auth": true'), ' in the config.']];
  if (name.startsWith('jwt:')) return ['organization login', ['A login with your organization, admitted by ', el('code', {}, 'auth.jwt'), ' in the config.']];
  if (name.startsWith('cert:')) return ['certificate', ['A client certificate, admitted by ', el('code', {}, 'tls.client_ca'), ' in the config.']];
  return ['unknown', 'No principal has such a name.'];
}

async function loadOne(name) {
  const mine = ++asked;
  const [{ data }, { data: waits }] = await Promise.all([ask('activity', { principal: name, limit: 4 * LATEST, exclude_payloads: true }), ask('approvals')]);
  if (mine !== asked) return;
  const theirs = waits.standing.filter((it) => it.principal === name);
  const there = new Map([...standing.children].map((card) => [card.dataset.id, card]));
  moving(() => {
    none.hidden = theirs.length > 0;
    arrange(standing, theirs.map((it) => there.get(it.id) ?? stands(it, () => loadOne(name))));
  });
  const lines = [...recordList(data.activities, { principal: name }, '', LATEST).children];
  redraw(records, lines);
  redraw(recorded, lines.length ? anchor(link('activity', { principal: name }), 'All records') : 'No records.');
  const top = `${period.value} ${data.activities[0]?.id}`;
  if (TOKEN.test(name)) await loadScope(name, mine);
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
  const total = counted.reduce((before, [, value]) => before + value, 0);
  const well = Object.fromEntries(counted).success;
  redraw(sum, `${number(total)} ${total === 1 ? 'call' : 'calls'} in the ${LAST[period.value]}${total ? `, ${percent(well, total)} succeeded` : ''}`);
  const { data } = await ask('activity', { type: 'tool_call', principal: name, start_time: since(), limit: PAGE, exclude_payloads: true });
  if (mine !== asked) return;
  const tools = new Map();
  for (const it of data.activities) tools.set(subject(it), (tools.get(subject(it)) ?? 0) + (it.metadata?.repeated ?? 1));
  const most = [...tools].sort((one, other) => other[1] - one[1]).slice(0, TOOLS);
  calledOf.hidden = !data.next_cursor;
  redraw(called, most.map(([tool, calls]) => el('li', { 'data-key': tool }, share(calls / most[0][1]),
    anchor(link('activity', { ...filter, tool }), identifier(tool)), el('span', {}, number(calls)))));
  redraw(outcomes, counted.map(([status, value]) => el('li', { 'data-key': status },
    value ? anchor(link('activity', { ...filter, status }), tag(status, ' ', number(value))) : tag(status, ' 0'))));
}

const typed = () => change({ q: search.value.trim() }, true);
form.addEventListener('submit', (event) => {
  event.preventDefault();
  const word = search.value.trim();
  const found = matching(word).map((it) => it.name);
  search.value = '';
  if (word) change({ q: '', name: found.length === 1 ? found[0] : word });
});
search.addEventListener('input', settled(typed));
period.addEventListener('change', () => change({ period: period.value }, true));
rowsOpen(table);
