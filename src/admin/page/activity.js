// The activity view: records, filtered, searched and live. A call, its decisions and its approval share a row; filters and the open record
// are stored in the address.

import { anchor, arrange, beginsList, button, chip, command, el, empty, fill, identifier, keyHelp, markChips, number, option, panel, para, redraw, settled, tag, took, visible, when } from './dom.js';
import { csvButton } from './csv.js';
import { listen } from './live.js';
import { CALLS, TYPES, happened, open, operation, statusOf, subject, times } from './record.js';
import { act, ask, attempt } from './rest.js';
import { change, here, link, named } from './route.js';

const PAGE = 50; // page size
const MAX_ROWS = 500; // rows kept while records arrive; older ones are a click away
const MAX_PAGES = 20; // maximum requests per text search before the user has to continue it
export const RANGES = { '15m': 900, '1h': 3600, '24h': 86400, '7d': 604800, '30d': 2592000 };
export const LAST = { '15m': 'last 15 minutes', '1h': 'last hour', '24h': 'last 24 hours', '7d': 'last 7 days', '30d': 'last 30 days' };
const FILTERS = ['type', 'status', 'intent_type', 'server', 'tool', 'min_duration_ms', 'principal', 'session_id', 'request_id', 'node'];
const SLOW = { 100: '100 ms', 1000: '1 s', 10000: '10 s', 60000: '1 min' };

const select = (name, values) => el('select', { name }, option('', 'all'), values.map((value) => (Array.isArray(value) ? option(...value) : option(value))));
const text = (name, more = {}) => el('input', { name, autocomplete: 'off', spellcheck: 'false', ...more });
/** Filters that stand in the form while they are set, or once they are added. */
const ADDED = { server: 'Server', tool: 'Tool', principal: 'Principal', session_id: 'Session', request_id: 'Request', node: 'Node' };
const LISTS = { server: 'server-names', tool: 'called-tools', principal: 'principal-names', node: 'node-names' };

const adder = el('select.add', { 'aria-label': 'Add a filter', change: () => added(adder.value) });
const copyLink = button('Copy link', async () => {
  let words = 'Copied';
  try { await navigator.clipboard.writeText(location.href); } catch { words = 'Not allowed'; }
  copyLink.textContent = words;
  setTimeout(() => { copyLink.textContent = 'Copy link'; }, 1500);
}, { title: 'Copy the address of this list with its filters' });
const download = csvButton('activity', () => [
  ['time', 'type', 'server', 'tool', 'principal', 'client', 'operation', 'status', 'duration ms', 'reason', 'message', 'id'],
  ...[...rows.children].map(({ it }) => [stored(it), it.type, it.server_name, it.tool_name, it.principal, it.metadata?.client_name, operation(it), statusOf(it), it.duration_ms,
    it.intent?.reason, it.error_message || happened(it), it.id])], 'The records that are listed. All that match: mcpproxy activity export');
const pause = button('Pause', () => list.pause(!list.paused), { id: 'pause', 'aria-pressed': 'false', title: 'Hold back new records' });
const clear = el('button', { type: 'reset' }, 'Clear');
const form = el('form.chips', { id: 'filters', 'aria-label': 'Filters' },
  text('q', { type: 'search', placeholder: 'Search in records', 'aria-label': 'Text' }),
  chip('When', select('range', [...Object.entries(LAST), ['between', 'between']])),
  chip('From', el('input', { name: 'from', type: 'datetime-local', step: 1 }), { hidden: true }),
  chip('To', el('input', { name: 'to', type: 'datetime-local', step: 1 }), { hidden: true }),
  chip('Type', select('type', [...Object.entries(TYPES).filter(([name]) => !name.startsWith('system')), ['system_start,system_stop', 'start, stop']])),
  chip('Status', select('status', ['success', 'error', 'blocked', 'rejected', 'warning', 'unknown', ['blocked,rejected', 'refused']])),
  chip('Intent', select('intent_type', ['read', 'write', 'destructive'])),
  chip('Took at least', el('select', { name: 'min_duration_ms' }, option('', 'any'), Object.entries(SLOW).map(([ms, words]) => option(ms, words)))),
  Object.entries(ADDED).map(([name, words]) => chip(words, text(name, { list: LISTS[name] }), { hidden: true })),
  adder, clear);
