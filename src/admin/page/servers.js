// The servers view: one line each, and a panel with the details and actions of the one that is open.

import { isLocal, sendWithKey, serverCommands, serverForm, withKey } from './adding.js';
import { anchor, button, chip, clock, command, confirmed, copy, el, empty, fill, identifier, keyHelp, markChips, nodes, number, option, pairs, panel, panelButtons, para, quiet, redraw, rowsOpen, searchField, settled, sortHead, sorted, stepRows, tag, took, trouble, visible, when, zero } from './dom.js';
import { csvButton } from './csv.js';
import { listen } from './live.js';
import { spark } from './plot.js';
import { CALLS, happened } from './record.js';
import { act, ask, attempt, notice, segment, send } from './rest.js';
import { change, here, link } from './route.js';

const LOG_LINES = 200; // initial lines of a server's log
const MAX_LOG_LINES = 1000; // maximum lines kept while following
const FOLLOW_MS = 2000;
const STATES = ['failed', 'needs-login', 'throttled', 'connecting', 'connected', 'disabled']; // in the order of the list
const PAGE = 100; // lines shown before somebody asks for more
const SPAN_MS = 600_000; // of the line of a server's calls
const STEP_MS = 15_000; // of the part of the line that is from the log
const LOGGED = 5; // maximum requests for that part, of 100 calls each
const SAMPLE_MS = 9000; // minimum time between two samples
const CHANGES = 5; // latest changes in each list of the panel
const COLUMNS = [
  { words: 'Server', by: (it) => it.name, isText: true },
  { words: 'State', kind: 'wide' },
  { words: 'Tools', kind: 'num', by: (it) => it.tools },
  { words: 'Calls', kind: 'num', title: 'since the start of the proxy', by: ({ calls }) => calls.total },
  { words: 'Errors', kind: 'num', title: 'calls that ended with an error', by: ({ calls }) => calls.error },
  { words: 'Refused', kind: 'num', title: 'rejected before the call, or its answer blocked', by: ({ calls }) => calls.blocked + calls.rejected },
  { words: 'Median', kind: 'num late', title: 'half of the calls were faster', by: ({ calls }) => calls.duration_us.p50 },
  { words: 'p99', kind: 'num late', title: '99 of 100 calls were faster', by: ({ calls }) => calls.duration_us.p99 },
  { words: 'Last 10 min', kind: 'late', title: 'calls over the last 10 minutes' },
];

const search = searchField('Search servers');
const state = el('select', { name: 'state' }, option('', 'all'), STATES.map((name) => option(name)));
const adder = button('Add a server', () => change({ add: adding.hidden ? 'yes' : '' }, true), { 'aria-expanded': 'false', 'aria-controls': 'adding' });
const form = el('form.chips', { id: 'server-form', role: 'search' }, search, chip('State', state), adder);
const adding = el('div', { id: 'adding', hidden: true });
const download = csvButton('servers', () => [
  ['server', 'state', 'reason', 'tools', 'in quarantine', 'calls', 'errors', 'blocked', 'rejected', 'p50 ms', 'p99 ms'],
  ...listed().map(({ name, state: now, reason, tools, quarantined, calls: { total, error, blocked, rejected, duration_us: { p50, p99 } } }) =>
    [name, now, reason, tools, quarantined, total, error, blocked, rejected, p50 && p50 / 1000, p99 && p99 / 1000])]);
const count = el('p.quiet', { id: 'server-count', role: 'status' });
const none = el('div', {});
const table = el('div', { id: 'servers' });
const more = button('Show all', () => {
  limit = Infinity;
  draw();
}, { hidden: true });
const details = panel('server', 'Server');
let [asked, limit, all, open] = [0, PAGE, [], undefined];
const samples = new Map(); // by server: { at, total }, oldest first
let isLogged = false; // whether the samples begin with the calls in the log

