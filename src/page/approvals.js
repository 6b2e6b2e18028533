// Calls that wait for a person, and the approvals that stand for a while.

import { $, button, bytes, el, empty, fill, number, option, pairs, tag, visible, when } from './dom.js';
import { listen } from './live.js';
import { ask, attempt, segment, send } from './rest.js';
import { link } from './route.js';

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
  show: () => approvals.refresh(),
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
  unseen.hidden = !data.unseen?.length;
  fill(unseen, data.unseen?.map((it) => el('li', {}, el('bdi', {}, it.why))));
  const count = data.approvals.length;
  $('waiting').hidden = !count;
  $('waiting').textContent = count ? number(count) : '';
  none.hidden = count > 0;
  waiting.hidden = !count;
  // What is there already stays as it is: nobody's button moves away, and nothing they chose is lost.
  const before = new Map([...waiting.children].map((card) => [card.dataset.id, card]));
  const cards = data.approvals.map((it) => before.get(it.id) ?? waits(it));
  if (cards.length !== before.size || cards.some((card) => !card.isConnected)) fill(waiting, cards);
  stood.hidden = !data.standing.length;
  fill(standing, data.standing.map(stands));
}

async function answer(id, body) {
  try {
    await send(`approvals/${segment(id)}`, body);
  } finally {
    await load();
  }
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
  const all = call.arguments_bytes > size && button(`Show all ${bytes(call.arguments_bytes)}`, (event) => attempt(async () => {
    const { data } = await ask(`approvals/${segment(it.id)}`);
    shown.textContent = visible(data.approval.call?.arguments ?? '');
    event.target.remove();
  }));
  const reach = el('select', { 'aria-label': 'For how long' }, option('', 'this call'), option('1h', '1 hour, any arguments'),
    call.session_id && option('session', 'this session, any arguments'));
  const approve = () => {
    const sure = !call.destructive && !reach.value;
    const what = `${it.access}${reach.value ? `, ${reach.selectedOptions[0].textContent}` : ''}`;
    if (sure || confirm(visible(`Approve the ${call.operation} call of ${what}?`))) {
      attempt(() => answer(it.id, { decision: 'approve', digest: call.digest, for: reach.value || null }));
    }
  };
  return el('li', { class: 'card', 'data-id': it.id },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.access)), tag(call.destructive ? 'destructive' : call.operation)),
    call.reason && el('p', {}, el('bdi', {}, call.reason)), shown, all,
    pairs(['for', call.principal], ['client', call.client_name], ['since', when(call.since)], ['until', when(call.until)],
      ['id', el('span', { class: 'mono' }, it.id)], ['node', it.node]),
    el('div', { class: 'answer' }, button('Approve', approve, { class: 'primary' }), reach,
      button('Deny', () => attempt(() => answer(it.id, { decision: 'deny' })), { class: 'deny' })));
}

/** An approval that lets calls go without asking. */
function stands(it) {
  return el('li', { class: 'card' },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.access)),
      button('End', () => attempt(() => answer(it.id, { decision: 'deny' })))),
    pairs(['for', it.principal], ['session', it.session_id && el('span', { class: 'mono' }, it.session_id)],
      ['until', when(it.until)], ['given by', `${it.by} over ${it.door}`]));
}
