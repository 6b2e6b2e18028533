// The page's script: asks for the key, shows what /api/v1 and /events say.
//
// Records hold what agents and servers wrote, attackers among them. So every value goes in as text
// (`el`, `visible`), never as markup, and the policy the page is served with lets nothing else run.
'use strict';

const KEY = 'mcpproxy.key'; // in sessionStorage: it ends with the tab
const PAGE = 50; // records or tools asked for at once
const MAX_ROWS = 500; // rows kept while records arrive; older ones are a click away
const POLL_MS = 3000; // while the stream is not there, or has not proved itself
const REFRESH_MS = 10000; // counts and servers
const RETRY_MS = [1000, 2000, 5000, 15000, 30000]; // before the stream is tried again
const STATUSES = ['success', 'error', 'blocked', 'rejected', 'unknown'];
const INTENTS = ['read', 'write', 'destructive'];
const TYPES = {
  tool_call: 'tool call', policy_decision: 'decision', internal_tool_call: 'own tool',
  resource_read: 'resource', prompt_get: 'prompt', completion: 'completion', gap: 'gap',
  server_change: 'server', catalog_change: 'catalog', approval: 'approval',
  config_change: 'config', retention: 'retention', system_start: 'start', system_stop: 'stop',
};

const CALLS = ['tool_call', 'internal_tool_call', 'resource_read', 'prompt_get', 'completion'];

const $ = (id) => document.getElementById(id);

// ---- Elements

/** An element with attributes and children; strings become text, made visible. */
function el(name, attributes = {}, ...children) {
  const svg = ['svg', 'g', 'rect', 'line', 'text', 'title'].includes(name);
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(key, value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat(Infinity).filter((child) => ![undefined, null, false, ''].includes(child))
    .map((child) => (child instanceof Node ? child : visible(String(child)))));
  return made;
}

/** Controls, invisible characters and those that turn the text around are shown as what they are. */
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu,
    (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}

function tag(word, ...more) {
  return word ? el('span', { class: `tag ${/^[a-z]+$/.test(word) ? word : ''}` }, word, ...more) : undefined;
}

/** Pairs of a name and what it is; the ones without anything are left out. */
function pairs(...entries) {
  const there = entries.filter(([, value]) => ![undefined, null, false, ''].includes(value));
  return there.length ? el('dl', {}, there.map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)])) : undefined;
}

const number = (value) => Number(value).toLocaleString('en');
const decimal = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });

function took(ms) {
  if (!(ms > 0)) return '';
  return ms < 1 ? `${decimal.format(ms * 1000)} µs` : ms < 1000 ? `${decimal.format(ms)} ms` : `${decimal.format(ms / 1000)} s`;
}

function bytes(count) {
  if (count < 1024) return `${count} B`;
  return count < 1048576 ? `${decimal.format(count / 1024)} KiB` : `${decimal.format(count / 1048576)} MiB`;
}

const two = (value) => String(value).padStart(2, '0');
const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
const day = (date) => `${two(date.getMonth() + 1)}-${two(date.getDate())}`;

function when(timestamp) {
  const date = new Date(timestamp);
  const today = date.toDateString() === new Date().toDateString();
  return el('time', { datetime: timestamp, title: timestamp }, today ? clock(date) : `${day(date)} ${clock(date)}`);
}

/** When a record was stored, which is the order of the list: the first 48 bits of its id. */
function stored(id) {
  const digit = (letter) => '0123456789ABCDEFGHJKMNPQRSTVWXYZ'.indexOf(letter);
  return new Date([...id.slice(0, 10)].reduce((time, letter) => time * 32 + digit(letter), 0)).toISOString();
}

/** JSON as text, laid out; numbers keep their spelling where the browser can do that. */
function json(text) {
  const spelled = (_key, value, context) =>
    typeof value === 'number' && context && JSON.rawJSON && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
  return JSON.parse(text, spelled);
}

// ---- Asking

/** An answer that is no success: its HTTP status, and the server's words. */
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  return { 'X-API-Key': sessionStorage.getItem(KEY) ?? '', ...more };
}

function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== '' && value !== undefined);
  const query = given.length ? `?${new URLSearchParams(given)}` : '';
  return answered(fetch(`/api/v1/${path}${query}`, { headers: headers(), cache: 'no-store' }));
}

