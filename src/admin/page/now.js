// The overview: faults, what the proxy does at the moment, and outcomes of calls over a period in zoomable plots. Counts link to the
// records.

import { LAST, heads, recordList } from './activity.js';
import { anchor, chip, el, empty, fill, identifier, lasted, number, option, para, percent, quiet, redraw, short, stepLinks, tag, took, visible } from './dom.js';
import { milliseconds, plot, spark, stamp, zooms } from './plot.js';
import { ask, attempt } from './rest.js';
import { change, link, named } from './route.js';
import { nextSteps } from './servers.js';

const EVERY_MS = 2000; // sampling interval of the counters
const KEPT = 90; // kept samples: three minutes
const RATE_OVER = 5; // samples per rate
const PERIODS = { '1h': 3600, '24h': 86400, '7d': 604800, '30d': 2592000 };
export const STATUSES = ['success', 'error', 'blocked', 'rejected', 'unknown'];
const MAX_FAILURES = 5;
const REFUSED = ['blocked', 'rejected']; // the answer, and before the call
const INTENTS = ['read', 'write', 'destructive'];
const MAX_TOPS = 10;
const MAX_PHONE_TOPS = 5; // as style.css shows of them on a phone
const CURVES = [['p50', 'half of the calls were faster'], ['p99', '99 of 100 calls were faster']];
/** Where a fault is shown with what to do about it; of a server in its own panel. */
const PLACES = { fleet: link('fleet'), index: link('fleet'), rules: link('policy') };

const faults = el('div', { id: 'faults', 'aria-live': 'polite' });
const tiles = el('div.tiles', { id: 'now-tiles' });
const about = el('p.quiet', { id: 'now-about' });
const outcomes = el('div.plot', { id: 'outcomes' });
const latencies = el('div.plot', { id: 'latencies' });
const legend = el('ul.legend', { id: 'legend' });
const curves = el('ul.legend', { id: 'curves' });
const zoom = el('div.answer', { id: 'zoom', role: 'group', 'aria-label': 'Zoom' });
const HINT = 'Drag over a plot to zoom; click it to see the records of that time.';
const hint = el('p.quiet', { id: 'plot-hint' }, HINT);
const asTable = el('div.scroll', { id: 'plot-table', tabindex: 0, role: 'region', 'aria-label': 'Calls over time' });
const tops = el('div.pair', {});
const failures = el('div.list', { id: 'failures' });
const none = el('div', {});

const period = el('select', { name: 'period' }, Object.keys(PERIODS).map((name) => option(name, LAST[name])));
const by = el('select', { name: 'by' }, option('status', 'outcome'), option('intent', 'intent'));
const form = el('form.chips', { id: 'past-form', 'aria-label': 'Selection' }, chip('Period', period), chip('Colored by', by));

let looks = []; // { at, status } by the page's own clock
let summary; // of the period that is shown
let fitted; // the period that fits the data, where the address names none
let shown = {};
let asked = 0;

export const now = {
  name: 'now',
  label: 'Overview',
  takes: ['period', 'by', 'from', 'to'],
  root: el('div', {}, faults, none, form, tiles, about,
    el('div.card', {},
      el('div.plots', {}, el('figure', {}, el('figcaption', {}, 'Tool calls'), legend, outcomes),
        el('figure', {}, el('figcaption', {}, 'Call durations'), curves, latencies)), zoom,
      hint,
      el('details', {}, el('summary', {}, 'As a table'), asTable)),
    failures, tops),

  show(parameters) {
    shown = parameters;
    fitted = undefined;
    by.value = parameters.by === 'intent' ? 'intent' : 'status';
    if (PERIODS[parameters.period]) period.value = parameters.period;
    this.refresh();
  },

  refresh() {
    attempt(look);
    attempt(load, 'now');
  },

  tick: () => attempt(look),
  everyMs: EVERY_MS,
  redraw: () => draw(),
  keys: (event) => stepLinks(event, [...failures.querySelectorAll('.records a')]),

  forget() {
    looks = [];
    summary = undefined;
    asked += 1;
    for (const place of [faults, none, tiles, about, outcomes, latencies, legend, curves, asTable, failures, tops, zoom]) fill(place);
  },
};

// ---- Now

