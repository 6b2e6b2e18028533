// The fleet as seen by this node: states, versions, ledgers, clocks and faults. Shown only in a fleet.

import { bytes, command, el, fill, number, pairs, redraw, tag, took } from './dom.js';
import { ask, attempt } from './rest.js';

const about = el('div', {});
const wrong = el('div', { id: 'fleet-faults', 'aria-live': 'polite' });
const table = el('div', { id: 'fleet-nodes' });
const chains = el('div', { id: 'fleet-chains' });
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
  redraw(about, el('div', { class: 'card' }, pairs(['this node', el('bdi', {}, data.node ?? '–')], ['fleet', data.fleet],
    ['living', `${number(data.living)} of ${number(data.nodes.length)}`],
    ['in the store', ledger && `up to record ${number(ledger.stored)}`],
    ['behind', ledger && lag(ledger)], ['segments since the start', ledger && number(ledger.segments)],
    ['failed attempts', ledger && ledger.failures > 0 && number(ledger.failures)])));
  const head = [['Node'], ['State'], ['Version'], ['Config', 'start of the hash of the config'],
    ['Keeps', 'records of other nodes that it indexes'], ['In the store', 'number of its last record in the store'], ['Behind'], ['Lost'], ['Sessions'],
    ['Clock', 'difference from the clock of this node']];
  redraw(table, el('div', { class: 'scroll card', tabindex: 0, role: 'region', 'aria-label': 'Nodes of the fleet' },
    el('table', {}, el('thead', {}, el('tr', {}, head.map(([name, title]) => el('th', { scope: 'col', title }, name)))), el('tbody', {}, data.nodes.map(line)))));
  const of = ['Node', 'Seen by', 'Records', 'Segments', 'Gaps', 'Missing', 'Faults'];
  redraw(chains, data.chains.length === 0 ? el('p', { class: 'quiet' }, 'None examined yet.')
    : el('div', { class: 'scroll card', tabindex: 0, role: 'region', 'aria-label': 'Chains in the store' },
      el('table', {}, el('thead', {}, el('tr', {}, of.map((name) => el('th', { scope: 'col' }, name)))), el('tbody', {}, data.chains.map(chain)))));
}

function chain(it) {
  const counted = (value) => el('td', {}, number(value));
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
  const counted = (value) => el('td', {}, value === undefined ? '–' : number(value));
  const clock = node.clock_ahead_ms === null ? '–' : node.clock_is_off ? `${Math.round(-node.clock_ahead_ms / 1000)} s` : 'ok';
  return el('tr', { 'data-key': node.node }, el('th', { scope: 'row' }, el('bdi', {}, node.node), node.is_self && ' (this)'),
    el('td', {}, tag(node.state), node.used_twice && ' used twice', node.fault && el('p', { class: 'wrong' }, node.fault)),
    of(said.version && `${said.version} ${said.commit.slice(0, 8)}`), of(said.config?.slice(0, 8)), of(keeps(said.index)),
    counted(said.ledger?.stored), el('td', {}, said.ledger ? lag(said.ledger) : '–'), counted(said.ledger?.lost), counted(said.sessions), of(clock));
}