function send(path, body) {
  const more = { 'Content-Type': 'application/json', 'X-Mcpproxy-Source': 'page' };
  return answered(fetch(`/api/v1/${path}`, { method: 'POST', headers: headers(more), body: JSON.stringify(body) }));
}

async function answered(asked) {
  const response = await asked;
  const text = await response.text();
  if (response.ok) return { data: JSON.parse(text).data, text };
  let words = response.statusText;
  try { words = JSON.parse(text).error ?? words; } catch { /* not ours: a proxy's page */ }
  throw new Refused(response.status, words);
}

/** Runs something that asks; what goes wrong is said at the top, once it works again it is gone. */
async function attempt(work) {
  try {
    await work();
    $('trouble').hidden = true;
  } catch (error) {
    if (error.status === 401) return lock('The key is no longer accepted.');
    $('trouble').hidden = false;
    $('trouble').textContent = visible(error instanceof Refused ? error.message : `The server does not answer (${error.message}).`);
  }
}

// ---- The key

function lock(why = '') {
  sessionStorage.removeItem(KEY);
  live.stop();
  $('rows').replaceChildren();
  $('record').replaceChildren();
  $('approvals').replaceChildren();
  $('standing').replaceChildren();
  $('open').hidden = true;
  $('locked').hidden = false;
  $('key-error').textContent = why;
  $('key').value = '';
  $('key').focus();
}

async function unlock(event) {
  event.preventDefault();
  sessionStorage.setItem(KEY, $('key').value.trim());
  try {
    await ask('status');
    start();
  } catch (error) {
    lock(error.status === 401 ? 'This is not the key.' : visible(error.message));
  }
}

function start() {
  $('locked').hidden = true;
  $('open').hidden = false;
  $('key').value = '';
  list.load();
  live.start();
  attempt(() => approvals.load());
  attempt(async () => {
    const names = (await ask('servers')).data.servers.map((server) => el('option', { value: server.name }));
    $('server-names').replaceChildren(...names);
  });
  route();
}

// ---- Views

const VIEWS = ['activity', 'approvals', 'counts', 'servers', 'tools'];
let view = '';

