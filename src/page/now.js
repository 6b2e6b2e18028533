// How it is now: calls a second, error and block rates, servers, what waits and what is wrong; and
// what became of calls over time, with plots that zoom. Counts lead to the records.

import { command, el, empty, fill, labelled, lasted, number, option, percent, redraw, short, tag, took } from './dom.js';
import { milliseconds, plot, spark, stamp, zooms } from './plot.js';
import { ask, attempt } from './rest.js';
import { change, link } from './route.js';
import { nextSteps } from './servers.js';

const EVERY_MS = 2000; // between two looks at the counters
const KEPT = 90; // looks that are kept: three minutes
const RATE_OVER = 5; // looks that a rate is taken over
const PERIODS = { '1h': 3600, '24h': 86400, '7d': 604800, '30d': 2592000 };
const STATUSES = ['success', 'error', 'blocked', 'rejected', 'unknown'];
const INTENTS = ['read', 'write', 'destructive'];
const TIMES = [
  ['p50', 'half of the calls took at most so long', 'duration_us', 'p50'],
  ['p99', '99 of 100 calls took at most so long', 'duration_us', 'p99'],
  ['proxy p99', 'of 99 of 100 calls the proxy itself took at most so long', 'overhead_us', 'p99'],
];
const WHERE = { server: 'servers', activity: 'settings', certificate: 'settings', log: 'settings', config: 'settings', fleet: 'fleet' };

