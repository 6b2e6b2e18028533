// The fleet as seen by this node: states, versions, ledgers, clocks and faults. Shown only in a fleet.

import { anchor, button, bytes, chip, command, copied, el, empty, fill, identifier, lasted, markChips, number, option, pairs, para, quiet, redraw, rowsOpen, searchField, settled, sortHead, sorted, stepRows, tag, took, trouble } from './dom.js';
import { tile } from './now.js';
import { act, ask, attempt } from './rest.js';
import { change, here, link } from './route.js';

const STATES = ['living', 'silent', 'stopped', 'unknown'];
const COLUMNS = [
  { words: 'Node', by: (it) => it.node, isText: true },
  { words: 'State', by: (it) => STATES.indexOf(it.state) },
  { words: 'Heartbeat', kind: 'num', title: 'time since its last new heartbeat', by: (it) => it.silent_ms },
  { words: 'Uptime', kind: 'num', title: 'time since its start, as of its last heartbeat', by: (it) => uptime(it) ?? -1 },
  { words: 'Version', by: (it) => it.said?.version ?? '', isText: true },
  { words: 'Config', title: 'start of the hash of the config' },
  { words: 'Indexes', title: 'nodes whose records it has in its index' },
  { words: 'In the store', kind: 'num', title: 'number of its last record in the store', by: (it) => it.said?.ledger?.stored ?? -1 },
  { words: 'Not stored yet', by: (it) => it.said?.ledger?.lag_records ?? -1 },
  { words: 'Lost', kind: 'num', title: 'records that its log could not keep', by: (it) => it.said?.ledger?.lost ?? -1 },
  { words: 'Sessions', kind: 'num', by: (it) => it.said?.sessions ?? -1 },
  { words: 'Clock', title: 'difference from the clock of this node' },
];
const CHAIN_COLUMNS = [
  { words: 'Node' }, { words: 'Seen by', title: 'names: the segments are listed; segments: their contents are read, too' }, { words: 'Records' },
  { words: 'Segments', kind: 'num' }, { words: 'Gaps' }, { words: 'Missing', kind: 'num', title: 'records that no segment has' }, { words: 'Faults', kind: 'num', title: 'invalid or overlapping segments' },
];

const about = el('div', {});
const wrong = el('div', { id: 'fleet-faults', 'aria-live': 'polite' });
const tiles = el('div.tiles', {});
const search = searchField('Search nodes');
const state = el('select', { name: 'state' }, option('', 'all'), STATES.map((name) => option(name)));
const form = el('form.chips', { id: 'fleet-form', role: 'search' }, search, chip('State', state),
  button('Ping the nodes', () => act(ping), { title: 'Ask each living node for an answer, as calls between nodes do' }));
const table = el('div', { id: 'fleet-nodes' });
const chains = el('div', { id: 'fleet-chains' });
const none = el('div', { hidden: true }, empty('This proxy is not part of a fleet.', para('To set one up: ', command('mcpproxy guide fleet-setup'))));
const whole = el('div', {}, wrong, tiles, about, el('h2', {}, 'Nodes'), form, table, el('h2', {}, 'Chains in the store'), chains,
  el('p.quiet below', {}, 'To verify the chains in the store: ', command('mcpproxy activity verify --store URL')));
let [asked, seen, pinged] = [0, undefined, new Map()]; // `pinged`: by node, the answer to the last ping

export const fleet = {
  name: 'fleet',
  label: 'Fleet',
  takes: ['q', 'state', 'sort'],
  root: el('div', {}, none, whole),
  show({ q = '', state: wanted }) {
    if (document.activeElement !== search) search.value = q;
    state.value = STATES.includes(wanted) ? wanted : '';
    markChips(form);
    if (seen) draw();
    fleet.refresh();
  },
  refresh: () => attempt(load, 'fleet'),
  /** Whether this node belongs to a fleet. */
  exists: async () => (await ask('fleet')).data.node !== null,
  forget() {
    asked += 1;
    seen = undefined;
    pinged.clear();
    form.reset();
    for (const place of [about, wrong, tiles, table, chains]) fill(place);
  },
  keys: (event) => stepRows(event, table),
};

async function load(parameters) {
  const mine = ++asked;
  const { data } = await ask('fleet', parameters);
  if (mine !== asked) return;
  seen = data;
  if (parameters) pinged = new Map(data.nodes.map((it) => [it.node, it]));
  draw();
}

const ping = () => load({ reach: true });