function route() {
  const [wanted, id] = location.hash.slice(1).split('/');
  const before = view;
  view = VIEWS.includes(wanted) ? wanted : 'activity';
  for (const name of VIEWS) $(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${view}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if ($('open').hidden) return;
  if (view === 'activity') {
    if (id) record.open(decodeURIComponent(id));
    else record.close();
  } else if (view !== before || view === 'counts') refresh();
}

function refresh() {
  attempt(() => approvals.load());
  if (view === 'counts') attempt(counts.load);
  if (view === 'servers') attempt(servers);
  if (view === 'tools' && !$('tools').childElementCount) attempt(() => tools.load());
}

// ---- Activity: the list

const list = {
  cursor: undefined,
  trimmed: false,
  asked: 0,

  filter() {
    return Object.fromEntries([...new FormData($('filters'))].map(([name, value]) => [name, value.trim()]));
  },

  /** Loads the newest page anew. */
  load() {
    const asked = ++this.asked;
    return attempt(async () => {
      const { data } = await ask('activity', { ...this.filter(), limit: PAGE, exclude_payloads: true });
      if (asked === this.asked) this.show(data);
    });
  },

  show(data) {
    const open = record.id;
    $('rows').replaceChildren(...data.activities.map((activity) => row(activity)));
    this.trimmed = false;
    this.end(data.next_cursor);
    record.mark(open);
  },

  end(cursor) {
    this.cursor = cursor;
    $('older').hidden = !cursor && !this.trimmed;
    const first = $('rows').querySelector('a');
    if (first && !$('rows').querySelector('a[tabindex="0"]')) first.tabIndex = 0;
    $('none').hidden = Boolean(first);
    const filtered = Object.values(this.filter()).some(Boolean);
    $('none').textContent = filtered ? 'No record fits the filters.' : 'Nothing has happened yet.';
  },

  older() {
    const rows = $('rows');
    // A cursor names the end of a page; once rows were let go, the end is a row in between.
    const from = this.trimmed ? { offset: rows.childElementCount } : { cursor: this.cursor };
    return attempt(async () => {
      const { data } = await ask('activity', { ...this.filter(), ...from, limit: PAGE, exclude_payloads: true });
      const before = rows.lastElementChild;
      rows.append(...data.activities.filter((activity) => !known(activity.id)).map((activity) => row(activity)));
      this.trimmed = false;
      this.end(data.next_cursor);
      before?.nextElementSibling?.querySelector('a').focus();
    });
  },

  /** Looks for records that came since; used while there is no stream. */
  async poll() {
    const asked = this.asked;
    const { data } = await ask('activity', { ...this.filter(), limit: PAGE, exclude_payloads: true });
    if (asked !== this.asked) return;
    const fresh = data.activities.filter((activity) => !known(activity.id));
    if (fresh.length && fresh.length === data.activities.length && data.next_cursor) this.show(data);
    else fresh.reverse().forEach((activity) => this.add(activity));
  },

  /** Takes a record in that just came, if it fits the filters. */
  add(activity) {
    if (known(activity.id) || !fits(activity, this.filter())) return;
    const rows = $('rows');
    const made = row(activity);
    made.classList.add('fresh');
    const newer = [...rows.children].find((other) => Number(other.dataset.seq) < activity.seq);
    rows.insertBefore(made, newer ?? null);
    if (rows.childElementCount > MAX_ROWS) {
      rows.lastElementChild.remove();
      this.trimmed = true;
    }
    this.end(this.cursor);
  },
};

const known = (id) => document.getElementById(`r-${id}`) !== null;

/** The same filter as the server's, for records that come by themselves. */
function fits(activity, filter) {
  const equal = (wanted, value) => !wanted || wanted.split(',').includes(value);
  return equal(filter.type, activity.type) && equal(filter.status, activity.status)
    && equal(filter.intent_type, activity.intent?.operation_type)
    && (!filter.server || filter.server === activity.server_name)
    && (!filter.tool || filter.tool === activity.tool_name)
    && (!filter.principal || filter.principal === activity.principal)
    && (!filter.session_id || filter.session_id === activity.session_id);
}

const subject = (activity) => [activity.server_name, activity.tool_name].filter(Boolean).join(':');

function row(activity) {
  const kind = activity.type === 'tool_call' ? '' : TYPES[activity.type] ?? activity.type;
  const what = el('span', { class: 'what' },
    kind && el('span', { class: 'quiet' }, kind, ' '), el('bdi', { class: 'name' }, subject(activity)),
    el('bdi', { class: 'quiet why' }, activity.error_message || activity.intent?.reason));
  const link = el('a', { class: 'row', href: `#activity/${encodeURIComponent(activity.id)}`, tabindex: -1 },
    when(stored(activity.id)), what, tag(activity.intent?.operation_type) ?? el('span'),
    tag(activity.status) ?? el('span'), el('span', { class: 'took' }, took(activity.duration_ms)));
  return el('li', { id: `r-${activity.id}`, 'data-seq': activity.seq }, link);
}

/** Moves the focus in the list; only one row is a stop of the tab key. */
function move(by) {
  const links = [...$('rows').querySelectorAll('a')];
  if (!links.length) return;
  const at = links.findIndex((link) => link.tabIndex === 0);
  const inside = $('rows').contains(document.activeElement);
  const next = links[Math.min(Math.max(inside ? at + by : Math.max(at, 0), 0), links.length - 1)];
  next.focus();
}

function keys(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || $('open').hidden) return;
  if (event.key === 'Escape' && view === 'activity' && record.id) location.hash = '#activity';
  if (event.target.closest('input, select, textarea')) return;
  if (event.key === '/') {
    event.preventDefault();
    (view === 'tools' ? $('tool-form') : $('filters')).elements[0].focus();
  }
  if (view !== 'activity' || $('record').contains(event.target)) return;
  const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
  if (by && (event.key.length === 1 || $('rows').contains(event.target))) {
    event.preventDefault();
    move(by);
  }
}

// ---- Activity: one record

