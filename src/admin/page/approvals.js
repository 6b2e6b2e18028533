// Waiting calls and standing approvals.
//
// A decision must apply to the call that was read, so no card moves under the pointer: a decided card stays with its outcome until
// the pointer leaves it, new cards are appended, and a click is accepted only on a card that has not moved for a moment.

import { heads, recordList } from './activity.js';
import { $, SETTLE_MS, anchor, arrange, block, button, bytes, confirmed, copied, el, empty, fill, identifier, lasted, number, option, pairs, para, redraw, stepLinks, tag, visible, when, whenMoving } from './dom.js';
import { listen } from './live.js';
import { act, ask, attempt, notice, segment, send } from './rest.js';
import { change, here, link } from './route.js';

const STAYS_MS = 1000; // minimum time for which an outcome is shown
const HINT_MS = 2000; // time for which an ignored click is explained
const SOON_S = 60; // an expiry that is marked
const DECIDED = 10; // latest decisions
const NAMED = 5; // calls that a question names
const MAX_SUMMARY = 160; // characters of a call in it

const waiting = el('ul.cards', { id: 'approvals', 'aria-label': 'Waiting calls' });
const none = el('div', { id: 'none-waits', role: 'status', hidden: true },
  empty('No call waits for approval.', para('A call waits if the ', el('code', {}, 'capabilities'), ' of its tool say ',
    el('code', {}, 'approval: required'), ', or if a rule requires it: see ', anchor(link('policy'), 'Policy'), '.')));
const unseen = el('ul.card fault', { id: 'approvals-unseen', hidden: true, 'aria-label': 'Nodes whose waiting calls are unknown' });
const count = el('span.quiet', { id: 'approval-count', role: 'status' });
const denyAll = button('Deny all', () => denied(), { class: 'deny' });
const above = el('div.answer', { id: 'above-approvals', hidden: true }, count, denyAll);
const standing = el('ul.cards standing', { id: 'standing' });
const stood = el('div', { id: 'standing-part', hidden: true }, el('h2', {}, 'Standing approvals'), standing);
const decided = el('div.list', { id: 'decided' });
let asked = 0;
let inFleet = false;
let wanted; // id of the card to focus

export const approvals = {
  name: 'approvals',
  label: 'Approvals',
  takes: ['id'],
  root: el('div', {}, unseen, none, above, waiting, stood, decided, el('p.more', {}, anchor(link('activity', { type: 'approval' }), 'Earlier decisions'))),
  show({ id }) {
    wanted = id;
    cards().forEach(unsettle);
    return approvals.refresh();
  },
  refresh: () => attempt(load),
  tick: () => cards().forEach((card) => card.tick?.()),
  keys: (event) => stepLinks(event, [...waiting.children, ...decided.querySelectorAll('.records a')]),
  forget() {
    asked += 1;
    inFleet = false;
    fill(waiting);
    fill(standing);
    fill(decided);
    $('waiting').hidden = true;
    fill($('waiting'));
  },
};

async function load() {
  const mine = ++asked;
  const { data } = await ask('approvals');
  if (mine !== asked) return;
  inFleet = Array.isArray(data.unseen);
  const many = data.approvals.length;
  const there = new Set(data.approvals.map((it) => it.id));
  const [waited, stays] = [waiting, standing].map((list) => new Map([...list.children].map((card) => [card.dataset.id, card])));
  shift(() => {
    $('waiting').hidden = !many;
    $('waiting').textContent = many ? number(many) : '';
    count.textContent = `${number(many + (data.left_out ?? 0))} ${many === 1 && !data.left_out ? 'call waits' : 'calls wait'}`;
    denyAll.hidden = many < 2;
    unseen.hidden = !data.unseen?.length;
    fill(unseen, data.unseen?.map((it) => el('li', {}, el('bdi', {}, it.why))));
    for (const card of waiting.children) {
      if (there.has(card.dataset.id)) again(card);
      else if (card.dataset.asked === undefined && whole(data, card.dataset.node)) missed(card);
    }
    waiting.append(...data.approvals.filter((it) => !waited.has(it.id)).map(waits));
    listed();
    stood.hidden = !data.standing.length;
    arrange(standing, data.standing.map((it) => stays.get(it.id) ?? stands(it)));
  });
  const card = wanted && waiting.querySelector(`[data-id="${CSS.escape(wanted)}"]`);
  if (card) {
    wanted = undefined;
    card.scrollIntoView({ block: 'nearest' });
    card.focus({ preventScroll: true });
  } else if (wanted && here().view === 'approvals' && !data.left_out && !data.unseen?.length) {
    const id = wanted;
    change({ id: '' }, true);
    notice(`No call with the approval '${id}' waits now.`);
    return;
  }
  if (here().view === 'approvals') await loadDecided(mine);
}