async function look() {
  const { data: status } = await ask('status');
  const at = performance.now();
  if (looks.length && looks.at(-1).status.calls.total > status.calls.total) looks = []; // another process
  if (!looks.length || at - looks.at(-1).at > EVERY_MS / 2) looks.push({ at, status });
  looks = looks.slice(-KEPT);
  drawFaults(status.faults);
  redraw(none, status.servers.total === 0 && empty('No server is configured.', ...nextSteps()));
  drawTiles();
  const { load } = status;
  redraw(about, anchor(link('servers'), `${number(status.servers.connected)} of ${number(status.servers.total)} servers connected`),
    `, ${number(status.tools)} tools, ${number(load.sessions)} ${load.sessions === 1 ? 'session' : 'sessions'}, running for ${lasted(status.uptime_seconds)}.`);
}

function drawFaults(all) {
  const place = (fault) => (fault.server ? link('servers', { name: fault.server }) : PLACES[fault.part] ?? link('settings', { part: fault.part }));
  redraw(faults, all.length > 0 && el('div.card fault', {}, el('h2', {}, 'Problems'),
    el('ul', {}, all.map((fault) => el('li', { 'data-key': `${fault.part} ${fault.server} ${fault.cause}` },
      el('a', { href: place(fault) }, fault.server ?? fault.part), ': ', el('bdi', { title: visible(fault.cause) }, fault.cause),
      fault.server && [' ', next(fault)])))));
}

/** What to do about a fault of a server. */
const next = ({ server, cause }) => (/in quarantine/.test(cause) ? anchor(link('tools', { server, held: 'yes' }), 'Review')
  : anchor(link('servers', { name: server }), 'Log and restart'));

/** Calls per second between consecutive samples. */
function rates() {
  return looks.slice(RATE_OVER).map((look, at) => (look.status.calls.total - looks[at].status.calls.total) * 1000 / (look.at - looks[at].at));
}

/** A number with its name; all of the tile leads to the records that it counts. */
export function tile(name, value, { title, note, href, curve, isUrgent }) {
  const parts = [el('span.name', {}, name), el('b', {}, value), el('span.note', {}, note ?? ''), curve];
  return el(href ? 'a' : 'div', { class: isUrgent ? 'card tile urgent' : 'card tile', 'data-key': name, title, href }, parts);
}

function drawTiles() {
  const last = looks.at(-1)?.status;
  if (!last) return;
  const all = [];
  const { points, records } = selection() ?? {};
  if (points) {
    const of = (names) => points.map((point) => names.reduce((sum, name) => sum + point[name], 0));
    const sum = (names) => of(names).reduce((total, value) => total + value, 0);
    const calls = sum(STATUSES);
    const part = (count, more) => (calls ? `${percent(count, calls)} of the calls${more ?? ''}` : 'no calls');
    const counted = (name, names, more) => {
      const value = sum(names);
      return tile(name, number(value), { ...more, href: value ? records({ status: names.join(',') }) : undefined, curve: spark(of(names), `${name} over the period`, names[0]) });
    };
    const [after, before] = REFUSED.map((name) => sum([name]));
    all.push(
      tile('Calls', number(calls), { title: 'Tool calls in the period', note: calls ? part(sum(['success']), ' succeeded').replace('of the calls ', '') : 'no calls',
        href: calls ? records({}) : undefined, curve: spark(of(STATUSES), 'Calls over the period') }),
      counted('Errors', ['error'], { title: 'Calls that ended with an error, at the server or on the way', note: part(sum(['error'])) }),
      counted('Refused', REFUSED, { title: 'Calls that were rejected before they were sent, and calls whose answer was blocked',
        note: before + after ? `${number(before)} not sent, ${number(after)} ${after === 1 ? 'answer' : 'answers'} blocked` : part(0) }));
    const { p50, p95 } = summary.latency_ms;
    const within = took(p95) ? `95 % within ${took(p95)}` : 'no calls';
    all.push(tile('Duration', took(p50) || '–', { title: 'Median duration of calls, without waiting for approval; leads to the slowest',
      note: shown.from ? wider() : within, href: calls && p95 >= 1 ? records({ min_duration_ms: Math.floor(p95) }) : undefined, curve: spark(points.map((point) => point.p50_ms || undefined), 'Median duration over the period', 'p50') }));
  }
  const [first, newest] = [looks.at(-1 - RATE_OVER) ?? looks[0], looks.at(-1)];
  const seconds = (newest.at - first.at) / 1000;
  const { calls, load } = last;
  all.push(
    tile('Calls per second', short(seconds > 0 ? (calls.total - first.status.calls.total) / seconds : 0, 2), { title: 'Over the last 10 seconds',
      note: `${number(calls.in_flight)} in flight`, href: link('activity', { range: '15m' }), curve: spark(rates(), 'Calls per second in the last minutes') }),
    tile('Waiting for approval', number(load.approvals), { title: 'Calls that wait for a person', note: load.approvals ? 'answer them' : 'nothing to answer', href: link('approvals'), isUrgent: load.approvals > 0 }));
  redraw(tiles, all);
}