/** Column headings of the lines. */
export const heads = ({ who = 'Who', took: last = 'Took' } = {}) => el('div.row head', { 'aria-hidden': 'true' }, ['Time', 'What and why', who, 'Intent', 'Status', last].map((name) => el('span', { title: name === 'Time' ? 'when it ended' : undefined }, name)));
const rows = el('ol.records', { id: 'rows', 'aria-label': 'Records, newest first' });
const none = el('div', { id: 'none', hidden: true });
const older = button('Older', () => list.older(), { id: 'older', hidden: true });
const names = el('datalist', { id: 'server-names' });
const tools = el('datalist', { id: 'called-tools' });
const principals = el('datalist', { id: 'principal-names' });
const nodes = el('datalist', { id: 'node-names' });
const record = panel('record', 'Record');
const searched = el('p.quiet', { id: 'searched', role: 'status' });
const lacking = el('div.quiet', { id: 'lacking', role: 'status', hidden: true });

export const activity = {
  name: 'activity',
  label: 'Activity',
  takes: ['q', 'range', 'from', 'to', 'record', ...FILTERS],
  root: el('div', {}, el('div.side', {}, download, copyLink, pause), form, names, tools, principals, nodes, searched, lacking,
    el('div.split', {},
      el('div.list', {},
        heads(),
        rows, none, older, keyHelp()),
      record)),

  show(parameters) {
    const { record: wanted, ...given } = parameters;
    const filter = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, meant(name, value)]));
    const key = JSON.stringify(filter);
    if (key !== list.key) {
      list.key = key;
      list.wanted = filter;
      fields(filter);
      list.load();
      attempt(async () => {
        const { data } = await ask('servers');
        fill(names, data.servers.map((server) => option(server.name)));
        const { data: offered } = await ask('tools', { limit: 100 });
        fill(tools, offered.tools.map((it) => option(it.name)));
        const { data: known } = await ask('principals');
        fill(principals, ['admin', 'anonymous', ...known.principals.map(({ name }) => name)].map((name) => option(name)));
        const { data: fleet } = await ask('fleet');
        fill(nodes, fleet.nodes.map((it) => option(it.node)));
        inFleet = Boolean(fleet.node);
        addable();
        if (list.listed === list.asked) list.end(list.cursor);
      });
    }
    if (wanted) openRecord(wanted);
    else closeRecord();
  },

  forget() {
    list.key = undefined;
    list.asked += 1;
    shut();
    fields({});
    lacks();
    list.pause(false);
    for (const place of [rows, record, names, tools, principals, nodes, searched]) fill(place);
  },

  keys,
};

// ---- Filters

let inFleet = false;

const chipOf = (name) => form.elements[name].closest('.chip');

/** Offers the filters that the form does not show yet. */
function addable() {
  const hidden = Object.entries(ADDED).filter(([name]) => chipOf(name).hidden && (name !== 'node' || inFleet));
  redraw(adder, option('', '+ Filter'), hidden.map(([name, words]) => option(name, words)));
  adder.hidden = hidden.length === 0;
  markChips(form);
  clear.hidden = !form.querySelector('.chip.set') && !form.elements.q.value;
}

/** Shows a filter, to be filled in. */
function added(name) {
  adder.value = '';
  if (!name) return;
  chipOf(name).hidden = false;
  addable();
  form.elements[name].focus();
}

/** The value of a filter, which the address may also name as the form does: `refused`. */
const meant = (name, value) => [...(form.elements[name]?.options ?? [])].find((it) => it.text === value)?.value || value;