const record = {
  id: undefined,

  open(id) {
    if (id === this.id) return undefined;
    this.id = id;
    this.mark(id);
    return attempt(async () => {
      try {
        const { data, text } = await ask(`activity/${encodeURIComponent(id)}`);
        const about = await decisions(data.activity);
        if (this.id !== id) return;
        this.show(details(data.activity, json(text).data.activity, about));
      } catch (error) {
        if (error.status !== 404) throw error;
        this.show([el('p', {}, 'This record is not kept any more.')]);
      }
    });
  },

  show(children) {
    const close = el('button', { type: 'button', 'aria-label': 'Close', click: () => { location.hash = '#activity'; } }, '✕');
    const [first, ...rest] = children;
    $('record').replaceChildren(el('div', { class: 'top' }, first, close), ...rest.filter(Boolean));
    $('record').hidden = false;
    $('record').scrollTop = 0;
    $('record').focus();
  },

  close() {
    if (!this.id) return;
    const link = document.getElementById(`r-${this.id}`)?.querySelector('a');
    this.id = undefined;
    $('record').hidden = true;
    this.mark();
    link?.focus();
  },

  mark(id) {
    for (const link of $('rows').querySelectorAll('a[aria-current]')) link.removeAttribute('aria-current');
    if (id) document.getElementById(`r-${id}`)?.querySelector('a').setAttribute('aria-current', 'true');
  },
};

/** What was decided about a call: the records that name it as their parent, begun with it. */
async function decisions(activity) {
  if (!CALLS.includes(activity.type)) return [];
  const from = new Date(activity.timestamp).getTime();
  const { data } = await ask('activity', {
    type: 'policy_decision', server: activity.server_name, tool: activity.tool_name,
    session_id: activity.session_id, request_id: activity.request_id, limit: 100,
    start_time: new Date(from - 1).toISOString(), end_time: new Date(from + 1).toISOString(),
  });
  return data.activities.filter((other) => other.parent_id === activity.id).reverse();
}

function details(activity, exact, about) {
  const upstream = activity.duration_ms - activity.overhead_us / 1000;
  const decided = activity.type === 'policy_decision' ? [activity] : about;
  const intent = activity.intent ?? {};
  const { tool_variant: variant, client_name: client, intent: _same, ...more } = activity.metadata ?? {};
  const heading = (text) => el('h3', {}, text);
  const called = activity.duration_ms > 0;
  const parent = activity.parent_id && el('a', { href: `#activity/${encodeURIComponent(activity.parent_id)}` }, 'the call');
  const principal = activity.principal && [activity.principal, ' ',
    el('button', { type: 'button', click: () => only('principal', activity.principal) }, 'only this')];
  const session = activity.session_id && [el('span', { class: 'mono' }, activity.session_id), ' ',
    el('button', { type: 'button', click: () => only('session_id', activity.session_id) }, 'only this')];
  return [
    el('div', {}, el('h2', {}, el('bdi', {}, subject(activity) || (TYPES[activity.type] ?? activity.type))),
      el('div', { class: 'tags' }, el('span', { class: 'quiet' }, TYPES[activity.type] ?? activity.type),
        tag(activity.status), tag(intent.operation_type))),

    (decided.length > 0 || activity.error_message) && heading('Verdict'),
    activity.error_message && el('p', { class: 'message' }, activity.error_message),
    ...decided.map((decision) => verdict(decision.metadata ?? {}, decision.status)),

    (activity.intent || variant) && heading('Intent'),
    pairs(['operation', intent.operation_type], ['sensitivity', intent.data_sensitivity],
      ['reason', intent.reason], ['called with', variant && el('code', {}, variant)]),

    heading('Timing'),
    called && share(activity.overhead_us / 1000, upstream),
    pairs(['began', activity.timestamp], ['took', took(activity.duration_ms)],
      ['upstream', called && took(upstream)], ['proxy', called && took(activity.overhead_us / 1000)]),

    called && heading('Size'),
    called && pairs(['answer', bytes(activity.response_bytes)],
      ['kept of it', activity.response_truncated ? bytes(new Blob([activity.response ?? '']).size) : 'all'],
      ['arguments', activity.arguments_bytes === undefined ? undefined : `${bytes(activity.arguments_bytes)}, cut`]),

    ...block('Arguments', exact.arguments), ...block('Answer', activity.response, activity.response_truncated),
    ...(activity.type !== 'policy_decision' && Object.keys(more).length ? block('More', more) : []),

    heading('Where it belongs'),
    pairs(['about', parent], ['principal', principal], ['client', client], ['source', activity.source], ['session', session],
      ['request', activity.request_id], ['id', el('span', { class: 'mono' }, activity.id)], ['number', activity.seq]),
    el('details', {}, el('summary', {}, 'Whole record'), el('pre', { tabindex: 0 }, JSON.stringify(exact, null, 2))),
  ];
}