export const servers = {
  name: 'servers',
  label: 'Servers',
  takes: ['name', 'q', 'state', 'sort', 'add'],
  root: el('div', {}, el('div.side', {}, download), form, adding, count, none, el('div.split', {}, el('div.list', {}, table, more, keyHelp()), details)),

  show(parameters) {
    if (document.activeElement !== search) search.value = parameters.q ?? '';
    state.value = STATES.includes(parameters.state) ? parameters.state : '';
    showAdding(parameters.add === 'yes');
    if (!parameters.name) closePanel();
    if (all.length) draw();
    servers.refresh();
  },

  refresh: () => attempt(load, 'servers'),

  /** Counts the calls of each server, for the lines of the next view of them. */
  sample: () => attempt(async () => sampled((await ask('servers')).data.servers)),

  forget() {
    asked += 1;
    [limit, all] = [PAGE, []];
    samples.clear();
    isLogged = false;
    form.reset();
    showAdding(false);
    closePanel();
    for (const place of [table, count, none, details]) fill(place);
  },

  keys(event) {
    if (event.key === 'Escape' && open) change({ name: '' });
    else stepRows(event, table, open);
  },
};

function sampled(found) {
  const at = Date.now();
  for (const { name, calls } of found) {
    const line = samples.get(name) ?? [];
    if (line.length && line.at(-1).total > calls.total) line.length = 0; // another process
    if (!line.length || at - line.at(-1).at > SAMPLE_MS) line.push({ at, total: calls.total });
    samples.set(name, line.filter((it) => at - it.at <= SPAN_MS + STEP_MS));
  }
  const there = new Set(found.map((it) => it.name));
  for (const name of samples.keys()) if (!there.has(name)) samples.delete(name);
}

/** Samples of the minutes before the first one: the counts of now less the later calls in the log. */
async function logged(found) {
  const now = Date.now();
  let [calls, from, cursor] = [[], now - SPAN_MS];
  for (let page = 0; page < LOGGED; page += 1) {
    const { data } = await ask('activity', { type: CALLS.join(), start_time: new Date(from).toISOString(), limit: 100, exclude_payloads: true, cursor });
    calls.push(...data.activities.map((it) => ({ name: it.server_name, at: Date.parse(it.timestamp) })));
    cursor = data.next_cursor;
    if (!cursor) break;
  }
  if (cursor) from = calls.at(-1).at; // older calls are not counted
  for (const { name, calls: { total } } of found) {
    const line = [];
    for (let at = from; at < now; at += STEP_MS) line.push({ at, total: total - calls.filter((it) => it.name === name && it.at > at).length });
    samples.set(name, [...line, { at: now, total }]);
  }
  isLogged = true;
}

async function load() {
  const mine = ++asked;
  const { data } = await ask('servers');
  if (mine !== asked) return;
  sampled(data.servers);
  all = data.servers.toSorted((one, other) => STATES.indexOf(one.state) - STATES.indexOf(other.state) || (one.name < other.name ? -1 : 1));
  draw();
  const { name } = address();
  if (name && !open) {
    change({ name: '' }, true);
    notice(`No server named '${name}'.`);
    return;
  }
  if (isLogged) return;
  await logged(data.servers);
  draw();
}

const address = () => (here().view === 'servers' ? here().parameters : {});

/** The servers as filtered and sorted. */
function listed() {
  const { q = '', state: wanted, sort } = address();
  const word = q.toLowerCase();
  const found = all.filter((it) => (!wanted || it.state === wanted) && [it.name, it.reason, it.server_info].some((text) => text?.toLowerCase().includes(word)));
  return sorted(found, COLUMNS, sort);
}

function draw() {
  const { name, sort } = address();
  const found = listed();
  markChips(form);
  redraw(none, all.length === 0 ? adding.hidden && empty('No server is configured.', ...nextSteps())
    : found.length === 0 && empty('No server matches.', para(anchor(link('servers'), 'Show all servers'))));
  form.hidden = download.hidden = all.length === 0;
  const connected = all.filter((it) => it.state === 'connected').length;
  count.textContent = all.length ? `${number(connected)} of ${number(all.length)} connected${found.length < all.length ? `, ${number(found.length)} shown` : ''}` : '';
  redraw(table, found.length > 0 && el('table.rows', {},
    sortHead(COLUMNS, sort, (to) => change({ sort: to }, true)),
    el('tbody', {}, found.slice(0, limit).map((it) => row(it, it.name === name)))));
  more.hidden = found.length <= limit;
  more.textContent = `Show all ${number(found.length)}`;
  const named = all.find((it) => it.name === name);
  if (named) openPanel(name, named);
  else closePanel();
}

