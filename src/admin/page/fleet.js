// The fleet as seen by this node: states, versions, ledgers, clocks and faults. Shown only in a fleet.

import { bytes, command, el, fill, number, pairs, redraw, tag, took } from './dom.js';
import { ask, attempt } from './rest.js';

const about = el('div', {});
const wrong = el('div', { id: 'fleet-faults', 'aria-live': 'polite' });
const table = el('div', { id: 'fleet-nodes' });
const chains = el('div', { id: 'fleet-chains' });
/** Column heads: words, class and title. */
const NODE_HEADS = [['Node'], ['State'], ['Version'], ['Config', undefined, 'start of the hash of the config'],
  ['Indexes', undefined, 'nodes whose records it has in its index'], ['In the store', 'num', 'number of its last record in the store'],
  ['Not stored yet'], ['Lost', 'num', 'records that its log could not keep'], ['Sessions', 'num'], ['Clock', undefined, 'difference from the clock of this node']];
const CHAIN_HEADS = [['Node'], ['Seen by'], ['Records'], ['Segments', 'num'], ['Gaps'], ['Missing', 'num', 'records that no segment has'], ['Faults', 'num']];
let asked = 0;

export const fleet = {
  name: 'fleet',
  label: 'Fleet',
  root: el('div', {}, wrong, about, el('h2', {}, 'Nodes'), table,
    el('h2', {}, 'Chains in the store'), chains,
    el('p', { class: 'quiet below' }, 'To verify the chains in the store: ', command('mcpproxy activity verify --store URL'))),
  show: () => fleet.refresh(),
  refresh: () => attempt(load),
  /** Whether this node belongs to a fleet. */
  exists: async () => (await ask('fleet')).data.node !== null,
  forget() {
    asked += 1;
    for (const place of [about, wrong, table, chains]) fill(place);
  },
};

async function load() {
  const mine = ++asked;
  const { data } = await ask('fleet');
  if (mine !== asked) return;
  redraw(wrong, data.faults.length > 0 && el('div', { class: 'card fault' }, el('h2', {}, 'What is wrong'),
    el('ul', {}, data.faults.map((fault) => el('li', {}, el('bdi', {}, fault))))));
  const { ledger } = data;
  redraw(about, el('div', { class: 'card facts' }, pairs(['this node', el('bdi', {}, data.node ?? '–')], ['fleet', data.fleet],
    ['living', `${number(data.living)} of ${number(data.nodes.length)}`],
    ['in the store', ledger && `up to record ${number(ledger.stored)}`],
    ['not stored yet', ledger && lag(ledger)], ['segments since the start', ledger && number(ledger.segments)],
    ['failed attempts', ledger && ledger.failures > 0 && number(ledger.failures)])));
  redraw(table, grid('Nodes of the fleet', NODE_HEADS, data.nodes.map(line)));
  redraw(chains, data.chains.length === 0 ? el('p', { class: 'quiet' }, 'None examined yet.') : grid('Chains in the store', CHAIN_HEADS, data.chains.map(chain)));
}

/** A table that scrolls in its place. */
const grid = (label, heads, rows) => el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label },
  el('table', { class: 'rows' },
    el('thead', {}, el('tr', {}, heads.map(([words, kind, title]) => el('th', { scope: 'col', class: kind, title }, words)))),
    el('tbody', {}, rows)));

function chain(it) {
  const counted = (value) => el('td', { class: 'num' }, number(value));
  const gaps = it.gaps.slice(0, 3).map((gap) => `${number(gap.first)} to ${number(gap.last)}`).join(', ');
  return el('tr', { 'data-key': `${it.node} ${it.seen_by}` }, el('th', { scope: 'row' }, el('bdi', {}, it.node)), el('td', {}, it.seen_by),
    el('td', {}, it.segments ? `${number(it.first)} to ${number(it.last)}` : '–'), counted(it.segments),
    el('td', {}, it.gaps.length ? `${number(it.gaps.length)}${it.more ? '+' : ''}: ${gaps}` : 'none'), counted(it.missing_records), counted(it.faults));
}

/** The part of the fleet's records that a node indexes (`cluster.index`). */
const keeps = (index) => (index === 'false' ? 'its own' : index === 'true' ? 'all' : index && `shard ${index}`);

const lag = (it) => (it.lag_records ? `${number(it.lag_records)} records, ${bytes(it.lag_bytes)}, ${took(it.lag_ms)}` : 'nothing');

function line(node) {
  const said = node.said ?? {};
  const of = (value) => el('td', {}, el('bdi', {}, value ?? '–'));
  const counted = (value) => el('td', { class: 'num' }, value === undefined ? '–' : number(value));
  const clock = node.clock_ahead_ms === null ? '–' : node.clock_is_off ? `${Math.round(-node.clock_ahead_ms / 1000)} s` : 'ok';
  return el('tr', { 'data-key': node.node }, el('th', { scope: 'row' }, el('bdi', {}, node.node), node.is_self && ' (this)'),
    el('td', {}, tag(node.state), node.used_twice && ' used twice', node.fault && el('p', { class: 'wrong' }, node.fault)),
    of(said.version && `${said.version} ${said.commit.slice(0, 8)}`), of(said.config?.slice(0, 8)), of(keeps(said.index)),
    counted(said.ledger?.stored), el('td', {}, said.ledger ? lag(said.ledger) : '–'), counted(said.ledger?.lost), counted(said.sessions), of(clock));
}
