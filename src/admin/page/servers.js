// The servers view: one line each, and a panel with the details and actions of the one that is open.

import { button, chip, clock, command, copy, el, empty, fill, keyHelp, markChips, nodes, number, option, pairs, panel, redraw, rowsOpen, settled, sortHead, sorted, stepRows, tag, took, visible, when } from './dom.js';
import { listen } from './live.js';
import { spark } from './plot.js';
import { happened } from './record.js';
import { act, ask, attempt, segment, send } from './rest.js';
import { change, here, link } from './route.js';

const LOG_LINES = 200; // initial lines of a server's stderr
const MAX_LOG_LINES = 1000; // maximum lines kept while following
const FOLLOW_MS = 2000;
const STATES = ['failed', 'needs-login', 'throttled', 'connecting', 'connected', 'disabled']; // in the order of the list
const PAGE = 100; // lines shown before somebody asks for more
const KEPT = 60; // samples of a server's calls: ten minutes
const SAMPLE_MS = 9000; // minimum time between two samples
const CHANGES = 5; // latest changes in each list of the panel
const COLUMNS = [
  { words: 'Server', by: (it) => it.name, isText: true },
  { words: 'State', kind: 'wide' },
  { words: 'Tools', kind: 'num', by: (it) => it.tools },
  { words: 'Calls', kind: 'num', title: 'since the start of the proxy', by: ({ calls }) => calls.total },
  { words: 'Errors', kind: 'num', title: 'calls that failed', by: ({ calls }) => calls.error },
  { words: 'Refused', kind: 'num', title: 'rejected before the call, or its answer blocked', by: ({ calls }) => calls.blocked + calls.rejected },
  { words: 'Median', kind: 'num late', title: 'half of the calls were faster', by: ({ calls }) => calls.duration_us.p50 },
  { words: 'p99', kind: 'num late', title: '99 of 100 calls were faster', by: ({ calls }) => calls.duration_us.p99 },
  { words: 'Last 10 min', kind: 'late', title: 'calls in the last minutes, while this page was open' },
];

const search = el('input', { name: 'q', type: 'search', autocomplete: 'off', spellcheck: 'false', placeholder: 'Search servers', 'aria-label': 'Search', maxlength: 256 });
const state = el('select', { name: 'state' }, option('', 'all'), STATES.map((name) => option(name)));
const adder = button('Add a server', () => showAdding(adding.hidden), { 'aria-expanded': 'false', 'aria-controls': 'adding' });
const form = el('form', { id: 'server-form', class: 'chips', role: 'search' }, search, chip('State', state), adder);
const adding = el('div', { id: 'adding', class: 'empty card', role: 'group', 'aria-label': 'Add a server', hidden: true });
const count = el('p', { id: 'server-count', class: 'quiet', role: 'status' });
const none = el('div', {});
const table = el('div', { id: 'servers' });
const more = button('Show all', () => {
  limit = Infinity;
  draw();
}, { hidden: true });
const details = panel('server', 'Server');
let [asked, limit, all, open] = [0, PAGE, [], undefined];
const samples = new Map(); // by server: { at, total }, oldest first

