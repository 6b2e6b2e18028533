// Calls that wait for a person, and the approvals that stand for a while.
//
// What is decided is what was read. So no card slides under the pointer: an answered one stays and says what became of it until
// the pointer has left it, new ones come at the end, and a click counts only on a card that has stood still for a moment.

import { $, SETTLE_MS, arrange, button, bytes, el, empty, fill, number, option, pairs, tag, visible, when, whenMoving } from './dom.js';
import { listen } from './live.js';
import { act, ask, attempt, segment, send } from './rest.js';
import { link } from './route.js';

const STAYS_MS = 1000; // what became of a call is said at least so long

const waiting = el('ul', { id: 'approvals', class: 'cards', 'aria-label': 'Calls that wait' });
const none = el('div', { id: 'none-waits', role: 'status', hidden: true },
  empty('No call waits for approval.', el('p', {}, 'A tool waits for a person where its ', el('code', {}, 'capabilities'), ' say ',
    el('code', {}, 'approval: required'), ', or where a rule asks for it: see ', el('a', { href: link('policy') }, 'Policy'), '.')));
const unseen = el('ul', { id: 'approvals-unseen', class: 'card fault', hidden: true, 'aria-label': 'Nodes that did not say what waits there' });
const standing = el('ul', { id: 'standing', class: 'cards' });
const stood = el('div', { id: 'standing-part', hidden: true }, el('h2', {}, 'Approvals that stand'), standing);
let asked = 0;
let inFleet = false;

export const approvals = {
  name: 'approvals',
  label: 'Approvals',
  root: el('div', {}, unseen, none, waiting, stood, el('p', { class: 'more' }, el('a', { href: link('activity', { type: 'approval' }) }, 'What was answered before'))),
  show() {
    cards().forEach(unsettle);
    approvals.refresh();
  },
  refresh: () => attempt(load),
  forget() {
    asked += 1;
    inFleet = false;
    fill(waiting);
    fill(standing);
    $('waiting').hidden = true;
  },
};

async function load() {
  const mine = ++asked;
  const { data } = await ask('approvals');
  if (mine !== asked) return;
  inFleet = Array.isArray(data.unseen);
  const count = data.approvals.length;
  const there = new Set(data.approvals.map((it) => it.id));
  const [waited, stays] = [waiting, standing].map((list) => new Map([...list.children].map((card) => [card.dataset.id, card])));
  shift(() => {
    $('waiting').hidden = !count;
    $('waiting').textContent = count ? number(count) : '';
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
}

/** Whether all that waits on a node is in the list: it is not cut, and the node has said so, or is gone for certain. */
const whole = (data, node) => !data.left_out
  && (data.heard?.includes(node) || !data.unseen?.some((it) => it.node === '' || it.node === node));

function listed() {
  none.hidden = waiting.childElementCount > 0;
  waiting.hidden = !none.hidden;
}

const cards = () => [...waiting.children, ...standing.children];

/** Does what moves cards, or what is in them; of those that have moved, or are new, a click does not count for a moment. */
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

/** Whether somebody means the card that they press a button of; the keyboard does, whatever has moved. */
const meant = (event) => event.detail === 0 || event.currentTarget.closest('li').dataset.moved === undefined;

/** Says in the card what became of its call. */
function over(card, words, how = '') {
  if (card.until) return;
  const focused = card.contains(document.activeElement);
  for (const it of card.querySelectorAll('.answer > *')) it.disabled = true;
  card.querySelector('.answer').append(el('strong', { class: `outcome ${how}`, role: 'status' }, words));
  if (focused) card.focus();
  card.until = performance.now() + STAYS_MS;
  setTimeout(sweep, STAYS_MS + 1);
}

/** Its call is not in the list any more. */
function missed(card) {
  if (card.until) return;
  over(card, 'It does not wait any more.');
  card.missed = true;
}

/** A call that was missed in the list, and is in it again, waits as before; what was answered here stays so. */
function again(card) {
  if (!card.missed) return;
  card.missed = false;
  card.until = undefined;
  card.querySelector('.outcome').remove();
  for (const it of card.querySelectorAll('.answer > *')) it.disabled = false;
  unsettle(card);
}

/** Takes away what is over, but nothing from under the pointer. */
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

// What waits on other nodes of a fleet is on their logs.
setInterval(() => {
  if (inFleet && !document.hidden) attempt(load);
}, 3000);

let soon;
listen((record) => {
  if (record.type !== 'approval') return;
  clearTimeout(soon);
  soon = setTimeout(() => attempt(load), 250);
});

/** One call that waits. Its arguments are text, as they will be sent. */
function waits(it) {
  const { call } = it;
  const size = new Blob([call.arguments]).size;
  const shown = el('pre', { tabindex: 0, role: 'group', 'aria-label': 'Arguments' }, call.arguments);
  const all = call.arguments_bytes > size && button(`Show all ${bytes(call.arguments_bytes)}`, ({ currentTarget: pressed }) => act(async () => {
    const { data } = await ask(`approvals/${segment(it.id)}`);
    shift(() => {
      shown.textContent = visible(data.approval.call?.arguments ?? '');
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
  const approve = (event) => {
    if (!answers(event)) return;
    const sure = !call.destructive && !reach.value;
    const long = reach.value ? `, ${reach.selectedOptions[0].textContent}` : '';
    if (sure || confirm(visible(`Approve the ${call.operation} call of ${it.access}${long}?`))) {
      decide({ decision: 'approve', digest: call.digest, for: reach.value || null }, `Approved${long}.`, 'success');
    }
  };
  const deny = (event) => answers(event) && decide({ decision: 'deny' }, 'Denied.', 'blocked');
  const card = el('li', { class: 'card', 'data-id': it.id, 'data-node': it.node, tabindex: -1, pointerleave: () => setTimeout(sweep) },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.access)), tag(call.destructive ? 'destructive' : call.operation)),
    call.reason && el('p', {}, el('bdi', {}, call.reason)), shown, all,
    pairs(['for', call.principal], ['client', call.client_name], ['since', when(call.since)], ['until', when(call.until)],
      ['id', el('span', { class: 'mono' }, it.id)], ['node', it.node]),
    el('div', { class: 'answer' }, button('Approve', approve, { class: 'primary' }), reach, button('Deny', deny, { class: 'deny' })));
  return card;
}

/** An approval that lets calls go without asking. */
function stands(it) {
  const end = (event) => meant(event) && card.dataset.asked === undefined && act(async () => {
    card.dataset.asked = '';
    const focused = card.contains(document.activeElement);
    try {
      await send(`approvals/${segment(it.id)}`, { decision: 'deny' });
    } finally {
      delete card.dataset.asked;
      await load();
      if (focused && !card.isConnected) $('main').focus();
    }
  });
  const card = el('li', { class: 'card', 'data-id': it.id },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.access)), button('End', end)),
    pairs(['for', it.principal], ['session', it.session_id && el('span', { class: 'mono' }, it.session_id)],
      ['until', when(it.until)], ['given by', `${it.by} over ${it.door}`]));
  return card;
}
