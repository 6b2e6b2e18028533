// DOM helpers and value formatting. Records contain text written by agents and servers, including attackers: every value is inserted
// as text (`el`, `visible`), never as markup.

export const $ = (id) => document.getElementById(id);

const SVG = ['svg', 'g', 'rect', 'line', 'text', 'title', 'polyline', 'path'];
const NOTHING = [undefined, null, false, ''];

/** Time that a decision button must not have moved before a click is accepted, so that no double click hits another one. */
export const SETTLE_MS = 700;

/** An element (`name` or `name.class`) with attributes and children; strings become text, made visible. */
export function el(kind, attributes = {}, ...children) {
  const [name, style] = kind.split('.');
  const made = SVG.includes(name) ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  made.does = {}; // by event; `redraw` gives it what a later one does
  if (style) made.setAttribute('class', style);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') {
      made.does[key] = value;
      made.addEventListener(key, (event) => made.does[key](event));
    } else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...nodes(children));
  return made;
}

/** Converts `children` to nodes, without empty values. */
export function nodes(...children) {
  return children.flat(Infinity).filter((child) => !NOTHING.includes(child))
    .map((child) => (child instanceof Node ? child : visible(String(child))));
}

/** A link. */
export const anchor = (href, ...words) => el('a', { href }, words);

/** Paragraphs: plain, secondary, and with an error. */
export const para = (...words) => el('p', {}, words);
export const quiet = (...words) => el('p.quiet', {}, words);
export const trouble = (...words) => el('p.wrong', {}, words);

export const zero = () => el('span.quiet', {}, '0');

/** A name, which breaks only after its separators where there is room for that. */
export const identifier = (name, more = {}) => el('bdi', more, name.split(/(?<=[:_.-])/).map((part, at) => [at > 0 && el('wbr'), part]));

export function fill(place, ...children) {
  place.replaceChildren(...nodes(children));
}

/**
 * Puts `children` into `place` as `fill` does, but keeps what is there and changes only what is another about it, so that nobody
 * loses the focus, a selection, or the place in a table. What has a `data-key` is kept for the same key only.
 */
export function redraw(place, ...children) {
  const keyOf = (node) => node.dataset?.key;
  const [old, keyed] = [[], new Map()];
  for (const node of place.childNodes) {
    if (keyOf(node) === undefined) old.push(node);
    else keyed.set(keyOf(node), node);
  }
  arrange(place, nodes(children).map((node) => {
    const fresh = typeof node === 'string' ? document.createTextNode(node) : node;
    const there = keyOf(fresh) === undefined ? old.shift() : keyed.get(keyOf(fresh));
    keyed.delete(keyOf(fresh));
    return there && alike(there, fresh) ? become(there, fresh) : fresh;
  }));
}

/** Makes these nodes the children of `place`, in order, without touching those already in position. */
export function arrange(place, children) {
  const wanted = new Set(children);
  for (const node of [...place.childNodes]) if (!wanted.has(node)) node.remove();
  let next = place.firstChild;
  for (const node of children) {
    if (node === next) next = next.nextSibling;
    else place.insertBefore(node, next);
  }
}

const does = (node) => Object.keys(node.does ?? {}).join();
const alike = (one, other) => one.nodeName === other.nodeName && does(one) === does(other);

/** Updates `there` to equal `fresh`. */
function become(there, fresh) {
  if (there.nodeType === Node.TEXT_NODE) {
    if (there.data !== fresh.data) there.data = fresh.data;
    return there;
  }
  for (const { name } of [...there.attributes]) if (!fresh.hasAttribute(name)) there.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (there.getAttribute(name) !== value) there.setAttribute(name, value);
  there.does = fresh.does;
  redraw(there, [...fresh.childNodes]);
  return there;
}

/** A click anywhere in a row of `table` opens it, but not one on a link or button, or one that ends a selection. */
export function rowsOpen(table) {
  table.addEventListener('click', ({ target }) => {
    if (target.closest('a, button') || !getSelection().isCollapsed) return;
    target.closest('tbody tr')?.querySelector('th a')?.click();
  });
}

/**
 * The head of a table of `columns` ({ words, kind, title, by, isText }). Columns with `by`, the value of a row, sort it: numbers from
 * the largest, texts from the first, and the other way round by a second click. `sort` is in the address; `set` changes it.
 */
export function sortHead(columns, sort, set) {
  const head = ({ words, kind, title, by, isText }) => {
    const turn = { [words]: 1, [`-${words}`]: -1 }[sort];
    const next = turn === 1 ? `-${words}` : turn ? '' : words;
    const way = turn && ((turn === 1) === Boolean(isText) ? 'ascending' : 'descending');
    return el('th', { scope: 'col', class: kind, title, 'aria-sort': way }, by ? button(words, () => set(next)) : words);
  };
  return el('thead', {}, el('tr', {}, columns.map(head)));
}

/** The column that `sort` names, if it can be sorted by. */
export const sortColumn = (columns, sort) => columns.find(({ words, by }) => by && [words, `-${words}`].includes(sort));

