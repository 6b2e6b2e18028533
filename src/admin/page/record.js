// A record with the decisions about it.

import { anchor, bytes, code, copied, el, exactly, fill, identifier, json, laidOut, lasted, number, pairs, para, tag, took, visible } from './dom.js';
import { act, ask, segment } from './rest.js';
import { link } from './route.js';

export const TYPES = {
  tool_call: 'tool call', policy_decision: 'decision', internal_tool_call: 'own tool',
  resource_read: 'resource', prompt_get: 'prompt', completion: 'completion', gap: 'gap',
  server_change: 'server', catalog_change: 'catalog', approval: 'approval', server_question: 'question',
  config_change: 'config', retention: 'retention', system_start: 'start', system_stop: 'stop',
};
export const CALLS = ['tool_call', 'internal_tool_call', 'resource_read', 'prompt_get', 'completion'];

/** Status; an approval that was not granted, such as one that still waits, is no success. A decision has the status of its call. */
export const statusOf = ({ type, status, metadata }) => {
  if (type === 'approval' && status === 'success' && metadata?.state !== 'approved') return metadata?.state || status;
  return type === 'policy_decision' && status === 'blocked' && metadata?.policy !== 'output_validation' ? 'rejected' : status;
};
/** The operation type: that of the intent, otherwise of the tool. */
export const operation = ({ intent, metadata }) => intent?.operation_type ?? metadata?.operation;

export const subject = (activity) => [activity.server_name, activity.tool_name].filter(Boolean).join(':');

const NAMED = 4; // of many that changed together

const named = (names) => (names.length > NAMED ? `${names.slice(0, NAMED).join(', ')} and ${number(names.length - NAMED)} more` : names.join(', '));
const list = (value) => (Array.isArray(value) ? value : []);

/** Number of requests that a record represents, if more than one. */
export const times = ({ metadata }) => (metadata?.repeated > 1 ? `${number(metadata.repeated)} times` : '');

/** Validity of an approval. */
function extent(counts) {
  const seconds = /^(\d+)s$/.exec(counts)?.[1];
  return seconds ? `for ${lasted(Number(seconds))}` : counts === 'session' && 'for the session';
}

/** Summary of a record that is not a call; errors are in the record's error. */
export function happened({ type, metadata }) {
  const { status, tools, login, changes, needs_restart: restart, section, rules, name, change, state, approval, by, door, removed, reason, approval_answer: answer, ...more } = metadata ?? {};
  const each = (words) => words.filter(Boolean).join('; ');
  switch (type) {
    case 'server_change':
      if (login) return `login ${login}`;
      if (status === 'connecting' && reason) return `lost, ${reason}`;
      return status === 'connected' ? `connected, ${number(tools)} ${tools === 1 ? 'tool' : 'tools'}` : status;
    case 'config_change': {
      if (section === 'policy') return rules === undefined ? '' : `${number(rules)} ${rules === 1 ? 'rule' : 'rules'} in force`;
      if (name) return `${String(change).replace('_', ' ')}: ${name}`;
      if (!Array.isArray(changes)) return '';
      const words = [...new Set(changes.map((it) => it.change))].map((how) => `${how} ${named(changes.filter((it) => it.change === how).map((it) => it.key))}`);
      return each([...(words.length ? words : ['read again, nothing has changed']), list(restart).length && `from the next start on: ${named(restart)}`]);
    }
    case 'catalog_change':
      return more.released ? reason : each(['added', 'changed', 'removed', 'duplicates']
        .map((how) => [how, how === 'removed' ? list(removed) : list(more[how])]).map(([how, names]) => names.length && `${how} ${named(names)}`));
    case 'approval':
      return approval === 'definition' ? 'its definition' : answered({ state, by, door, for: more.for });
    case 'retention':
      return removed && `${number(removed)} records removed (${String(reason).replaceAll('_', ' ')})`;
    default:
      return answer ? answered(answer) : '';
  }
}

/** State of an approval: who answered, and how long the answer is valid. */
const answered = ({ state, by, door, for: scope, standing }) =>
  [String(state ?? '').replace('_', ' '), by && `by ${by} over ${door}`, extent(scope), standing && '(standing approval)'].filter(Boolean).join(' ');

export const MISSING = 'There is no record with this id, or it is not kept any more.';

/** Shows the record in `place` with these `buttons` if it is still `wanted` once loaded. */
export function open(place, id, wanted, buttons) {
  return act(async () => {
    try {
      const { data, text } = await ask(`activity/${segment(id)}`);
      const [about, call] = await Promise.all([decisions(data.activity), callOf(data.activity)]);
      if (wanted()) show(place, details(data.activity, json(text).data.activity, about, call), buttons);
    } catch (error) {
      if (error.status !== 404) throw error;
      if (wanted()) show(place, [para(MISSING)], buttons);
    }
  });
}