/** The latest decisions. */
async function loadDecided(mine) {
  const filter = { type: 'approval' };
  const { data } = await ask('activity', { ...filter, limit: 2 * DECIDED, exclude_payloads: true }); // half of them are of calls that began to wait
  if (mine !== asked) return;
  const found = data.activities.filter((it) => it.metadata?.state !== 'waiting').slice(0, DECIDED);
  redraw(decided, found.length > 0 && [el('h2', {}, 'Latest decisions'), heads({ took: 'Waited' }),
    recordList(found, filter, 'Latest decisions')]);
}

/** Denies the calls that wait now. */
async function denied() {
  const all = [...waiting.children].filter(isOpen);
  const calls = el('ul', {}, all.slice(0, NAMED).map((card) => el('li', {}, card.summary)),
    all.length > NAMED && el('li', {}, `and ${number(all.length - NAMED)} more`));
  if (all.length && await confirmed(`Deny all ${number(all.length)} waiting calls?`, 'Deny all', 'danger', calls)) all.filter(isOpen).forEach((card) => card.deny());
}

/** Whether the call of a card still waits, and nobody here has answered. */
const isOpen = (card) => !card.until && card.dataset.asked === undefined;

/** Whether the list contains all waiting calls of a node: it is not truncated, and the node answered or is known to be dead. */
const whole = (data, node) => !data.left_out
  && (data.heard?.includes(node) || !data.unseen?.some((it) => it.node === '' || it.node === node));

function listed() {
  none.hidden = waiting.childElementCount > 0;
  for (const place of [waiting, above]) place.hidden = !none.hidden;
}

/** The cards of this view, and those of standing approvals in others. */
const cards = () => [...waiting.children, ...document.querySelectorAll('.standing > li')];

/** Runs work that may move cards. Clicks on moved and new cards are ignored for a moment. */
function shift(work) {
  const place = (card) => {
    const { left, top, width, height } = card.getBoundingClientRect();
    return `${left} ${top} ${width} ${height}`;
  };
  const before = new Map(cards().map((card) => [card, place(card)]));
  work();
  for (const card of cards()) if (before.get(card) !== place(card)) unsettle(card);
}

whenMoving(shift);

function unsettle(card) {
  card.dataset.moved = '';
  clearTimeout(card.settles);
  card.settles = setTimeout(() => { delete card.dataset.moved; }, SETTLE_MS);
}

/** Place for the explanation of an ignored click, which moves nothing. */
const hint = () => el('span.hint', { role: 'status' });

/** Whether a click is accepted: the card has not moved recently, or the keyboard was used. If not, the card says so. */
function meant(event) {
  const card = event.currentTarget.closest('li');
  const isMeant = event.detail === 0 || card.dataset.moved === undefined;
  const words = card.querySelector('.hint');
  clearTimeout(card.hinted);
  words.textContent = isMeant ? '' : 'The list just moved: click again';
  if (!isMeant) card.hinted = setTimeout(() => { words.textContent = ''; }, HINT_MS);
  return isMeant;
}