/** The rows in the order that `sort` names; in their own order if it names none. */
export function sorted(rows, columns, sort = '') {
  const column = sortColumn(columns, sort);
  if (!column) return rows;
  const turn = (sort[0] === '-') === Boolean(column.isText) ? 1 : -1;
  return rows.toSorted((one, other) => {
    const [a, b] = [column.by(one), column.by(other)];
    return a < b ? turn : a > b ? -turn : 0;
  });
}

/** Whether a key begins a list: an arrow where nothing has the focus. Elsewhere it scrolls. */
export const beginsList = (event) => event.key === 'ArrowDown' && document.activeElement === document.body;

const rowLinks = (table) => [...table.querySelectorAll('tbody th a')];
const openRow = (links) => links.findIndex((one) => one.hasAttribute('aria-current'));

/** Moves the focus in the rows of `table`; `j` and `k` open the next one while a panel is open. */
export const stepRows = (event, table, isOpen) => stepLinks(event, rowLinks(table), isOpen);

/** Moves the focus in `links`, the entries of a list, as [`stepRows`] does. */
export function stepLinks(event, links, isOpen) {
  const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
  if (!by || event.target.closest('input, select, textarea')) return;
  const isArrow = event.key.length > 1;
  const focused = links.findIndex((one) => (isArrow ? one === document.activeElement : one.contains(document.activeElement)));
  if (!links.length || (isArrow && focused < 0 && !beginsList(event))) return;
  event.preventDefault();
  const at = focused < 0 ? openRow(links) : focused;
  const next = links[Math.min(Math.max(at + by, 0), links.length - 1)];
  next.focus();
  if (isOpen && !isArrow) next.click();
}

/** Buttons of a panel beside `table`: the rows before and after the open one, and closing it. */
export function panelButtons(table, kind, close) {
  const open = (by) => () => {
    const links = rowLinks(table);
    links[openRow(links) + by]?.click();
  };
  return [['↑', 'Previous', 'k', open(-1)], ['↓', 'Next', 'j', open(1)]].map(([sign, words, key, click]) =>
    button(sign, click, { 'aria-label': `${words} ${kind}`, title: `${words} ${kind} (${key})` })).concat(button('✕', close, { 'aria-label': 'Close' }));
}

/** The keys of a list. */
export const keyHelp = () => el('p.quiet keys', {}, [['↑ ↓', 'move'], ['Enter', 'opens'], ['j k', 'step through'], ['Esc', 'closes'], ['/', 'searches'], ['↓ Enter', 'lead from the search to the list'], ['Esc', 'leaves it']]
  .map(([keys, words], at) => [at ? ', ' : '', keys.split(' ').map((key) => [el('kbd', {}, key), ' ']), words]));