// ---- Over time

async function load() {
  const mine = ++asked;
  if (!PERIODS[shown.period]) fitted ??= await fitting();
  if (mine !== asked) return;
  if (fitted && !PERIODS[shown.period]) period.value = fitted;
  // Of a range that is zoomed into, the shortest period that holds it has the finest steps.
  const [from, to] = [shown.from, shown.to].map(Date.parse);
  const fits = to > from && Object.entries(PERIODS).find(([, seconds]) => to - from <= seconds * 1000);
  const isFiner = fits && fits[1] < PERIODS[period.value];
  const { data } = await ask('activity/summary', isFiner ? { period: fits[0], end_time: shown.to } : { period: period.value });
  if (mine !== asked) return;
  if (!data.total_count) fitted = undefined; // another may fit by the next time
  summary = data;
  draw();
  await loadFailures(mine);
}

/** The latest calls in the period that did not succeed. */
async function loadFailures(mine) {
  const filter = { type: 'tool_call', status: 'error,blocked,rejected' };
  const { range } = selection();
  const { data } = await ask('activity', { ...filter, type: 'tool_call,policy_decision', start_time: range.from, end_time: range.to, limit: 4 * MAX_FAILURES, exclude_payloads: true });
  if (mine !== asked) return;
  const found = data.activities.filter((it) => it.type === 'tool_call' || it.parent_id);
  redraw(failures, found.some((it) => it.type === 'tool_call') && [el('h2', {}, 'Latest errors and refusals'), heads(),
    recordList(found, filter, 'Latest errors and refusals', MAX_FAILURES),
    para(anchor(link('activity', { ...filter, ...range }), 'All errors and refusals'))]);
}

/** The shortest period that holds all calls of the last 24 hours; if there were none, the shortest one that holds any. */
async function fitting() {
  const count = async (name) => (await ask('activity/summary', { period: name })).data.total_count;
  const [hour, day] = await Promise.all([count('1h'), count('24h')]);
  if (day) return hour === day ? '1h' : '24h';
  for (const name of ['7d', '30d']) if (await count(name)) return name;
  return '1h';
}

/** Names the period of the summary, of which a zoom shows a part. */
const wider = () => `of the ${LAST[summary.period].replace('last ', '')} until ${stamp(Date.parse(summary.end_time), summary.step_seconds)}`;

/** The steps of the summary that are shown, and a link to their records. */
function selection() {
  if (!summary) return undefined;
  const all = summary.over_time.map((point) => ({ ...point, start: Date.parse(point.start_time) }));
  const step = summary.step_seconds;
  const [from, to] = [Date.parse(shown.from), Date.parse(shown.to)];
  const inside = all.filter((point) => !(point.start + step * 1000 <= from) && !(point.start >= to));
  const points = inside.length ? inside : all;
  const range = { from: new Date(points[0].start).toISOString(), to: new Date(points.at(-1).start + step * 1000).toISOString() };
  return { points, step, range, records: (more) => link('activity', { type: 'tool_call', ...range, ...more }) };
}

/** A bar behind a line, as wide as its share of the longest one. */
export const share = (part) => el('svg', { 'aria-hidden': 'true' }, el('rect.part', { width: `${100 * part}%`, height: '100%' }));