/** The reason of a state without the words of the state itself. */
function brief({ state: now, reason }) {
  const words = now.replace('-', ' ');
  return reason.startsWith(words) ? reason.slice(words.length).replace(/^:? /, '') : reason;
}

function row(server, isOpen) {
  const { name, calls } = server;
  const counted = (value, parameters, kind = 'num') => el('td', { class: kind }, value ? anchor(link('activity', { server: name, ...parameters }), number(value)) : zero());
  const time = (us) => el('td.num late', {}, (us && took(us / 1000)) || el('span.quiet', {}, '–'));
  const line = samples.get(name) ?? [];
  const rates = line.slice(1).map((it, at) => Math.max(it.total - line[at].total, 0) / (it.at - line[at].at));
  const places = line.slice(1).map((it) => Math.max(100 + 100 * (it.at - Date.now()) / SPAN_MS, 0));
  return el('tr', { 'data-key': name, 'data-name': name, class: isOpen ? 'open' : undefined },
    el('th', { scope: 'row' }, el('a', { href: link('servers', { ...here().parameters, name }), 'aria-current': isOpen && 'true' }, identifier(name, { title: visible(name) }))),
    el('td.wide', {}, el('span.cut', {}, tag(server.state), server.quarantined > 0 && [' ', el('a.warning', { href: link('tools', { server: name, held: 'yes' }) }, `review ${number(server.quarantined)} in quarantine`)],
      server.reason && [' ', el('bdi.quiet', { title: visible(server.reason) }, brief(server))])),
    el('td.num', {}, server.tools ? anchor(link('tools', { server: name }), number(server.tools)) : zero()),
    counted(calls.total, {}), counted(calls.error, { status: 'error' }, 'num error-count'), counted(calls.blocked + calls.rejected, { status: 'blocked,rejected' }),
    time(calls.duration_us.p50), time(calls.duration_us.p99),
    el('td.late', {}, (rates.some(Boolean) ? spark(rates, `Calls of ${visible(name)} over the last 10 minutes`, 'calls', places) : zero())));
}

/** What to do if there is no server. */
export const nextSteps = () => [para(anchor(link('servers', { add: 'yes' }), 'Add one here'), isLocal() ? ', or in a terminal.' : ' or in a terminal on its machine.'), ...serverCommands()];

/** Opens the panel of a new server. */
async function added([name], isAll) {
  await load();
  if (isAll) change({ add: '', name }, true);
}

/** Shows or hides the form that adds servers; from another machine the commands, because the proxy refuses the form. */
function showAdding(shown) {
  if (shown !== adding.hidden) return;
  const close = () => change({ add: '' }, true);
  fill(adding, shown && (isLocal() ? serverForm(() => all.map((it) => it.name), added, close)
    : el('div.empty card', {}, serverCommands(), quiet('Run these on the machine of the proxy: it adds no server that a browser elsewhere asks for.'))));
  adding.hidden = !shown;
  adder.setAttribute('aria-expanded', shown);
  if (shown) adding.querySelector('input')?.focus();
}

// ---- The panel

function openPanel(name, server) {
  if (open?.name !== name) {
    open = content(name, server.state === 'failed');
    fill(details, el('div.top', {}, open.title, panelButtons(table, 'server', () => change({ name: '' }))), open.parts);
    details.hidden = false;
    details.scrollTop = 0;
    open.draw(server);
    details.focus({ preventScroll: true });
  } else open.draw(server);
}

function closePanel() {
  if (!open) return;
  const { name } = open;
  const focused = details.contains(document.activeElement) || document.activeElement === document.body;
  open = undefined;
  details.hidden = true;
  fill(details);
  if (focused) table.querySelector(`tr[data-name="${CSS.escape(name)}"] th a`)?.focus();
}