// What nobody sees, or what changes how others are seen: the same as `terminal_safe` shows on the command line. A blank pattern
// of Braille is as blank as a space.
const HIDDEN = /(?![\n\t])[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu;

/** Escapes control, invisible and bidirectional characters. */
export const visible = (text) => text.replace(HIDDEN, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);

/** JSON for editing, with JSON escapes for invisible characters. */
export const editable = (value) => laidOut(value).replace(HIDDEN, (char) =>
  char.split('').map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`).join(''));

export function tag(word, ...more) {
  return word ? el('span', { class: `tag ${/^[a-z-]+$/.test(word) ? word : ''}` }, word.replaceAll('-', ' '), ...more) : undefined;
}

/** A panel beside a list, for the entry that is open. */
export const panel = (id, label) => el('aside', { id, class: 'card panel', 'aria-label': label, tabindex: -1, hidden: true });

/** A definition list of name and value pairs, without empty values. */
export function pairs(...entries) {
  const there = entries.filter((entry) => entry && !NOTHING.includes(entry[1]));
  return there.length ? el('dl', {}, there.map(([name, value]) => [el('dt', { 'data-key': `of ${name}` }, name), el('dd', { 'data-key': name }, value)])) : undefined;
}

/** A text that scrolls in its place. */
export const block = (label, text, more = {}) => el('pre', { tabindex: 0, role: 'group', 'aria-label': label, ...more }, text);

/** A text with a copy button. */
export const code = (text, label = 'Text') => el('div.code', {}, block(label, text), copy(text, label));

/** A button that copies `text` as it is. */
export function copy(text, label = '') {
  const named = (words) => (label ? `${words} ${visible(label)}` : words);
  return button('Copy', async ({ currentTarget: made }) => {
    const say = (words) => {
      made.textContent = words;
      made.setAttribute('aria-label', named(words));
    };
    try {
      await navigator.clipboard.writeText(text);
      say('Copied');
    } catch {
      say('Not allowed');
    }
    setTimeout(() => say('Copy'), 1500);
  }, { class: 'copy', 'aria-label': named('Copy') });
}

/** An id with a copy button. */
export const copied = (text, label) => [el('span.mono', {}, text), copy(text, label)];

/** A command with a copy button. */
export const command = (text) => el('span.command', {}, el('code', {}, text), copy(text, text));

/** A filter of a list: a labelled field in one pill. */
export const chip = (words, field, more = {}) => el('label.chip', { ...more }, el('span', {}, words), ' ', field);

/** Marks the chips of a form that limit its list. */
export function markChips(form) {
  for (const one of form.querySelectorAll('.chip')) {
    const field = one.querySelector('input, select');
    one.classList.toggle('set', field.type === 'checkbox' ? field.checked : field.value !== '');
  }
}

/** The search field of a list. */
export const searchField = (placeholder, more = {}) =>
  el('input', { name: 'q', type: 'search', autocomplete: 'off', spellcheck: 'false', placeholder, 'aria-label': 'Search', maxlength: 256, ...more });

export function button(words, click, more = {}) {
  return el('button', { type: 'button', click, ...more }, words);
}

/**
 * Asks `question`, with its `details`, in a dialog and resolves to whether `words`, its button, was pressed. The focus begins on Cancel
 * and the other button waits, so that no second click or key confirms.
 */
export function confirmed(question, words, style = 'danger', ...details) {
  return new Promise((resolve) => {
    const yes = button(words, () => dialog.close(words), { class: `primary ${style}`, disabled: true });
    const close = () => {
      dialog.remove();
      resolve(dialog.returnValue === words);
    };
    const dialog = el('dialog.card', { 'aria-labelledby': 'question', close },
      el('p', { id: 'question' }, question), details, el('div.answer', {}, button('Cancel', () => dialog.close(), { autofocus: true }), yes));
    document.body.append(dialog);
    window.addEventListener('hashchange', () => dialog.close(), { once: true });
    dialog.showModal();
    setTimeout(() => { yes.disabled = false; }, SETTLE_MS);
  });
}

export function option(value, words = value) {
  return el('option', { value }, words);
}

export function labelled(words, field, more = {}) {
  return el('label', more, words, ' ', field);
}

/** A placeholder for an empty list, with what to do next. */
export function empty(...words) {
  return el('div.empty card', {}, words.map((part) => (part instanceof Node && part.tagName === 'P' ? part : el('p', {}, part))));
}

export const number = (value) => Number(value).toLocaleString('en');
export const short = (value, digits = 3) => value.toLocaleString('en', { maximumSignificantDigits: digits });

export function took(ms) {
  if (!(ms > 0)) return '';
  return ms < 1 ? `${short(ms * 1000)} µs` : ms < 1000 ? `${short(ms)} ms` : `${short(ms / 1000)} s`;
}

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  return count < 1048576 ? `${short(count / 1024)} KiB` : `${short(count / 1048576)} MiB`;
}

export function percent(part, whole) {
  return whole > 0 ? `${short(100 * part / whole)} %` : '–';
}

export function lasted(seconds) {
  for (const [name, of] of [['d', 86400], ['h', 3600], ['min', 60]]) if (seconds >= of) return `${Math.floor(seconds / of)} ${name}`;
  return `${Math.floor(seconds)} s`;
}

const two = (value) => String(value).padStart(2, '0');
export const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
export const day = (date) => `${two(date.getMonth() + 1)}-${two(date.getDate())}`;

/** The time of a date of today, else with the day, and with the year if it is another one. */
function brief(date) {
  const now = new Date();
  if (date.toDateString() === now.toDateString()) return clock(date);
  return `${date.getFullYear() === now.getFullYear() ? '' : `${date.getFullYear()}-`}${day(date)} ${clock(date)}`;
}

/** A moment in the browser's time zone; pointed at, in UTC. */
export function when(timestamp, spell = brief) {
  return el('time', { datetime: timestamp, title: timestamp }, spell(new Date(timestamp)));
}

/** The same to the millisecond, with its year. */
export const exactly = (timestamp) => when(timestamp, (date) =>
  `${date.getFullYear()}-${day(date)} ${clock(date)}.${String(date.getMilliseconds()).padStart(3, '0')}`);

/** JSON as text, laid out; numbers keep their spelling where the browser can do that. */
export function json(text) {
  const spelled = (_key, value, context) =>
    typeof value === 'number' && context && JSON.rawJSON && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
  return JSON.parse(text, spelled);
}

export const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

export const laidOut = (value) => JSON.stringify(value, null, 2);

let around = (work) => work();

/** Has `how` do what moves the views, so that it sees what stood where before. */
export function whenMoving(how) {
  around = how;
}

/** Runs work that may move the views. */
export const moving = (work) => around(work);

let timer;
let due;

/** Debounces `work`, of the view that is shown. */
export const settled = (work) => () => {
  clearTimeout(timer);
  due = work;
  timer = setTimeout(settle, 250);
};

/** Does at once what is debounced. */
export function settle() {
  const work = due;
  drop();
  work?.();
}

function drop() {
  clearTimeout(timer);
  due = undefined;
}

// What was typed before a link was followed must not bring the earlier address back.
document.addEventListener('click', (event) => { if (event.target.closest('a')) drop(); }, true);