function draw() {
  const { faults, ledger, nodes, facts } = seen;
  [none.hidden, whole.hidden] = [seen.node !== null, seen.node === null];
  redraw(wrong, faults.length > 0 && el('div.card fault', {}, el('h2', {}, 'Problems'),
    el('ul', {}, faults.map((fault) => el('li', {}, el('bdi', {}, fault))))));
  const states = STATES.map((name) => [name, nodes.filter((it) => it.state === name).length]).filter(([name, many]) => many && name !== 'living');
  const lost = nodes.reduce((sum, it) => sum + (it.said?.ledger?.lost ?? 0), 0);
  redraw(tiles, tile('Living nodes', `${number(seen.living)} of ${number(nodes.length)}`, { note: states.map(([name, many]) => `${number(many)} ${name}`).join(', ') || 'all of them' }),
    ledger && [
      tile('In the store', number(ledger.stored), { title: 'Records of this node in the store', note: `of ${number(ledger.committed)} in its log` }),
      tile('Not stored yet', number(ledger.lag_records), { title: 'Records of this node that are not in the store yet', note: ledger.lag_records ? `${bytes(ledger.lag_bytes)}, oldest ${took(ledger.lag_ms) || 'now'}` : 'nothing' }),
      tile('Failed attempts', number(ledger.failures), { title: 'To write segments of this node, since its start', note: `${number(ledger.segments)} segments written` })],
    tile('Lost records', number(lost), { title: 'Records that the logs of the nodes could not keep', note: 'by all nodes' }),
    facts && tile('Shared state', facts.failing ? 'failing' : facts.stale ? 'stale' : 'current', { title: facts.failing ?? 'Approvals, sessions and limits that the nodes share',
      note: facts.age_ms === null ? 'not read yet' : `read ${lasted(facts.age_ms / 1000)} ago`, isUrgent: Boolean(facts.failing || facts.stale) }));
  const own = nodes.find((it) => it.is_self);
  redraw(about, el('div.card facts', {}, pairs(['this node', el('bdi', {}, seen.node ?? '–')],
    ['fleet', seen.fleet && copied(seen.fleet, 'id of the fleet')],
    ['its address', own?.said?.advertise && el('span.mono', {}, own.said.advertise)], ['store', seen.away ?? 'reached'])));
  const { q = '', state: wanted, sort } = here().parameters;
  const found = nodes.filter((it) => (!wanted || it.state === wanted) && it.node.toLowerCase().includes(q.toLowerCase()));
  redraw(table, found.length === 0 ? empty('No node matches.', para(anchor(link('fleet'), 'Show all nodes')))
    : grid('Nodes of the fleet', sortHead(COLUMNS, sort, (to) => change({ sort: to }, true)), sorted(found, COLUMNS, sort).map((it) => line(it, own?.said))));
  redraw(chains, seen.chains.length === 0 ? quiet('None examined yet.') : grid('Chains in the store', sortHead(CHAIN_COLUMNS), seen.chains.map(chain)));
}

/** A table that scrolls in its place. */
const grid = (label, head, rows) => el('div.scroll', { tabindex: 0, role: 'region', 'aria-label': label },
  el('table.rows', {}, head, el('tbody', {}, rows)));

/** The name of a node, which leads to its records. */
const named = (node, ...more) => el('th', { scope: 'row' }, el('a', { href: link('activity', { node }), title: 'Its records' }, identifier(node)), more);

function chain(it) {
  const counted = (value, isBad) => el('td', { class: isBad && value ? 'num error-count' : 'num' }, number(value));
  const gaps = it.gaps.slice(0, 3).map((gap) => `${number(gap.first)} to ${number(gap.last)}`).join(', ');
  return el('tr', { 'data-key': `${it.node} ${it.seen_by}` }, named(it.node), el('td', {}, it.seen_by),
    el('td', {}, it.segments ? `${number(it.first)} to ${number(it.last)}` : '–'), counted(it.segments),
    el('td', { class: it.gaps.length ? 'error-count' : undefined }, it.gaps.length ? `${number(it.gaps.length)}${it.more ? '+' : ''}: ${gaps}` : 'none'), counted(it.missing_records, true), counted(it.faults, true));
}

/** The part of the fleet's records that a node indexes (`cluster.index`). */
const keeps = (index) => (index === 'false' ? 'its own' : index === 'true' ? 'all' : index && `shard ${index}`);

const lag = (it) => (it.lag_records ? `${number(it.lag_records)} records, ${bytes(it.lag_bytes)}, ${took(it.lag_ms)}` : 'nothing');

/** Seconds that a node had been running at its last heartbeat. */
const uptime = ({ said }) => said && (said.at - said.started_at) / 1000;

function line(node, own = {}) {
  const said = node.said ?? {};
  const of = (value) => el('td', {}, el('bdi', {}, value ?? '–'));
  const counted = (value, isBad) => el('td', { class: isBad && value ? 'num error-count' : 'num' }, value === undefined ? '–' : number(value));
  const clock = node.clock_ahead_ms === null ? '–' : node.clock_is_off ? `${Math.round(-node.clock_ahead_ms / 1000)} s` : 'ok';
  const differs = said.version !== own.version || said.commit !== own.commit;
  const { reached, unreached } = (node.state === 'living' && pinged.get(node.node)) || {};
  return el('tr', { 'data-key': node.node }, named(node.node, node.is_self && ' (this)'),
    el('td', {}, tag(node.state), node.used_twice && ' used twice', typeof reached === 'boolean' && el('span', { class: reached ? 'quiet' : 'wrong' }, reached ? ' answers' : ' no answer'),
      [node.fault, unreached].map((words) => words && trouble(words))),
    el('td.num', {}, node.is_self ? '–' : `${lasted(node.silent_ms / 1000)} ago`), el('td.num', {}, node.said ? lasted(uptime(node)) : '–'),
    el('td', {}, said.version ? [el('bdi', {}, `${said.version} ${said.commit.slice(0, 8)}`), differs && el('span.warning', {}, ' differs')] : '–'),
    of(said.config?.slice(0, 8)), of(keeps(said.index)),
    counted(said.ledger?.stored), el('td', {}, said.ledger ? lag(said.ledger) : '–'), counted(said.ledger?.lost, true), counted(said.sessions),
    el('td', { class: node.clock_is_off ? 'error-count' : undefined }, clock));
}

const typed = () => change({ q: search.value.trim(), state: state.value }, true);
form.addEventListener('submit', (event) => event.preventDefault());
search.addEventListener('input', settled(typed));
state.addEventListener('change', typed);
for (const place of [table, chains]) rowsOpen(place);