/** Fills the form from the filter in the address. */
function fields(filter) {
  const is = (name) => form.elements[name];
  for (const one of form.querySelectorAll('[data-given]')) one.remove();
  for (const name of ['q', 'range', ...FILTERS]) {
    const field = is(name);
    const value = filter[name] ?? '';
    if (field.tagName === 'SELECT' && value && ![...field.options].some((it) => it.value === value)) field.append(el('option', { value, 'data-given': true }, name === 'min_duration_ms' ? took(Number(value)) : value));
    if (field !== document.activeElement || field.value.trim() !== value) field.value = value;
  }
  if (filter.from || filter.to) is('range').value = 'between';
  for (const name of ['from', 'to']) {
    is(name).value = filter[name] ? local(new Date(filter[name])) : '';
    chipOf(name).hidden = is('range').value !== 'between';
  }
  for (const name of Object.keys(ADDED)) chipOf(name).hidden = !filter[name] && is(name) !== document.activeElement;
  addable();
}

/** Formats a time for a `datetime-local` field, in the browser's time zone. */
function local(date) {
  if (Number.isNaN(date.getTime())) return '';
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

/** Updates the address from the form. */
function typed() {
  const given = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
  const between = given.range === 'between';
  for (const name of ['from', 'to']) {
    chipOf(name).hidden = !between;
    given[name] = between && given[name] ? new Date(given[name]).toISOString() : '';
  }
  addable();
  // A record stays open where nothing changed: Clear and the pause after typing may both say the same.
  const { record: _open, ...shown } = here().parameters;
  if (link('activity', given) !== link('activity', shown)) change({ ...given, record: '' }, true);
}

/** The query parameters of a filter. */
function asked(filter) {
  const query = Object.fromEntries(FILTERS.map((name) => [name, filter[name]]));
  Object.assign(query, ofTool(filter));
  if (RANGES[filter.range]) query.start_time = new Date(Date.now() - RANGES[filter.range] * 1000).toISOString();
  if (onlyWithheld(filter)) query.type = Object.keys(TYPES).filter((type) => type !== 'policy_decision').join(',');
  if (meansRejected(filter)) query.status = `${filter.status},blocked`;
  if (filter.from) query.start_time = filter.from;
  if (filter.to) query.end_time = filter.to;
  return query;
}

/** Server and tool of a filter, whose tool may be written as it is shown: `server:tool`. */
function ofTool({ server, tool = '' }) {
  const name = named(tool);
  return tool.includes(':') && (!server || server === name.server) ? name : { server, tool };
}

/** Says which names of a filter do not exist, once the names are loaded. */
function unknown({ server, principal = '' }) {
  const isMissing = (place, name) => place.childElementCount > 0 && ![...place.children].some((it) => it.value === name);
  return [server && isMissing(names, server) && para(`No server named '${server}'.`),
    principal.startsWith('token:') && isMissing(principals, principal) && para(`No token named '${principal.slice(6)}'.`)].filter(Boolean);
}

/** Whether only calls whose result was withheld are wanted. The decisions about refused calls are `blocked`, too. */
const onlyWithheld = ({ type, status }) => !type && status === 'blocked';

/** Whether the decisions about rejected calls are wanted, whose own status is `blocked` ([`statusOf`]). */
const meansRejected = ({ type, status }) => type === 'policy_decision' && status === 'rejected';

/** Applies the server's filter to live records. */
function fits(it, filter) {
  if (onlyWithheld(filter) && it.type === 'policy_decision') return false;
  const equal = (wanted, value) => !wanted || wanted.split(',').includes(value);
  const given = { ...filter, ...ofTool(filter) };
  return equal(filter.type, it.type) && (equal(filter.status, it.status) || (meansRejected(filter) && statusOf(it) === 'rejected'))
    && equal(filter.intent_type, operation(it))
    && [['server', 'server_name'], ['tool', 'tool_name'], ['principal', 'principal'], ['session_id', 'session_id'], ['request_id', 'request_id'], ['node', 'node_name']]
      .every(([name, member]) => !given[name] || given[name] === it[member])
    && !(it.duration_ms < filter.min_duration_ms)
    && (!filter.to || it.timestamp <= filter.to) && holds(it, filter.q);
}

/** Whether a live record contains a text, as the server searches stored ones. */
const holds = (it, q) => !q || said([it, subject(it)]).includes(q.toLowerCase());
const said = (value) => (value && typeof value === 'object' ? Object.values(value).map(said).join('\n') : String(value ?? '').toLowerCase());

/** Names the nodes of a fleet whose records are incomplete in the list. */
function lacks(fleet) {
  const missing = Object.entries(fleet?.missing ?? {});
  lacking.hidden = missing.length === 0;
  fill(lacking, missing.map(([node, why]) => para(`Records of ${node} are incomplete: ${why}`)));
}

// ---- The list

const list = {
  key: undefined,
  wanted: {},
  cursor: undefined,
  trimmed: false,
  asked: 0,
  listed: 0, // whose answer is in the list
  seen: 0,
  paused: false,
  isRefused: false, // whether the filters are invalid
  held: 0, // records that came while it was paused
  early: undefined, // records that came while the list loads, and may be missing in it

  /** Holds new records back, or loads them. */
  pause(wanted) {
    const missed = this.held > 0;
    [this.paused, this.held] = [wanted, 0];
    this.showPause();
    if (!wanted && missed && this.key !== undefined) this.load();
  },

  /** Shows on the button what it does, and how many records wait. */
  showPause() {
    pause.setAttribute('aria-pressed', this.paused);
    pause.textContent = !this.paused ? 'Pause' : this.held ? `Resume (${number(this.held)} new)` : 'Resume';
  },

  /** Loads the newest page again. */
  load() {
    const mine = ++this.asked;
    const early = [];
    [this.seen, this.early] = [0, early];
    return attempt(async () => {
      this.isRefused = false;
      let found;
      try {
        found = await this.page({}, mine);
      } catch (error) {
        if (mine === this.asked && error.status < 500) {
          this.isRefused = true;
          for (const place of [rows, searched]) fill(place);
          none.hidden = older.hidden = true;
        }
        throw error;
      }
      if (mine !== this.asked) return;
      this.listed = mine;
      const focused = rows.contains(document.activeElement);
      fill(rows);
      this.trimmed = false;
      found.activities.forEach((it) => place(it));
      this.end(found.next_cursor);
      this.early = undefined;
      if (!this.paused) early.forEach((it) => this.add(it));
      mark(record.dataset.id);
      if (focused) move(0);
    }, 'activity');
  },

  /** A page; with a text, as many pages as it takes to find some. */
  async page(from, mine) {
    const { q, min_duration_ms: least } = this.wanted;
    if (!q && !least) {
      const { data } = await ask('activity', { ...asked(this.wanted), ...from, limit: PAGE });
      if (mine === this.asked) lacks(data.fleet);
      return data;
    }
    const found = [];
    let next = from;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const { data } = await ask('activity', { ...asked(this.wanted), ...next, text: q, limit: PAGE - found.length });
      if (mine !== this.asked) return { activities: [] };
      found.push(...data.activities);
      this.seen += data.searched;
      lacks(data.fleet);
      next = { cursor: data.next_cursor };
      if (!data.next_cursor || found.length >= PAGE) break;
    }
    return { activities: found, next_cursor: next.cursor };
  },

  end(cursor) {
    this.cursor = cursor;
    const { q, ...filter } = this.wanted;
    const scans = q || filter.min_duration_ms;
    older.hidden = !cursor && !this.trimmed;
    older.textContent = scans ? 'Search older records' : 'Older';
    searched.textContent = scans ? `${number(rows.childElementCount)} found in ${number(this.seen)} records${cursor ? '; there are older ones' : ''}` : '';
    const first = rows.querySelector('a');
    if (first && !rows.querySelector('a[tabindex="0"]')) first.tabIndex = 0;
    const filtered = Object.values({ q, ...filter }).some(Boolean);
    // What the proxy did by itself is no reason to say nothing to somebody who waits for an agent.
    none.hidden = filtered ? Boolean(first) : Boolean(cursor) || [...rows.children].some((made) => CALLS.includes(made.it.type));
    if (none.hidden) return;
    redraw(none, filtered
      ? empty('No record matches the filters.', ...unknown(filter), para(anchor(link('activity'), 'Show all records')))
      : empty('No agent has called anything yet.', para('Connect one to ', command(`${location.origin}/mcp`)),
        para('Or ', anchor(link('tools'), 'try a tool here'), '.')));
  },

  older() {
    // The list that is shown is not the one that is asked for: that did not come.
    if (this.listed !== this.asked) return this.load();
    // A cursor names the end of a page; once rows were let go, the end is a row in between.
    const from = this.trimmed ? { offset: rows.childElementCount } : { cursor: this.cursor };
    const mine = this.listed;
    return act(async () => {
      const before = rows.lastElementChild;
      const found = await this.page(from, mine);
      if (mine !== this.asked) return; // it goes on from a list that another one takes the place of
      found.activities.filter((it) => !known(it.id)).forEach((it) => place(it));
      this.trimmed = false;
      this.end(found.next_cursor);
      before?.nextElementSibling?.querySelector('a').focus();
    });
  },

  /** Polls for new records while there is no stream. */
  async poll() {
    if (this.key === undefined || this.isRefused) return;
    const mine = this.asked;
    const { data } = await ask('activity', { ...asked(this.wanted), limit: PAGE });
    if (mine !== this.asked) return;
    const fresh = data.activities.filter((it) => !known(it.id));
    if (this.paused) {
      this.held = fresh.length;
      this.showPause();
    } else if (fresh.length && fresh.length === data.activities.length && data.next_cursor) await this.load();
    else fresh.reverse().forEach((it) => this.add(it));
  },

  /** Inserts a live record if it matches the filters. */
  add(it) {
    if (this.key === undefined || this.isRefused || known(it.id)) return;
    if (!fits(it, this.wanted)) {
      // A decision about a call in the list is shown in its row, whatever the filters.
      const call = it.type === 'policy_decision' && !this.paused && it.parent_id && rowOf(it.parent_id);
      if (call) fold(call, it);
      return;
    }
    if (this.early?.length < MAX_ROWS) this.early.push(it);
    if (this.paused) {
      this.held += 1;
      this.showPause();
      return;
    }
    this.seen += 1;
    place(it)?.classList.add('fresh');
    if (rows.childElementCount > MAX_ROWS) {
      rows.lastElementChild.remove();
      this.trimmed = true;
    }
    this.end(this.cursor);
  },
};