function show(place, [first, ...rest], buttons) {
  fill(place, el('div.top', {}, first, buttons), rest);
  place.hidden = false;
  place.scrollTop = 0;
  place.focus({ preventScroll: true });
}

/** What was decided about a call: the records that name it as their parent, begun with it. */
export async function decisions(activity) {
  if (!CALLS.includes(activity.type)) return [];
  const from = new Date(activity.timestamp).getTime();
  const { data } = await ask('activity', {
    type: 'policy_decision', server: activity.server_name, tool: activity.tool_name,
    session_id: activity.session_id, request_id: activity.request_id, limit: 100,
    start_time: new Date(from - 1).toISOString(), end_time: new Date(from + 1).toISOString(),
  });
  return data.activities.filter((other) => other.parent_id === activity.id).reverse();
}

/** The call that a record is about: itself, or that of a decision if it is still kept. */
async function callOf(activity) {
  if (activity.type !== 'policy_decision' || !activity.parent_id) return activity;
  try {
    return (await ask(`activity/${segment(activity.parent_id)}`)).data.activity;
  } catch (error) {
    if (error.status !== 404) throw error;
    return activity;
  }
}

/** Whether the rules can be asked about the call of a record. The endpoint explains calls of upstream tools only. */
export const explainable = ({ type, server_name: server, tool_name: tool, principal, metadata }) => Boolean(
  type === 'tool_call' && server && tool && principal && /^(direct|call_tool_\w+)$/.test(metadata?.tool_variant));

/** A link to the records that share a value. */
const only = (parameters) => [' ', el('a.more', { href: link('activity', parameters) }, 'other records')];

function details(activity, exact, about, call) {
  const { queued_ms: queue = 0, approval_wait_ms: approval = 0 } = activity.metadata ?? {};
  const proxy = activity.overhead_us / 1000;
  const isCall = CALLS.includes(activity.type);
  const isWait = activity.type === 'approval';
  const spent = isWait ? { approval: activity.duration_ms } : { queue, approval, proxy, upstream: Math.max(activity.duration_ms - proxy - queue, 0) };
  const decided = activity.type === 'policy_decision' ? [activity] : about;
  const intent = activity.intent ?? {};
  const { tool_variant: variant, client_name: client, intent: _same, operation: _shown, ...rest } = activity.metadata ?? {};
  const { approval: of, approval_answer: given, ...others } = rest;
  const { state, by, door, for: scope, until, digest, ...unnamed } = others;
  const answer = isWait ? others : given;
  const more = isWait ? unnamed : others;
  const heading = (text) => el('h3', {}, text);
  const called = activity.duration_ms > 0;
  const parent = activity.parent_id && anchor(link('activity', { record: activity.parent_id }), 'the call');
  const name = subject(activity);
  return [
    el('div', {}, el('h2', {}, identifier(name || (TYPES[activity.type] ?? activity.type))),
      el('div.tags', {}, el('span.quiet', {}, TYPES[activity.type] ?? activity.type),
        tag(statusOf(activity)), tag(operation(activity)))),

    (decided.length > 0 || activity.error_message) && heading('Verdict'),
    activity.error_message && el('p.message', {}, activity.error_message),
    decided.map((decision) => verdict(decision, activity)),
    activity.metadata?.state === 'waiting' && para(anchor(link('approvals', { id: activity.metadata.approval }), 'Its approval, while the call waits')),
    call.status === 'rejected' && decided.some((it) => it.metadata?.policy === 'catalog') && call.server_name
      && para(anchor(link('tools', { server: call.server_name, tool: subject(call) }), 'Review the definition')),
    explainable(call) && para(anchor(link('policy', { record: call.id }), 'What the rules say about this call')),

    block('Arguments', exact.arguments), block('Answer', activity.response, activity.response_truncated),

    (activity.intent || variant) && heading('Intent'),
    pairs(['operation', operation(activity)], ['sensitivity', intent.data_sensitivity],
      ['reason', intent.reason], ['called with', variant && el('code', {}, variant)]),

    (of || isWait) && heading('Approval'),
    (of || isWait) && pairs(['answer', answer && answered({ ...answer, for: undefined })], ['valid', isWait && extent(scope)],
      ['expires', isWait && until && exactly(until)],
      ['approval', of && (of === 'definition' ? 'of the definition'
        : [copied(of, 'approval'), ' ', el('a.more', { href: link('activity', { q: of }) }, isWait ? 'its call' : 'its records')])],
      ['digest', isWait && digest && el('span.mono', {}, digest)]),

    heading('Timing'),
    called && timeline(spent),
    pairs([isWait && state !== 'waiting' ? 'ended' : 'began', exactly(activity.timestamp)], ['repeated', times(activity) && `${times(activity)} until ${exactly(until)}`],
      [isWait ? 'waited' : 'took', took(activity.duration_ms) && `${took(activity.duration_ms)}${approval > 0 ? ', without the wait for approval' : ''}`]),

    called && isCall && heading('Size'),
    called && isCall && pairs(['answer', bytes(activity.response_bytes)],
      ['recorded', activity.response_truncated ? bytes(new Blob([activity.response ?? '']).size) : 'all'],
      ['arguments', activity.arguments_bytes === undefined ? undefined : `${bytes(activity.arguments_bytes)}, cut`]),

    activity.type !== 'policy_decision' && Object.keys(more).length > 0 && block('More', more),

    heading('Context'),
    pairs(['decision on', parent],
      ['server', activity.server_name && [activity.server_name, only({ server: activity.server_name })]],
      ['tool', activity.tool_name && [anchor(link('tools', { q: activity.tool_name, server: activity.server_name }), activity.tool_name),
        only({ server: activity.server_name, tool: activity.tool_name })]],
      ['principal', activity.principal && [anchor(link('principals', { name: activity.principal }), activity.principal), only({ principal: activity.principal })]],
      ['client', client], ['source', activity.source],
      ['session', activity.session_id && [copied(activity.session_id, 'session'), only({ session_id: activity.session_id })]],
      ['request', activity.request_id && [copied(activity.request_id, 'request'), only({ request_id: activity.request_id })]],
      ['node', activity.node_name && [activity.node_name, only({ node: activity.node_name })]],
      ['id', copied(activity.id, 'id')], ['number', activity.seq]),
    el('details', {}, el('summary', {}, 'Whole record'), code(laidOut(exact), 'whole record')),
  ];
}