function verdict(decision, status) {
  const path = (text) => text && el('code', {}, text);
  return el('div', { class: `decision ${status}` },
    tag(decision.decision ?? status),
    pairs(['by', [String(decision.policy ?? '').replace('_', ' '), decision.mode && ` (${decision.mode})`]],
      ['why', decision.reason], ['where', path(decision.instance_path)], ['schema', path(decision.schema_path)],
      ['limit', decision.guard]));
}

/** How much of the time was ours. */
function share(proxy, upstream) {
  const part = 100 * proxy / (proxy + upstream || 1);
  const label = `proxy ${took(proxy) || '0'}, upstream ${took(upstream) || '0'}`;
  return el('svg', { class: 'share', role: 'img', 'aria-label': label },
    el('rect', { class: 'upstream', width: '100%', height: '100%', rx: 3 }),
    el('rect', { class: 'proxy', width: `${Math.max(part, 0.5).toFixed(2)}%`, height: '100%', rx: 3 }));
}

function block(name, value, cut) {
  if (value === undefined || value === null || value === '') return [];
  let text = value;
  if (typeof value !== 'string') text = JSON.stringify(value, null, 2);
  else if (!cut) {
    try { text = JSON.stringify(json(value), null, 2); } catch { /* not JSON: as it is */ }
  }
  return [el('h3', {}, name, cut && ' (its beginning)'), el('pre', { tabindex: 0 }, text)];
}

/** Shows only the records with this value. */
function only(name, value) {
  $('filters').elements[name].value = value;
  location.hash = '#activity';
  list.load();
}

// ---- Live: the stream, and asking again and again while there is none

const live = {
  stopping: undefined,
  last: '', // id of the last record that came by the stream
  proved: false, // something came through: nothing on the way holds the stream back
  polls: undefined,

  start() {
    this.stop();
    this.stopping = new AbortController();
    this.say('polling', 'connecting');
    this.polls = setInterval(() => this.poll(), POLL_MS);
    this.run(this.stopping.signal);
  },

  stop() {
    this.stopping?.abort();
    clearInterval(this.polls);
    this.proved = false;
  },

  say(state, words) {
    if ($('live').dataset.state !== state || $('live').textContent !== words) {
      $('live').dataset.state = state;
      $('live').textContent = words;
    }
  },

  async poll() {
    if (this.proved) return;
    try {
      await list.poll();
      if (!this.proved) this.say('polling', `every ${POLL_MS / 1000} s`);
    } catch (error) {
      if (error.status === 401) lock('The key is no longer accepted.');
      else this.say('lost', 'no answer');
    }
  },

  async run(signal) {
    for (let failures = 0; !signal.aborted; failures += 1) {
      try {
        const more = this.last ? { 'Last-Event-ID': this.last } : {};
        const response = await fetch('/events', { headers: headers({ Accept: 'text/event-stream', ...more }), signal, cache: 'no-store' });
        if (response.status === 401) return lock('The key is no longer accepted.');
        if (response.status === 404) return; // no stream here: the polls go on
        if (response.ok && response.headers.get('Content-Type')?.startsWith('text/event-stream')) {
          await this.read(response.body.pipeThrough(new TextDecoderStream()).getReader(), () => { failures = 0; });
        } else await response.body?.cancel();
      } catch { /* lost: tried again below */ }
      if (signal.aborted) return;
      this.proved = false;
      await new Promise((resolve) => { setTimeout(resolve, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]); });
    }
  },

  async read(reader, came) {
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      came();
      if (!this.proved) {
        this.proved = true;
        this.say('live', 'live');
        attempt(() => list.poll()); // what came between the list and the stream
      }
      const events = (rest + value).replaceAll('\r\n', '\n').split('\n\n');
      rest = events.pop();
      events.forEach((event) => this.take(event));
    }
  },

  take(event) {
    const fields = event.split('\n').map((line) => /^(id|data): ?(.*)$/s.exec(line)).filter(Boolean);
    const data = fields.filter(([, name]) => name === 'data').map(([, , value]) => value).join('\n');
    this.last = fields.find(([, name]) => name === 'id')?.[2] ?? this.last;
    if (!data) return;
    try {
      const activity = JSON.parse(data);
      if (activity.id) list.add(activity);
      if (activity.type === 'approval') approvals.changed();
    } catch { /* another kind of event */ }
  },
};