listen((it) => list.add(it), () => list.poll());

const rowOf = (id, list = rows) => list.querySelector(`[data-key="${CSS.escape(id)}"]`);
const known = (id) => Boolean(rowOf(id) ?? rows.querySelector(`[data-decisions~="${CSS.escape(id)}"]`));

/**
 * The approval that a record belongs to: of a call, or of a request of it. A standing approval covers many calls, but its records are
 * about the first of them.
 */
const approvalOf = ({ metadata, request_id: request }) =>
  (metadata?.approval && metadata.approval !== 'definition' ? `${metadata.approval} ${request ?? ''}` : undefined);

/**
 * Inserts a record in order into a list whose rows link to records of this `filter`. A decision or an approval is folded into the row
 * of its call, a request into that of its answer.
 */
function place(it, list = rows, filter = here().parameters, more = { tabindex: -1 }) {
  const [isDecision, isApproval, approval] = [it.type === 'policy_decision', it.type === 'approval', approvalOf(it)];
  const of = (name, value) => (value ? [...list.querySelectorAll(`[data-${name}="${CSS.escape(value)}"]`)] : []);
  const [call] = isDecision ? [it.parent_id && rowOf(it.parent_id, list)] : isApproval ? of('asked', approval) : [];
  if (call) return fold(call, it);
  const same = isDecision ? [] : of('approval', approval);
  if (isApproval && same.length && same[0].it.id > it.id) return fold(same[0], it);
  // If its client was asked, a call ends before its approval, whose outcome has a row of its own.
  const isOutcome = isApproval || !it.metadata?.input_required;
  const made = row(it, filter, more);
  // Ids are in the order of time, whichever node's they are.
  const next = [...list.children].find((other) => other.it.id < it.id);
  list.insertBefore(made, next ?? null);
  for (const one of [...of('parent', it.id), ...(isOutcome ? same : [])]) {
    fold(made, one.it);
    one.remove();
  }
  return made;
}