export const servers = {
  name: 'servers',
  label: 'Servers',
  root: el('div', {}, form, adding, count, none, el('div', { class: 'split' }, el('div', { class: 'list' }, table, more, keyHelp()), details)),

  show(parameters) {
    if (document.activeElement !== search) search.value = parameters.q ?? '';
    state.value = STATES.includes(parameters.state) ? parameters.state : '';
    if (!parameters.name) closePanel();
    if (all.length) draw();
    servers.refresh();
  },

  refresh: () => attempt(load),

  /** Counts the calls of each server, for the lines of the next view of them. */
  sample: () => attempt(async () => sampled((await ask('servers')).data.servers)),

  forget() {
    asked += 1;
    [limit, all] = [PAGE, []];
    samples.clear();
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
  const at = performance.now();
  for (const { name, calls } of found) {
    const line = samples.get(name) ?? [];
    if (line.length && line.at(-1).total > calls.total) line.length = 0; // another process
    if (!line.length || at - line.at(-1).at > SAMPLE_MS) line.push({ at, total: calls.total });
    samples.set(name, line.slice(-KEPT));
  }
  const there = new Set(found.map((it) => it.name));
  for (const name of samples.keys()) if (!there.has(name)) samples.delete(name);
}

async function load() {
  const mine = ++asked;
  const { data } = await ask('servers');
  if (mine !== asked) return;
  sampled(data.servers);
  all = data.servers.toSorted((one, other) => STATES.indexOf(one.state) - STATES.indexOf(other.state) || (one.name < other.name ? -1 : 1));
  draw();
}

function draw() {
  const { q = '', state: wanted, name, sort } = here().view === 'servers' ? here().parameters : {};
  const word = q.toLowerCase();
  const found = all.filter((it) => (!wanted || it.state === wanted) && [it.name, it.reason, it.server_info].some((text) => text?.toLowerCase().includes(word)));
  markChips(form);
  redraw(none, all.length === 0 ? empty('No server is configured.', ...nextSteps())
    : found.length === 0 && empty('No server matches.', el('p', {}, el('a', { href: link('servers') }, 'Show all servers'))));
  form.hidden = all.length === 0;
  const connected = all.filter((it) => it.state === 'connected').length;
  count.textContent = all.length ? `${number(connected)} of ${number(all.length)} connected${found.length < all.length ? `, ${number(found.length)} shown` : ''}` : '';
  redraw(table, found.length > 0 && el('table', { class: 'rows' },
    sortHead(COLUMNS, sort, (to) => change({ sort: to }, true)),
    el('tbody', {}, sorted(found, COLUMNS, sort).slice(0, limit).map((it) => row(it, it.name === name)))));
  more.hidden = found.length <= limit;
  more.textContent = `Show all ${number(found.length)}`;
  const one = name && all.find((it) => it.name === name);
  if (one) openPanel(one);
  else closePanel();
}

/** The reason of a state without the words of the state itself. */
function brief({ state: now, reason }) {
  const words = now.replace('-', ' ');
  return reason.startsWith(words) ? reason.slice(words.length).replace(/^:? /, '') : reason;
}

function row(server, isOpen) {
  const { name, calls } = server;
  const counted = (value, parameters, kind = 'num') => el('td', { class: kind }, value ? el('a', { href: link('activity', { server: name, ...parameters }) }, number(value)) : el('span', { class: 'quiet' }, '0'));
  const time = (us) => el('td', { class: 'num late' }, (us && took(us / 1000)) || el('span', { class: 'quiet' }, '–'));
  const line = samples.get(name) ?? [];
  const rates = line.slice(1).map((it, at) => (it.total - line[at].total) * 1000 / (it.at - line[at].at));
  return el('tr', { 'data-key': name, 'data-name': name, class: isOpen ? 'open' : undefined },
    el('th', { scope: 'row' }, el('a', { href: link('servers', { ...here().parameters, name }), 'aria-current': isOpen && 'true' }, el('bdi', { title: visible(name) }, name))),
    el('td', { class: 'wide' }, el('span', { class: 'cut' }, tag(server.state), server.quarantined > 0 && [' ', el('a', { class: 'warning', href: link('tools', { server: name, held: 'yes' }) }, `${number(server.quarantined)} in quarantine`)],
      server.reason && [' ', el('bdi', { class: 'quiet', title: visible(server.reason) }, brief(server))])),
    el('td', { class: 'num' }, server.tools ? el('a', { href: link('tools', { server: name }) }, number(server.tools)) : el('span', { class: 'quiet' }, '0')),
    counted(calls.total, {}), counted(calls.error, { status: 'error' }, 'num error-count'), counted(calls.blocked + calls.rejected, { status: 'blocked,rejected' }),
    time(calls.duration_us.p50), time(calls.duration_us.p99),
    el('td', { class: 'late' }, rates.some(Boolean) && spark(rates, `Calls of ${visible(name)} in the last minutes`)));
}

/** Instructions if there is no server. */
export const nextSteps = () => [
  el('p', {}, 'Add one: ', command('mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp')),
  el('p', {}, 'Or import those of another program: ', command('mcpproxy import')),
];

/** Shows or hides the commands that add servers and tokens: a page session may neither start programs nor create credentials. */
function showAdding(shown) {
  if (!adding.childElementCount) {
    fill(adding, nextSteps(), el('p', {}, 'Create a token for an agent: ', command('mcpproxy token create NAME --server SERVER')),
      el('p', { class: 'quiet' }, 'Run these on the machine of the proxy: this page can neither start programs nor create tokens.'));
  }
  adding.hidden = !shown;
  adder.setAttribute('aria-expanded', shown);
}

// ---- The panel

function openPanel(server) {
  if (open?.name !== server.name) {
    open = content(server.name);
    fill(details, el('div', { class: 'top' }, open.title, button('✕', () => change({ name: '' }), { 'aria-label': 'Close' })), open.parts);
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

function content(name) {
  const title = el('div', {});
  const about = el('div', {});
  const actions = el('div', { class: 'answer' });
  const reach = el('div', { class: 'reach' });
  const [states, definitions] = [el('div', { class: 'history' }), el('div', { id: 'definitions', class: 'history' })];
  const parts = [actions, about, el('h3', {}, 'How it is reached'), reach, log(name), el('h3', {}, 'Latest changes of its state'), states,
    el('h3', {}, 'Latest changes of its definitions'), definitions];
  let [drawn, changed] = [];
  attempt(async () => {
    const { data } = await ask('config');
    const { command: program, args, url, cwd } = data.standing.mcpServers?.[name] ?? {};
    const words = [program, ...(Array.isArray(args) ? args : [args])].filter((word) => word !== undefined);
    fill(reach, pairs(['command', words.length > 0 && command(words.map(quoted).join(' '))], ['URL', url && command(url)], ['folder', cwd && command(cwd)])
      ?? el('p', { class: 'quiet' }, 'It is not in the config in force.'));
  });
  const latest = (place, type, words) => attempt(async () => {
    const { data } = await ask('activity', { type, server: name, limit: CHANGES });
    const said = (it) => [happened(it), it.error_message].filter(Boolean).map((part, at) => [at ? ': ' : ' ', el('bdi', {}, part)]);
    fill(place, data.activities.length ? el('ul', {}, data.activities.map((it) => el('li', {}, when(it.timestamp), said(it))))
      : el('p', { class: 'quiet' }, 'No records.'),
    el('p', {}, el('a', { href: link('activity', { server: name, type }) }, words)));
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
      redraw(title, el('h2', {}, el('bdi', {}, name)), el('div', { class: 'tags' }, tag(server.state)));
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
  const records = (parameters, words) => el('a', { href: link('activity', { server: name, ...parameters }) }, words);
  const refused = calls.blocked + calls.rejected;
  const times = (us) => calls.total > 0 && `median ${took(us.p50 / 1000) || '–'}, p99 ${took(us.p99 / 1000) || '–'}`;
  return nodes(
    server.reason && el('p', { class: ['failed', 'needs-login', 'throttled'].includes(server.state) ? 'wrong' : 'quiet' }, server.reason),
    login(server),
    nonconforming(server),
    pairs(['tools', server.tools ? el('a', { href: link('tools', { server: name }) }, number(server.tools)) : '0'],
      ['in quarantine', server.quarantined ? el('a', { href: link('tools', { server: name, held: 'yes' }) }, number(server.quarantined)) : ''],
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
    el('ul', {}, ...found.notes.map(note)), more > 0 && el('p', { class: 'quiet' }, `and ${more} more`));
}

const needsLogin = (server) => server.state === 'needs-login' || /needs login/.test(server.reason);

/** State of a login. The user opens the address, because browsers block pop-ups. */
function login({ login: standing }) {
  if (!standing) return undefined;
  if (standing.state === 'failed') return el('p', { class: 'wrong' }, 'The login failed: ', standing.reason);
  if (standing.state === 'beginning' || !/^https?:/.test(standing.open)) return el('p', { class: 'quiet' }, 'The login is starting…');
  return el('p', {}, el('a', { href: standing.open, target: '_blank', rel: 'noopener noreferrer' }, 'Open the login'),
    ', in a browser on the machine that the proxy runs on, until ', when(standing.until), '. ', copy(standing.open, 'address'));
}

function buttons(server) {
  const { name } = server;
  const does = (what, question) => () => {
    if (question && !confirm(visible(question))) return;
    act(async () => {
      try {
        await send(`servers/${segment(name)}/${what}`);
      } finally {
        await load();
      }
    });
  };
  const settings = el('a', { href: link('settings', { server: name }) }, 'Its settings');
  if (server.state === 'disabled') return [button('Enable', does('enable'), { class: 'primary' }), settings];
  return [
    needsLogin(server) && server.login?.state !== 'waiting' && button('Log in', does('login'), { class: 'primary' }),
    button('Restart', does('restart')), settings,
    button('Disable', does('disable', `Disable ${name}? Its tools are removed for all agents until it is enabled again.`), { class: 'deny' }),
  ].filter(Boolean);
}

/** Stderr output of a server, followed while it is open. */
function log(name) {
  const lines = el('pre', { class: 'log', tabindex: 0, role: 'log', 'aria-label': `Stderr of ${visible(name)}` });
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
  const made = el('details', { toggle: () => (made.open ? follow() : clearTimeout(timer)) }, el('summary', {}, 'Log'), lines);
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