/** Shows the outcome of a call in its card. */
function over(card, words, how = '') {
  if (card.until) return;
  const focused = card.contains(document.activeElement);
  for (const it of card.querySelectorAll('.answer > *')) it.disabled = true;
  card.querySelector('.answer').append(el('strong', { class: `outcome ${how}`, role: 'status' }, words));
  if (focused) card.focus();
  card.until = performance.now() + STAYS_MS;
  setTimeout(sweep, STAYS_MS + 1);
}

/** Marks a card whose call is no longer in the list. */
function missed(card) {
  if (card.until) return;
  over(card, 'It is no longer waiting.');
  card.missed = true;
}

/** Restores the card of a call that is in the list again; decided cards stay decided. */
function again(card) {
  if (!card.missed) return;
  card.missed = false;
  card.until = undefined;
  card.querySelector('.outcome').remove();
  for (const it of card.querySelectorAll('.answer > *')) it.disabled = false;
  unsettle(card);
}

/** Removes finished cards, except one under the pointer. */
function sweep() {
  const pointed = (card) => matchMedia('(hover: hover)').matches && card.matches(':hover');
  const gone = [...waiting.children].filter((card) => card.until <= performance.now() && !pointed(card));
  if (!gone.length) return;
  shift(() => {
    for (const card of gone) {
      const focused = card.contains(document.activeElement);
      const next = card.nextElementSibling ?? card.previousElementSibling;
      card.remove();
      if (focused) (next ?? $('main')).focus();
    }
    listed();
  });
}

// Calls waiting on other nodes of a fleet are in the logs of those nodes, so the list is polled.
setInterval(() => {
  if (inFleet && !document.hidden) attempt(load);
}, 3000);

let soon;
listen((record) => {
  if (record.type !== 'approval') return;
  clearTimeout(soon);
  soon = setTimeout(() => attempt(load), 250);
});