/** A list of at most `max` rows, folded as in this view. Decisions about calls older than `found` are left out. */
export function recordList(found, filter, label, max) {
  const made = el('ol.records', { 'aria-label': label });
  found.forEach((it) => place(it, made, filter, {}));
  arrange(made, [...made.children].filter(({ it }) => it.type !== 'policy_decision' || !it.parent_id).slice(0, max));
  return made;
}

/** Folds a decision or an approval into the row of its call, or a request for approval into that of its answer. */
function fold(made, decision) {
  made.dataset.decisions = `${made.dataset.decisions ?? ''} ${decision.id}`.trim();
  if (decision.type === 'approval') {
    // Calls recorded by earlier versions do not tell who answered.
    const isAnswer = CALLS.includes(made.it.type) && decision.metadata.state !== 'waiting' && !made.it.metadata?.approval_answer;
    if (isAnswer) made.querySelector('.why').append(el('bdi.quiet', {}, happened(decision)));
    return made;
  }
  // The agent got the call's own words: those of a refusal may lack a name, or its reason if the tool is hidden.
  const { error_message: own = '', status } = made.it;
  const { policy, reason, rules, guard } = decision.metadata ?? {};
  const isBlocked = decision.status === 'blocked';
  const cause = own && made.querySelector('.cause');
  const isSaid = reason ? [...made.querySelectorAll('.cause')].some((it) => it.textContent.includes(visible(reason))) : cause && isBlocked;
  if (cause && isBlocked && (isSaid || /^(in|out)put_validation$/.test(policy))) {
    const names = [rules, guard].flat().filter((name) => name && !own.includes(name)).join(', ');
    if (names) cause.prepend(visible(`${names}: `));
  } else if (!isSaid) {
    const reasons = why(decision);
    if (status === 'rejected') reasons.forEach((one) => one.classList.replace('blocked', 'rejected'));
    if (cause) cause.after(...reasons);
    else made.querySelector('.why').prepend(...reasons);
  }
  if (decision.status === 'warning') made.querySelector('.tag.success, .tag.error')?.after(' ', tag('warning'));
  return made;
}