// ---- Approvals: calls that wait for a person

const approvals = {
  asked: 0,

  async load() {
    const asked = ++this.asked;
    const { data } = await ask('approvals');
    if (asked === this.asked) this.show(data);
  },

  show(data) {
    const waiting = data.approvals.length;
    $('waiting').hidden = !waiting;
    $('waiting').textContent = waiting ? number(waiting) : '';
    $('none-waits').hidden = waiting > 0;
    // What is there already stays as it is: nobody's button moves away, and nothing they chose is lost.
    const before = new Map([...$('approvals').children].map((card) => [card.dataset.id, card]));
    const cards = data.approvals.map((it) => before.get(it.id) ?? waits(it));
    if (cards.length !== before.size || cards.some((card) => !card.isConnected)) $('approvals').replaceChildren(...cards);
    $('standing-part').hidden = !data.standing.length;
    $('standing').replaceChildren(...data.standing.map(stands));
  },

  async answer(id, body) {
    try {
      await send(`approvals/${encodeURIComponent(id)}`, body);
    } finally {
      await this.load();
    }
  },
};

approvals.changed = settled(() => attempt(() => approvals.load()));

/** One call that waits. Its arguments are text, as they will be sent. */
function waits(it) {
  const { call } = it;
  const size = new Blob([call.arguments]).size;
  const shown = el('pre', { tabindex: 0 }, call.arguments);
  const all = call.arguments_bytes > size && el('button', { type: 'button', click: (event) => attempt(async () => {
    const { data } = await ask(`approvals/${encodeURIComponent(it.id)}`);
    shown.textContent = visible(data.approval.call?.arguments ?? '');
    event.target.remove();
  }) }, `Show all ${bytes(call.arguments_bytes)}`);
  const reach = el('select', { 'aria-label': 'For how long' }, el('option', { value: '' }, 'this call'),
    el('option', { value: '1h' }, '1 hour, any arguments'),
    call.session_id && el('option', { value: 'session' }, 'this session, any arguments'));
  const approve = () => {
    const sure = !call.destructive && !reach.value;
    const what = `${it.access}${reach.value ? `, ${reach.selectedOptions[0].textContent}` : ''}`;
    if (sure || confirm(visible(`Approve the ${call.operation} call of ${what}?`))) {
      attempt(() => approvals.answer(it.id, { decision: 'approve', digest: call.digest, for: reach.value || null }));
    }
  };
  return el('li', { class: 'card', 'data-id': it.id },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.access)),
      tag(call.destructive ? 'destructive' : call.operation)),
    call.reason && el('p', {}, el('bdi', {}, call.reason)), shown, all,
    pairs(['for', call.principal], ['client', call.client_name], ['since', when(call.since)], ['until', when(call.until)],
      ['id', el('span', { class: 'mono' }, it.id)]),
    el('div', { class: 'answer' },
      el('button', { type: 'button', class: 'primary', click: approve }, 'Approve'), reach,
      el('button', { type: 'button', class: 'deny',
        click: () => attempt(() => approvals.answer(it.id, { decision: 'deny' })) }, 'Deny')));
}

/** An approval that lets calls go without asking. */
function stands(it) {
  return el('li', { class: 'card' },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.access)),
      el('button', { type: 'button', click: () => attempt(() => approvals.answer(it.id, { decision: 'deny' })) }, 'End')),
    pairs(['for', it.principal], ['session', it.session_id && el('span', { class: 'mono' }, it.session_id)],
      ['until', when(it.until)], ['given by', `${it.by} over ${it.door}`]));
}

// ---- Counts