function draw() {
  if (!summary || !outcomes.clientWidth) return;
  const data = summary;
  const { points, step, range, records } = selection();
  const names = by.value === 'intent' ? INTENTS : STATUSES;
  const member = by.value === 'intent' ? 'intent_type' : 'status';
  const of = (name) => points.reduce((sum, point) => sum + point[name], 0);
  drawTiles();
  redraw(curves, CURVES.map(([name, title]) => el('li', {}, el('span', { class: `tag ${name}` }, name), ` ${title}`)));
  redraw(legend, names.map((name) => el('li', { 'data-key': name }, of(name) ? el('a', { href: records({ [member]: name }) }, tag(name, ' ', number(of(name)))) : tag(name, ' 0'))),
    data.warning_count > 0 && el('li', { 'data-key': 'warning' }, anchor(link('activity', { ...range, status: 'warning' }), tag('warning', ' ', number(data.warning_count)))));
  const zoomed = (low, high) => change({
    period: shown.period || low === undefined ? shown.period : period.value,
    from: low === undefined ? '' : new Date(low).toISOString(), to: low === undefined ? '' : new Date(high).toISOString(),
  });
  const clicked = (point) => {
    location.hash = link('activity', {
      type: 'tool_call', from: new Date(point.start).toISOString(), to: new Date(point.start + step * 1000).toISOString(),
    });
  };
  const hovered = (point) => {
    const counted = point && names.filter((name) => point[name]).map((name) => `${name} ${number(point[name])}`);
    const durations = counted?.length ? [`p50 ${took(point.p50_ms) || '–'}`, `p99 ${took(point.p99_ms) || '–'}`] : ['no calls'];
    hint.textContent = point ? `${stamp(point.start, step)}: ${[...counted, ...durations].join(', ')}` : HINT;
  };
  const common = { points, step, picked: zoomed, clicked, hovered };
  plot(outcomes, { ...common, kind: 'bars', series: names.map((name) => ({ name, of: (point) => point[name] })),
    label: `Tool calls over time by ${by.value === 'intent' ? 'intent' : 'outcome'}; the numbers are in the table below.` });
  plot(latencies, { ...common, kind: 'lines', spell: milliseconds,
    series: [['p50', 'p50_ms'], ['p99', 'p99_ms']].map(([name, key]) => ({ name, of: (point) => point[key] })),
    label: 'Median and 99th percentile of tool call durations over time; the numbers are in the table below.' });
  redraw(zoom, zooms({
    from: points[0].start, to: points.at(-1).start + step * 1000, step: step * 1000,
    first: Date.now() - PERIODS[period.value] * 1000, last: Date.now(), isAll: !shown.from, zoomed,
  }), el('a', { href: records({}) }, 'Records of this time'),
    shown.from && quiet(`${stamp(points[0].start, step)} to ${stamp(points.at(-1).start + step * 1000, step)}`));
  const head = el('tr', {}, ['from', ...names, 'p50', 'p99'].map((name) => el('th', { scope: 'col' }, name)));
  const lines = points.filter((point) => names.some((name) => point[name])).map((point) => el('tr', { 'data-key': point.start },
    el('th', { scope: 'row' }, stamp(point.start, step)),
    names.map((name) => el('td', {}, point[name] ? anchor(link('activity', {
      type: 'tool_call', [member]: name, from: new Date(point.start).toISOString(), to: new Date(point.start + step * 1000).toISOString(),
    }), number(point[name])) : '0')),
    el('td', {}, took(point.p50_ms) || '–'), el('td', {}, took(point.p99_ms) || '–')));
  redraw(asTable, lines.length ? el('table', {}, el('thead', {}, head), el('tbody', {}, lines)) : quiet('No calls.'));
  const top = (title, list, to, unknown, all) => el('div.card', {}, el('h2', {}, title),
    list.length ? el('ol.tops', {}, list.map((it) => el('li', { 'data-key': it.name }, share(it.count / list[0].count), /^:?$/.test(it.name) ? el('span.quiet', {}, unknown) : anchor(to(it.name), identifier(it.name)), el('span', {}, number(it.count)))))
      : quiet('No calls.'), list.length > MAX_PHONE_TOPS && para(anchor(all, 'All of them')));
  const whole = shown.from ? ` ${wider()}` : '';
  redraw(tops, top(`Top servers${whole}`, data.top_servers.slice(0, MAX_TOPS), (server) => link('activity', { type: 'tool_call', server }), 'unknown server', link('servers', { sort: 'Calls' })),
    top(`Top tools${whole}`, data.top_tools.slice(0, MAX_TOPS), (name) => link('activity', { type: 'tool_call', ...named(name) }), 'unknown tool', link('tools', { sort: 'Calls' })));
}

form.addEventListener('change', ({ target }) => change(target === by ? { by: by.value } : { period: period.value, from: '', to: '' }));
form.addEventListener('submit', (event) => event.preventDefault());