/** A decision about `call`, without what the call says itself. */
function verdict({ metadata: decision = {}, status }, call) {
  const { error_message: own = '' } = call;
  const isBlocked = status === 'blocked';
  const isRepeated = own && (own.includes(decision.reason) || (isBlocked && /^(in|out)put_validation$/.test(decision.policy)));
  const word = isBlocked && call.status === 'rejected' ? call.status : status;
  const path = (text) => text && el('code', {}, text);
  const rules = Array.isArray(decision.rules) ? decision.rules.join(', ') : '';
  return el('div', { class: `decision ${word}` },
    tag(word === status ? decision.decision ?? word : word),
    pairs(['by', [String(decision.policy ?? '').replace('_', ' '), decision.mode && ` (${decision.mode})`]],
      ['rules', rules], ['why', !isRepeated && decision.reason], ['where', path(decision.instance_path)],
      ['schema', path(decision.schema_path)], ['limit', decision.guard]));
}

/** Parts of a call in the order in which they happen. */
const PARTS = { queue: 'in the queue', approval: 'waiting for approval', proxy: 'in the proxy', upstream: 'at the server' };
const LEAST_PERCENT = 0.75; // of a part that is shown at all

/** Where the time of a call went: one bar, and its legend. */
function timeline(spent) {
  const parts = Object.keys(PARTS).filter((name) => spent[name] > 0);
  const all = parts.reduce((sum, name) => sum + spent[name], 0);
  const wide = parts.map((name) => Math.max(100 * spent[name] / all, LEAST_PERCENT));
  const sum = wide.reduce((total, part) => total + part, 0);
  let at = 0;
  const bars = parts.map((name, index) => {
    const width = 100 * wide[index] / sum;
    const bar = el('rect', { class: `part ${name}`, x: `${at.toFixed(2)}%`, width: `${width.toFixed(2)}%`, height: '100%' });
    at += width;
    return bar;
  });
  const said = parts.map((name) => `${took(spent[name])} ${PARTS[name]}`);
  return el('div.timeline', {}, el('svg', { role: 'img', 'aria-label': said.join(', ') }, bars),
    el('ul.legend', {}, parts.map((name, index) => el('li', {}, el('span', { class: `swatch ${name}` }), said[index]))));
}

function block(name, value, cut) {
  if (value === undefined || value === null || value === '') return [];
  let text = value;
  if (typeof value !== 'string') text = laidOut(value);
  else if (!cut) {
    try { text = laidOut(json(value)); } catch { /* not JSON: as it is */ }
  }
  return [el('h3', {}, name, cut && ' (its beginning)'), code(visible(text), name)];
}