const counts = {
  data: undefined,

  async load() {
    counts.data = (await ask('activity/summary', { period: new FormData($('counts-form')).get('period') })).data;
    counts.draw();
  },

  draw() {
    const data = counts.data;
    if (!data || view !== 'counts') return;
    const tile = (name, value) => el('div', { class: 'card tile' }, el('b', {}, value), name);
    const latency = data.latency_ms;
    $('tiles').replaceChildren(
      tile('calls', number(data.total_count)),
      ...[...STATUSES, 'warning'].map((status) => tile(tag(status), number(data[`${status}_count`]))),
      tile('half took at most', took(latency.p50) || '–'), tile('99 of 100', took(latency.p99) || '–'));
    const names = new FormData($('counts-form')).get('by') === 'intent' ? INTENTS : STATUSES;
    const total = (name) => data.over_time.reduce((sum, point) => sum + point[name], 0);
    $('legend').replaceChildren(...names.map((name) => el('li', {}, tag(name, ' ', number(total(name))))));
    plot($('plot'), data, names);
    const head = el('tr', {}, ['from', ...names].map((name) => el('th', { scope: 'col' }, name)));
    const lines = data.over_time.filter((point) => names.some((name) => point[name])).map((point) =>
      el('tr', {}, el('th', { scope: 'row' }, stamp(point.start_time, data)), names.map((name) => el('td', {}, number(point[name])))));
    $('plot-table').replaceChildren(lines.length ? el('table', {}, el('thead', {}, head), el('tbody', {}, lines)) : el('p', { class: 'quiet' }, 'No calls.'));
    for (const [id, tops] of [['top-servers', data.top_servers], ['top-tools', data.top_tools]]) {
      const lines = tops.map((top) => el('li', {}, el('bdi', {}, el('span', {}, top.name)), el('span', {}, number(top.count))));
      $(id).replaceChildren(...(lines.length ? lines : [el('li', { class: 'quiet' }, 'No calls.')]));
    }
  },
};

function stamp(time, data) {
  const date = new Date(time);
  const minute = clock(date).slice(0, 5);
  return data.step_seconds < 3600 ? minute : `${day(date)} ${minute}`;
}

/** Stacked bars over time. */
function plot(place, data, names) {
  const [width, height, left, below, above] = [Math.max(place.clientWidth, 240), 220, 44, 22, 8];
  const sums = data.over_time.map((point) => names.reduce((sum, name) => sum + point[name], 0));
  const tick = step(Math.max(...sums, 1));
  const top = Math.max(Math.ceil(Math.max(...sums, 1) / tick), 1) * tick;
  const y = (value) => height - below - (value / top) * (height - below - above);
  const wide = (width - left) / sums.length;
  const parts = [];
  for (let value = 0; value <= top; value += tick) {
    parts.push(el('line', { x1: left, x2: width, y1: y(value), y2: y(value) }),
      el('text', { x: left - 8, y: y(value) + 4, 'text-anchor': 'end' }, number(value)));
  }
  const every = Math.ceil(sums.length / Math.max(Math.floor((width - left) / 90), 1));
  data.over_time.forEach((point, at) => {
    const x = left + at * wide;
    if (at % every === 0 && x + 70 < width) {
      parts.push(el('text', { x, y: height - 6 }, stamp(point.start_time, data)));
    }
    let base = 0;
    const bars = names.filter((name) => point[name]).map((name) => {
      const [low, high] = [y(base), y(base += point[name])];
      return el('rect', { class: `bar ${name}`, x: x + 1, width: Math.max(wide - 2, 1), y: high, height: Math.max(low - high - 1, 1) });
    });
    const said = names.map((name) => `${name} ${number(point[name])}`).join('\n');
    parts.push(el('g', {}, ...bars, el('rect', { class: 'hit', x, width: wide, y: above, height: height - below - above }),
      el('title', {}, `${stamp(point.start_time, data)}\n${said}`)));
  });
  const label = `Tool calls over time by ${names === INTENTS ? 'intent' : 'status'}; the numbers are in the table below.`;
  place.replaceChildren(el('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': label }, ...parts));
}

/** A round distance of at most five grid lines. */
function step(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return Math.max([0.2, 0.5, 1, 2].map((part) => part * power).find((part) => most / part <= 5), 1);
}

// ---- Servers and tools