function content(name, hasFailed) {
  const title = el('div', {});
  const about = el('div', {});
  const actions = el('div.answer', {});
  const reach = el('div.reach', {});
  const [states, definitions] = [el('div.history', {}), el('div.history', { id: 'definitions' })];
  const parts = [actions, about, el('h3', {}, 'How it is reached'), reach, log(name, hasFailed), el('h3', {}, 'Latest changes of its state'), states,
    el('h3', {}, 'Latest changes of its definitions'), definitions];
  let [drawn, changed] = [];
  attempt(async () => {
    const { data } = await ask('config');
    const { command: program, args, url, cwd } = data.standing.mcpServers?.[name] ?? {};
    const words = [program, ...(Array.isArray(args) ? args : [args])].filter((word) => word !== undefined);
    const isThere = words.length > 0 || url;
    fill(reach, pairs(['command', words.length > 0 && command(words.map(quoted).join(' '))], ['URL', url && command(url)], ['folder', cwd && command(cwd)],
      ['to change it', isThere && hasFailed && command(`mcpproxy upstream add --replace ${quoted(name)} ${url ? 'URL' : '-- COMMAND'}`)],
      ['to remove it', isThere && !isLocal() && command(`mcpproxy upstream remove ${quoted(name)}`)])
      ?? quiet('It is not in the config in force.'));
  });
  const latest = (place, type, words) => attempt(async () => {
    const { data } = await ask('activity', { type, server: name, limit: CHANGES });
    const said = (it) => [happened(it), it.error_message].filter(Boolean).map((part, at) => [at ? ': ' : ' ', el('bdi', {}, part)]);
    fill(place, data.activities.length ? el('ul', {}, data.activities.map((it) => el('li', {}, when(it.timestamp), said(it))))
      : quiet('No records.'),
    para(anchor(link('activity', { server: name, type }), words)));
  });
  const look = (type) => {
    if (type !== 'catalog_change') latest(states, 'server_change', 'All state changes');
    if (type !== 'server_change') latest(definitions, 'catalog_change', 'All definition changes');
  };
  return {
    name,
    title,
    parts,
    look,
    draw(server) {
      const said = JSON.stringify(server);
      if (said === drawn) return;
      drawn = said;
      redraw(title, el('h2', {}, identifier(name)), el('div.tags', {}, tag(server.state)));
      redraw(about, described(server));
      const wanted = buttons(server);
      // Nobody's button goes away under their finger.
      if (wanted.map((it) => it.textContent).join() !== [...actions.children].map((it) => it.textContent).join()) {
        const focused = actions.contains(document.activeElement);
        fill(actions, wanted);
        if (focused) actions.firstElementChild.focus();
      }
      const now = `${server.since} ${server.tools} ${server.quarantined}`;
      if (now !== changed) look();
      changed = now;
    },
  };
}