/** The reason of a decision or an error. */
function why(it) {
  const { policy, reason, rules } = it.metadata ?? {};
  const decided = it.type === 'policy_decision';
  const words = decided ? reason || it.error_message : it.error_message;
  const by = decided && policy ? `${String(policy).replace('_', ' ')}${Array.isArray(rules) && rules.length ? ` (${rules.join(', ')})` : ''}: ` : '';
  return words || by ? [el('bdi', { class: `cause ${it.status}` }, by, words)] : [];
}

/** The principal, and the client that it used. */
const who = ({ principal, metadata }) => el('span.who', {}, el('bdi', {}, principal ?? ''),
  metadata?.client_name && el('bdi.quiet', {}, metadata.client_name));

/** When a record was stored, which is the order of the list: the time in its id (ULID). */
function stored({ id }) {
  const digits = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
  return new Date([...id.slice(0, 10)].reduce((ms, digit) => 32 * ms + digits.indexOf(digit), 0)).toISOString();
}

/** The wait for an approval, which is its duration, but not in that of its call. */
const waited = ({ type, duration_ms: duration, metadata }) => (type === 'approval' ? duration > 0 && el('span.wait', {}, 'wait')
  : metadata?.approval_wait_ms > 0 && el('span.wait', { title: 'the wait for approval' }, `+ ${took(metadata.approval_wait_ms)} wait`));