/** What became of the calls of a server since the start. */
function called(calls) {
  if (!calls.total) return [];
  const half = (us) => `${took(us.p50 / 1000)}, 1 % above ${took(us.p99 / 1000)}`;
  return [['calls', number(calls.total)], ['errors', number(calls.error)],
    ['took (median)', half(calls.duration_us)], ['of it the proxy', half(calls.overhead_us)]];
}

async function servers() {
  const { data } = await ask('servers');
  const cards = data.servers.map((server) => el('li', { class: 'card' },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, server.name)), tag(server.state)),
    server.reason && el('p', { class: server.state === 'failed' ? 'wrong' : 'quiet' }, server.reason),
    pairs(['tools', number(server.tools)], ['in quarantine', server.quarantined ? number(server.quarantined) : ''], ['since', when(server.since)], ['transport', server.protocol],
      ['MCP', server.protocol_version], ['says it is', server.server_info], ...called(server.calls))));
  $('servers').replaceChildren(...(cards.length ? cards
    : [el('li', { class: 'card' }, 'No server is configured: ', el('code', {}, 'mcpServers'), ' in the config file.')]));
}

const tools = {
  cursor: undefined,
  asked: 0,

  async load(cursor) {
    const asked = ++this.asked;
    const { data } = await ask('tools', { q: $('tool-form').elements.q.value.trim(), limit: PAGE, cursor });
    if (asked !== this.asked) return;
    if (!cursor) $('tools').replaceChildren();
    $('tools').append(...data.tools.map(tool));
    this.cursor = data.next_cursor;
    $('more-tools').hidden = !this.cursor;
    $('tool-count').textContent = `${number(data.total)} ${data.total === 1 ? 'tool' : 'tools'}`;
  },
};

function tool(it) {
  const operation = it.call_with.replace('call_tool_', '');
  const schema = it.inputSchema && el('details', {}, el('summary', {}, 'Parameters'),
    el('pre', { tabindex: 0 }, JSON.stringify(it.inputSchema, null, 2)));
  return el('li', { class: 'card' },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.name)), tag(operation)),
    it.quarantined && el('p', { class: 'wrong' }, 'Its definition is in quarantine. It waits for ',
      el('code', {}, 'mcpproxy tools approve'), '.'),
    it.findings.length > 0 && el('ul', { class: 'quiet' }, it.findings.map((found) =>
      el('li', {}, `${found.rule} (${found.level}) in ${found.place}: ${found.detail}`))),
    it.description && el('p', { class: 'quiet' }, it.description),
    pairs(['call with', el('code', {}, it.call_with)],
      ['approval', it.capability?.approval === 'auto' ? undefined : it.capability?.approval]), schema);
}

// ---- Going

/** Runs `work` when nothing more was typed for a moment. */
function settled(work) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, 250);
  };
}

$('key-form').addEventListener('submit', unlock);
$('forget').addEventListener('click', () => lock());
$('filters').addEventListener('input', settled(() => list.load()));
$('filters').addEventListener('submit', (event) => event.preventDefault());
$('filters').addEventListener('reset', () => setTimeout(() => list.load()));
$('older').addEventListener('click', () => list.older());
$('rows').addEventListener('focusin', (event) => {
  for (const link of $('rows').querySelectorAll('a[tabindex="0"]')) link.tabIndex = -1;
  event.target.tabIndex = 0;
});
$('counts-form').addEventListener('change', () => attempt(counts.load));
$('tool-form').addEventListener('submit', (event) => event.preventDefault());
$('tool-form').addEventListener('input', settled(() => attempt(() => tools.load())));
$('more-tools').addEventListener('click', () => attempt(() => tools.load(tools.cursor)));
document.addEventListener('keydown', keys);
window.addEventListener('hashchange', route);
window.addEventListener('resize', settled(() => counts.draw()));
// A hidden tab holds no connection: a browser has few of them for one server.
document.addEventListener('visibilitychange', () => {
  if ($('open').hidden) return;
  if (document.hidden) live.stop();
  else {
    live.start();
    refresh();
  }
});
setInterval(() => { if (!document.hidden && !$('open').hidden && view !== 'tools') refresh(); }, REFRESH_MS);

if (sessionStorage.getItem(KEY)) start();
else lock();