/** A word of a command line as a shell reads it. */
const quoted = (word) => (/^[\w@%+=:,./*-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);

function described(server) {
  const { name, calls } = server;
  const records = (parameters, words) => anchor(link('activity', { server: name, ...parameters }), words);
  const refused = calls.blocked + calls.rejected;
  const times = (us) => calls.total > 0 && `median ${took(us.p50 / 1000) || '–'}, p99 ${took(us.p99 / 1000) || '–'}`;
  return nodes(
    server.reason && el('p', { class: ['failed', 'needs-login', 'throttled'].includes(server.state) ? 'wrong' : 'quiet' }, server.reason),
    login(server),
    nonconforming(server),
    server.quarantined > 0 && para('No agent sees its tools in quarantine. Next: ', anchor(link('tools', { server: name, held: 'yes' }), 'compare and approve them'), ', or ', command(`mcpproxy tools diff ${quoted(name)}:TOOL`)),
    pairs(['tools', server.tools ? anchor(link('tools', { server: name }), number(server.tools)) : '0'],
      ['in quarantine', server.quarantined ? anchor(link('tools', { server: name, held: 'yes' }), number(server.quarantined)) : ''],
      ['since', when(server.since)], ['transport', server.protocol], ['MCP revision', server.protocol_version], ['reported name', server.server_info],
      ['calls', calls.total ? records({}, number(calls.total)) : '0'], ['errors', calls.error && records({ status: 'error' }, number(calls.error))],
      ['refused', refused && records({ status: 'blocked,rejected' }, number(refused))],
      ['duration', times(calls.duration_us)], ['proxy overhead', times(calls.overhead_us)]));
}

/** Items of its lists that do not conform to MCP: repaired, or left out. */
function nonconforming({ nonconforming: found }) {
  if (!found) return undefined;
  const note = (it) => el('li', {}, `${it.list} '${it.item}' ${it.action}: ${it.reason}`);
  const more = found.repaired + found.omitted - found.notes.length;
  return el('details', {}, el('summary', {}, `List items repaired: ${found.repaired}, left out: ${found.omitted}`),
    el('ul', {}, ...found.notes.map(note)), more > 0 && quiet(`and ${more} more`));
}

const needsLogin = (server) => server.state === 'needs-login' || /needs login/.test(server.reason);

/** State of a login. The user opens the address, because browsers block pop-ups. */
function login({ login: standing }) {
  if (!standing) return undefined;
  if (standing.state === 'failed') return trouble('The login failed: ', standing.reason);
  if (standing.state === 'beginning' || !/^https?:/.test(standing.open)) return quiet('The login is starting…');
  return para(el('a', { href: standing.open, target: '_blank', rel: 'noopener noreferrer' }, 'Open the login'),
    ', in a browser on the machine that the proxy runs on, until ', when(standing.until), '. ', copy(standing.open, 'address'));
}

function buttons(server) {
  const { name } = server;
  const does = (what, question) => async () => {
    if (question && !await confirmed(question, 'Disable')) return;
    act(async () => {
      try {
        await send(`servers/${segment(name)}/${what}`);
      } finally {
        await load();
      }
    });
  };
  const settings = anchor(link('settings', { server: name }), 'Settings');
  const remove = isLocal() && button('Remove', () => withKey(`Remove ${name} from the config file? Its tools are removed for all agents.`, 'Remove', 'danger', async (key) => {
    await sendWithKey(key, `config/servers/${segment(name)}`, undefined, { method: 'DELETE' });
    change({ name: '' }, true);
    await load();
    return search;
  }), { class: 'deny' });
  if (server.state === 'disabled') return [button('Enable', does('enable'), { class: 'primary' }), settings, remove].filter(Boolean);
  return [
    needsLogin(server) && server.login?.state !== 'waiting' && button('Log in', does('login'), { class: 'primary' }),
    button('Restart', does('restart')), settings,
    button('Disable', does('disable', `Disable ${name}? Its tools are removed for all agents until it is enabled again.`)), remove,
  ].filter(Boolean);
}

/** Log of a server, followed while it is open. */
function log(name, isOpen) {
  const lines = el('pre.log', { tabindex: 0, role: 'log', 'aria-label': `Log of ${visible(name)}` });
  let [cursor, timer, kept] = [undefined, undefined, []];
  const more = async () => {
    const { data } = await ask(`servers/${segment(name)}/logs`, { limit: LOG_LINES, cursor });
    const bottom = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 20;
    cursor = data.next_cursor;
    kept = [...kept, ...data.lines].slice(-MAX_LOG_LINES);
    if (data.lines.length || !kept.length) {
      lines.textContent = kept.length ? visible(kept.map((it) => `${clock(new Date(it.time))}  ${it.line}`).join('\n')) : 'It has written nothing yet.';
    }
    if (bottom) lines.scrollTop = lines.scrollHeight;
  };
  const follow = async () => {
    if (!made.open || !made.isConnected) return;
    if (!document.hidden && made.offsetParent) await attempt(more);
    clearTimeout(timer);
    timer = setTimeout(follow, FOLLOW_MS);
  };
  const made = el('details', { open: isOpen, toggle: () => (made.open ? follow() : clearTimeout(timer)) }, el('summary', {}, 'Log'), lines);
  return made;
}

listen((record) => {
  if (open?.name === record.server_name && ['server_change', 'catalog_change'].includes(record.type)) open.look(record.type);
});

const typed = () => change({ q: search.value.trim(), state: state.value }, true);
form.addEventListener('submit', (event) => event.preventDefault());
search.addEventListener('input', settled(typed));
state.addEventListener('change', typed);
rowsOpen(table);