const faults = el('div', { id: 'faults', 'aria-live': 'polite' });
const tiles = el('div', { id: 'now-tiles', class: 'tiles' });
const about = el('p', { id: 'now-about', class: 'quiet' });
const table = el('div', { id: 'now-servers' });
const sums = el('div', { id: 'sums', class: 'tiles' });
const outcomes = el('div', { id: 'outcomes', class: 'plot' });
const latencies = el('div', { id: 'latencies', class: 'plot' });
const legend = el('ul', { id: 'legend', class: 'legend' });
const curves = el('ul', { id: 'curves', class: 'legend' });
const zoom = el('div', { id: 'zoom', class: 'answer', role: 'group', 'aria-label': 'Zoom' });
const asTable = el('div', { id: 'plot-table', class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Calls over time' });
const tops = el('div', { class: 'pair' });

const period = el('select', { name: 'period' }, option('1h', 'last hour'), option('24h', 'last 24 hours'), option('7d', 'last 7 days'), option('30d', 'last 30 days'));
const by = el('select', { name: 'by' }, option('status', 'outcome'), option('intent', 'intent'));
const form = el('form', { id: 'past-form', 'aria-label': 'What is counted' }, labelled('Period', period), labelled('By', by));

let looks = []; // { at, calls } by the page's own clock
let summary; // of the period that is shown
let shown = {};
let asked = 0;

export const now = {
  name: 'now',
  label: 'Now',
  root: el('div', {}, faults, tiles, about, el('h2', {}, 'Servers'), table,
    el('h2', {}, 'Over time'), form, sums,
    el('div', { class: 'card' },
      el('figure', {}, el('figcaption', {}, 'Tool calls'), legend, outcomes),
      el('figure', {}, el('figcaption', {}, 'How long they took'), curves, latencies), zoom,
      el('p', { class: 'quiet' }, 'Drag over a plot to zoom; a click shows the records of that time.'),
      el('details', {}, el('summary', {}, 'As a table'), asTable)),
    tops),

  show(parameters) {
    shown = parameters;
    period.value = PERIODS[parameters.period] ? parameters.period : '24h';
    by.value = parameters.by === 'intent' ? 'intent' : 'status';
    this.refresh();
  },

  refresh() {
    attempt(look);
    attempt(load);
  },

  tick: () => attempt(look),
  everyMs: EVERY_MS,
  redraw: () => draw(),

  forget() {
    looks = [];
    summary = undefined;
    asked += 1;
    for (const place of [faults, tiles, about, table, sums, outcomes, latencies, legend, curves, asTable, tops, zoom]) fill(place);
  },
};

// ---- Now

async function look() {
  const [{ data: status }, { data: { servers } }] = await Promise.all([ask('status'), ask('servers')]);
  const at = performance.now();
  if (looks.length && looks.at(-1).calls.total > status.calls.total) looks = []; // another process
  if (!looks.length || at - looks.at(-1).at > EVERY_MS / 2) looks.push({ at, calls: status.calls });
  looks = looks.slice(-KEPT);
  drawFaults(status.faults);
  drawTiles(status);
  drawServers(servers);
}

function drawFaults(all) {
  redraw(faults, all.length > 0 && el('div', { class: 'card fault' }, el('h2', {}, 'What is wrong'),
    el('ul', {}, all.map((fault) => el('li', { 'data-key': `${fault.part} ${fault.server} ${fault.cause}` }, el('a', { href: link(WHERE[fault.part] ?? 'settings') }, fault.server ?? fault.part), ': ', el('bdi', {}, fault.cause))))));
}

/** What was added between two looks, each second. */
function rates(of) {
  return looks.slice(1).map((it, at) => (of(it.calls) - of(looks[at].calls)) * 1000 / (it.at - looks[at].at));
}

function drawTiles(status) {
  const { calls, load } = status;
  const first = looks.at(-1 - Math.min(RATE_OVER, looks.length - 1));
  const last = looks.at(-1);
  const since = (of) => of(last.calls) - of(first.calls);
  const seconds = Math.max((last.at - first.at) / 1000, 0.001);
  const minute = looks.filter((it) => last.at - it.at <= 60000)[0];
  const lately = (of) => of(last.calls) - of(minute.calls);
  const recent = { range: '15m' };
  const tile = (name, title, value, href, ...more) => el('div', { class: 'card tile', title },
    el('b', {}, href ? el('a', { href }, value) : value), el('span', {}, name), more);
  const us = (value) => took((value ?? 0) / 1000) || '–';
  const total = (it) => it.total;
  redraw(tiles,
    tile('calls a second', 'over the last 10 seconds', short(looks.length > 1 ? since(total) / seconds : 0), link('activity', recent),
      spark(rates(total), 'calls a second in the last minutes')),
    tile('errors, last minute', 'of all calls', percent(lately((it) => it.error), lately(total)), link('activity', { ...recent, status: 'error' }),
      spark(rates((it) => it.error), 'errors a second in the last minutes', 'error')),
    tile('refused, last minute', 'blocked or rejected, of all calls', percent(lately((it) => it.blocked + it.rejected), lately(total)),
      link('activity', { ...recent, status: 'blocked,rejected' }),
      spark(rates((it) => it.blocked + it.rejected), 'refusals a second in the last minutes', 'rejected')),
    tile('wait for approval', 'calls that wait for a person', number(load.approvals), link('approvals')),
    tile('under way', 'calls that have no answer yet', number(calls.in_flight)),
    ...TIMES.map(([name, title, of, part]) => tile(name, `${title}, since the start`, us(calls[of][part]))));
  redraw(about, `Running for ${lasted(status.uptime_seconds)}, ${number(load.sessions)} ${load.sessions === 1 ? 'session' : 'sessions'}.`);
}

function drawServers(servers) {
  if (!servers.length) {
    redraw(table, empty('No server is configured.', ...nextSteps()));
    return;
  }
  const head = [...['Server', 'State', 'Calls', 'Errors', 'Refused'].map((name) => [name]), ...TIMES];
  const count = (value, parameters) => el('td', {}, value ? el('a', { href: link('activity', parameters) }, number(value)) : '0');
  const us = (value) => el('td', {}, value ? took(value / 1000) : '–');
  const line = ({ name, state, calls }) => el('tr', { 'data-key': name },
    el('th', { scope: 'row' }, el('a', { href: link('servers', { name }) }, el('bdi', {}, name))), el('td', {}, tag(state)),
    count(calls.total, { server: name }), count(calls.error, { server: name, status: 'error' }),
    count(calls.blocked + calls.rejected, { server: name, status: 'blocked,rejected' }),
    ...TIMES.map(([, , of, part]) => us(calls[of][part])));
  redraw(table, el('div', { class: 'scroll card', tabindex: 0, role: 'region', 'aria-label': 'Servers since the start' },
    el('table', {}, el('thead', {}, el('tr', {}, head.map(([name, title]) => el('th', { scope: 'col', title }, name)))), el('tbody', {}, servers.map(line)))));
}

// ---- Over time

async function load() {
  const mine = ++asked;
  // Of a range that is zoomed into, the shortest period that holds it has the finest steps.
  const from = Date.parse(shown.from);
  const fits = Object.entries(PERIODS).find(([, seconds]) => from >= Date.now() - seconds * 1000);
  const which = shown.from && fits && PERIODS[period.value] > fits[1] ? fits[0] : period.value;
  const { data } = await ask('activity/summary', { period: which });
  if (mine !== asked) return;
  summary = data;
  draw();
}

function draw() {
  const data = summary;
  if (!data || !outcomes.clientWidth) return;
  const all = data.over_time.map((point) => ({ ...point, start: Date.parse(point.start_time) }));
  const step = data.step_seconds;
  const [from, to] = [Date.parse(shown.from), Date.parse(shown.to)];
  const inside = all.filter((point) => !(point.start + step * 1000 <= from) && !(point.start >= to));
  const points = inside.length ? inside : all;
  const names = by.value === 'intent' ? INTENTS : STATUSES;
  const member = by.value === 'intent' ? 'intent_type' : 'status';
  const of = (name) => points.reduce((sum, point) => sum + point[name], 0);
  const range = { from: new Date(points[0].start).toISOString(), to: new Date(points.at(-1).start + step * 1000).toISOString() };
  const records = (more) => link('activity', { type: 'tool_call', ...range, ...more });
  const tile = (name, value, href) => el('div', { class: 'card tile' }, el('b', {}, value && href ? el('a', { href }, value) : value || '0'), el('span', {}, name));
  redraw(sums,
    tile('calls', number(STATUSES.reduce((sum, name) => sum + of(name), 0)), records({})),
    STATUSES.map((status) => tile(tag(status), of(status) && number(of(status)), records({ status }))),
    tile(tag('warning'), data.warning_count && number(data.warning_count), link('activity', { ...range, status: 'warning' })),
    tile(el('span', { title: '95 of 100 calls took at most so long' }, 'p95'), took(data.latency_ms.p95) || '–'));
  redraw(curves, TIMES.slice(0, 2).map(([name, title]) => el('li', {}, el('span', { class: `tag ${name}` }, name), ` ${title}`)));
  redraw(legend, names.map((name) => el('li', { 'data-key': name }, el('a', { href: records({ [member]: name }) }, tag(name, ' ', number(of(name)))))));
  const zoomed = (low, high) => change({
    from: low === undefined ? '' : new Date(low).toISOString(), to: low === undefined ? '' : new Date(high).toISOString(),
  });
  const clicked = (point) => {
    location.hash = link('activity', {
      type: 'tool_call', from: new Date(point.start).toISOString(), to: new Date(point.start + step * 1000).toISOString(),
    });
  };
  const common = { points, step, picked: zoomed, clicked };
  plot(outcomes, { ...common, kind: 'bars', series: names.map((name) => ({ name, of: (point) => point[name] })),
    label: `Tool calls over time by ${by.value === 'intent' ? 'intent' : 'outcome'}; the numbers are in the table below.` });
  plot(latencies, { ...common, kind: 'lines', spell: milliseconds,
    series: [['p50', 'p50_ms'], ['p99', 'p99_ms']].map(([name, key]) => ({ name, of: (point) => point[key] })),
    label: 'What half and 99 of 100 tool calls took at most, over time; the numbers are in the table below.' });
  redraw(zoom, zooms({
    from: points[0].start, to: points.at(-1).start + step * 1000, step: step * 1000,
    first: Date.now() - PERIODS[period.value] * 1000, last: Date.now(), isAll: !shown.from, zoomed,
  }), el('a', { href: records({}) }, 'Records of this time'));
  const head = el('tr', {}, ['from', ...names, 'p50', 'p99'].map((name) => el('th', { scope: 'col' }, name)));
  const lines = points.filter((point) => names.some((name) => point[name])).map((point) => el('tr', { 'data-key': point.start },
    el('th', { scope: 'row' }, stamp(point.start, step)),
    names.map((name) => el('td', {}, point[name] ? el('a', { href: link('activity', {
      type: 'tool_call', [member]: name, from: new Date(point.start).toISOString(), to: new Date(point.start + step * 1000).toISOString(),
    }) }, number(point[name])) : '0')),
    el('td', {}, took(point.p50_ms) || '–'), el('td', {}, took(point.p99_ms) || '–')));
  redraw(asTable, lines.length ? el('table', {}, el('thead', {}, head), el('tbody', {}, lines)) : el('p', { class: 'quiet' }, 'No calls.'));
  const top = (title, list, to) => el('div', { class: 'card' }, el('h2', {}, title),
    list.length ? el('ol', { class: 'tops' }, list.map((it) => el('li', { 'data-key': it.name }, el('a', { href: to(it.name) }, el('bdi', {}, it.name)), el('span', {}, number(it.count)))))
      : el('p', { class: 'quiet' }, 'No calls.'));
  redraw(tops, top('Servers called most', data.top_servers, (server) => link('activity', { type: 'tool_call', server })),
    top('Tools called most', data.top_tools, (name) => {
      const at = name.indexOf(':');
      return link('activity', { type: 'tool_call', server: name.slice(0, at), tool: name.slice(at + 1) });
    }));
}

form.addEventListener('change', () => change({ period: period.value, by: by.value, from: '', to: '' }));
form.addEventListener('submit', (event) => event.preventDefault());