/** The line of a record: a link to the record in the list of this `filter`. */
function line(it, filter, more) {
  const kind = it.type === 'tool_call' ? '' : TYPES[it.type] ?? it.type;
  const what = el('span.what', {},
    el('span.name-line', {}, kind && el('span.quiet', {}, kind, ' '), identifier(subject(it), { class: 'name' })),
    el('span.why', {}, why(it), [times(it), it.intent?.reason, happened(it)].filter(Boolean).map((words) => el('bdi.quiet', {}, words))));
  const ended = stored(it);
  return el('a.row', { href: link('activity', { ...filter, record: it.id }), ...more },
    el('time', { datetime: ended, title: `${ended}, began ${it.timestamp}` }, when(ended).textContent), what, who(it), el('span', { class: !operation(it) && 'none' }, tag(operation(it))),
    el('span', {}, tag(statusOf(it))), el('span.took', {}, took(it.duration_ms), waited(it)));
}

function row(it, filter, more) {
  const approval = approvalOf(it);
  const made = el('li', {
    'data-key': it.id, 'data-parent': it.type === 'policy_decision' ? it.parent_id : undefined,
    'data-approval': it.type === 'approval' ? approval : undefined, 'data-asked': CALLS.includes(it.type) && !it.metadata?.input_required ? approval : undefined,
  },
    line(it, filter, more));
  made.it = it;
  return made;
}

// ---- The open record

let opened = 0; // how often one was opened or shut: what was asked for before counts no more

async function openRecord(id) {
  if (record.dataset.id === id) return;
  const mine = ++opened;
  const wanted = () => mine === opened;
  record.dataset.id = id;
  mark(id);
  const well = await open(record, id, wanted, [button('↑', () => beside('previousElementSibling'), { 'aria-label': 'Newer record' }),
    button('↓', () => beside('nextElementSibling'), { 'aria-label': 'Older record' }), button('✕', () => change({ record: '' }), { 'aria-label': 'Close' })]);
  // The list is narrower now, and its rows are higher.
  if (wanted()) rowOf(id)?.scrollIntoView({ block: 'nearest' });
  if (well || !wanted()) return;
  // It stays in the address, and is asked for again by a click on its row.
  const focused = record.contains(document.activeElement);
  shut();
  if (focused) rowOf(id)?.querySelector('a').focus();
}

function closeRecord() {
  const id = record.dataset.id;
  if (!id) return;
  shut();
  rowOf(id)?.querySelector('a').focus();
}

function shut() {
  opened += 1;
  delete record.dataset.id;
  record.hidden = true;
  mark();
}

function mark(id) {
  for (const one of rows.querySelectorAll('a[aria-current]')) one.removeAttribute('aria-current');
  if (id) rowOf(id)?.querySelector('a').setAttribute('aria-current', 'true');
}

// ---- Keys

/** Moves the focus in the list; only one row is a stop of the tab key. */
function move(by) {
  const links = [...rows.querySelectorAll('a')];
  if (!links.length) return;
  const at = links.findIndex((one) => one.tabIndex === 0);
  const inside = rows.contains(document.activeElement);
  links[Math.min(Math.max(inside ? at + by : Math.max(at, 0), 0), links.length - 1)].focus();
}

/** Opens the record beside the open one. */
function beside(side) {
  const other = rowOf(record.dataset.id)?.[side];
  if (other) change({ record: other.it.id }, true);
}

function keys(event) {
  if (event.key === 'Escape' && here().parameters.record) change({ record: '' });
  if (event.target.closest('input, select, textarea')) return;
  const side = { j: 'nextElementSibling', k: 'previousElementSibling' }[event.key];
  if (side && record.dataset.id) {
    beside(side);
    return;
  }
  if (record.contains(event.target)) return;
  const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
  if (by && (event.key.length === 1 || beginsList(event) || rows.contains(event.target))) {
    event.preventDefault();
    move(by);
  }
}

form.addEventListener('input', settled(typed));
form.addEventListener('submit', (event) => event.preventDefault());
form.addEventListener('reset', () => setTimeout(typed));
rows.addEventListener('focusin', (event) => {
  for (const one of rows.querySelectorAll('a[tabindex="0"]')) one.tabIndex = -1;
  event.target.tabIndex = 0;
});
// A link says the filters of the moment in which it is followed.
rows.addEventListener('click', (event) => {
  const made = event.target.closest('li');
  if (!made || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (here().parameters.record === made.it.id) openRecord(made.it.id);
  else change({ record: made.it.id });
});