/** The card of a waiting call. Its arguments are shown as they will be sent. */
function waits(it) {
  const { call } = it;
  const [left, tick] = remaining(call.until);
  const size = new Blob([call.arguments]).size;
  const shown = block('Arguments', call.arguments);
  const meta = call.meta_bytes > 0 && block('_meta', `_meta ${call.meta}`);
  const inputs = call.inputs_bytes > 0
    && block('inputResponses', `inputResponses ${call.inputs}`);
  const isCut = call.arguments_bytes > size || call.meta_bytes > new Blob([call.meta]).size
    || call.inputs_bytes > new Blob([call.inputs]).size;
  const all = isCut && button(`Show all ${bytes(call.arguments_bytes + (call.meta_bytes ?? 0) + (call.inputs_bytes ?? 0))}`, ({ currentTarget: pressed }) => act(async () => {
    const { data } = await ask(`approvals/${segment(it.id)}`);
    shift(() => {
      shown.textContent = visible(data.approval.call?.arguments ?? '');
      if (meta) meta.textContent = visible(`_meta ${data.approval.call?.meta ?? ''}`);
      if (inputs) inputs.textContent = visible(`inputResponses ${data.approval.call?.inputs ?? ''}`);
      pressed.remove();
    });
  }));
  const reach = el('select', { 'aria-label': 'For how long' }, option('', 'this call'), option('1h', '1 hour, any arguments'),
    call.session_id && option('session', 'this session, any arguments'));
  const decide = (body, words, how) => act(async () => {
    card.dataset.asked = '';
    try {
      await send(`approvals/${segment(it.id)}`, body);
      shift(() => over(card, words, how));
    } finally {
      delete card.dataset.asked;
      await load();
    }
  });
  const answers = (event) => meant(event) && card.dataset.asked === undefined;
  const approve = async (event) => {
    if (!answers(event)) return;
    const scope = reach.value;
    const long = scope ? `, ${reach.selectedOptions[0].textContent}` : '';
    const sure = !call.destructive && !scope;
    const facts = pairs(['reason', reasonOf(call)], ['principal', el('bdi', {}, call.principal)], ['client', call.client_name && el('bdi', {}, call.client_name)], ['valid for', el('strong', {}, scope ? long.slice(2) : 'this call')]);
    const question = `Approve the ${call.operation} call of ${it.access}?`;
    if (sure || await confirmed(question, 'Approve', call.destructive ? 'danger' : '', facts, block('Arguments', call.arguments))) {
      decide({ decision: 'approve', digest: call.digest, for: scope || null }, `Approved${long}.`, 'success');
    }
  };
  const refuse = () => decide({ decision: 'deny' }, 'Denied.', 'blocked');
  const deny = (event) => answers(event) && refuse();
  const calls = call.operation && { server: call.server_name, tool: call.tool_name, principal: call.principal };
  const card = el('li.card', { 'data-id': it.id, 'data-node': it.node, tabindex: -1, pointerleave: () => setTimeout(sweep) },
    el('div.line', {}, el('h2', {}, named(it.access, call.operation)), tag(call.destructive ? 'destructive' : call.operation)),
    shown, meta, inputs, all,
    pairs(['reason', reasonOf(call)], ['principal', caller(call.principal)], ['client', call.client_name], ['disconnected', call.disconnected && [when(call.disconnected), '; if approved, the call is made all the same']], ['asked', when(call.since)], ['expires', [when(call.until), ' ', left]],
      ['see', calls && [anchor(link('activity', calls), 'its earlier calls'), ', ', anchor(link('policy', { principal: call.principal, tool: it.access, part: 'explain', approval: it.id }), 'what the rules say')]],
      ['node', it.node], ['id', copied(it.id, 'id')]),
    el('div.answer', {}, button('Approve', approve, { class: 'primary' }), reach, button('Deny', deny, { class: 'deny' }), hint()));
  card.deny = refuse;
  card.summary = `${it.access} of ${call.principal}: ${call.reason || call.arguments}`.slice(0, MAX_SUMMARY);
  card.tick = tick;
  return card;
}

/** The agent's own words, marked as such. */
const reasonOf = ({ reason }) => reason && [el('span.quiet', {}, 'the agent says: '), el('bdi', {}, reason)];

/** The accessed item; a tool leads to its definition. */
const named = (access, isTool) => (isTool ? anchor(link('tools', { tool: access }), identifier(access)) : identifier(access));
const caller = (principal) => anchor(link('principals', { name: principal }), identifier(principal));

/** The time that is left until then, and what updates it. */
function remaining(until) {
  const left = el('span', {});
  const tick = () => {
    const seconds = Math.max((Date.parse(until) - Date.now()) / 1000, 0);
    left.textContent = `in ${lasted(seconds)}`;
    left.className = seconds < SOON_S ? 'warning' : 'quiet';
  };
  tick();
  return [left, tick];
}

/** The card of a standing approval; `reload` lists them again once it has ended. */
export function stands(it, reload = load) {
  const end = (event) => meant(event) && card.dataset.asked === undefined && act(async () => {
    card.dataset.asked = '';
    const focused = card.contains(document.activeElement);
    try {
      await send(`approvals/${segment(it.id)}`, { decision: 'deny' });
    } finally {
      delete card.dataset.asked;
      await reload();
      if (focused && !card.isConnected) $('main').focus();
    }
  });
  const [left, tick] = remaining(it.until);
  const card = el('li.card', { 'data-id': it.id },
    el('div.line', {}, el('h2', {}, named(it.access, !it.access.includes('/'))), button('Revoke', end, { class: 'deny' }), hint()),
    pairs(['principal', caller(it.principal)], ['session', it.session_id && el('span.mono', {}, it.session_id)],
      ['expires', [when(it.until), ' ', left]], ['given by', `${it.by} over ${it.door}`]));
  card.tick = tick;
  return card;
}
