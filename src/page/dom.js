// Elements and how values are spelled. Records hold what agents and servers wrote, attackers among
// them: every value goes in as text (`el`, `visible`), never as markup.

export const $ = (id) => document.getElementById(id);

const SVG = ['svg', 'g', 'rect', 'line', 'text', 'title', 'polyline', 'path'];
const NOTHING = [undefined, null, false, ''];

/** An element with attributes and children; strings become text, made visible. */
export function el(name, attributes = {}, ...children) {
  const made = SVG.includes(name) ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(key, value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...nodes(children));
  return made;
}

/** What of `children` there is, as nodes. */
export function nodes(...children) {
  return children.flat(Infinity).filter((child) => !NOTHING.includes(child))
    .map((child) => (child instanceof Node ? child : visible(String(child))));
}

export function fill(place, ...children) {
  place.replaceChildren(...nodes(children));
}

/** Controls, invisible characters and those that turn the text around are shown as what they are. */
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu,
    (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}

export function tag(word, ...more) {
  return word ? el('span', { class: `tag ${/^[a-z]+$/.test(word) ? word : ''}` }, word, ...more) : undefined;
}

/** Pairs of a name and what it is; the ones without anything are left out. */
export function pairs(...entries) {
  const there = entries.filter((entry) => entry && !NOTHING.includes(entry[1]));
  return there.length ? el('dl', {}, there.map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)])) : undefined;
}

/** A text that is looked at and copied. */
export function code(text, label = 'Text') {
  return el('div', { class: 'code' }, el('pre', { tabindex: 0, role: 'group', 'aria-label': label }, text), copy(text, label));
}

/** A button that copies `text` as it is. */
export function copy(text, label = '') {
  const say = (words) => {
    made.textContent = words;
    setTimeout(() => { made.textContent = 'Copy'; }, 1500);
  };
  const made = button('Copy', async () => {
    try {
      await navigator.clipboard.writeText(text);
      say('Copied');
    } catch {
      say('Not allowed');
    }
  }, { class: 'copy', 'aria-label': label ? `Copy ${visible(label)}` : undefined });
  return made;
}

/** A command of ours, to be copied. */
export const command = (text) => el('span', { class: 'command' }, el('code', {}, text), copy(text, text));

export function button(words, click, more = {}) {
  return el('button', { type: 'button', click, ...more }, words);
}

export function option(value, words = value) {
  return el('option', { value }, words);
}

export function labelled(words, field, more = {}) {
  return el('label', more, words, ' ', field);
}

/** Something that is shown where there is nothing: what that means, and what to do next. */
export function empty(...words) {
  return el('div', { class: 'empty card' }, words.map((part) => (part instanceof Node && part.tagName === 'P' ? part : el('p', {}, part))));
}

export const number = (value) => Number(value).toLocaleString('en');
const decimal = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
export const short = (value) => decimal.format(value);

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

export function when(timestamp) {
  const date = new Date(timestamp);
  const today = date.toDateString() === new Date().toDateString();
  return el('time', { datetime: timestamp, title: timestamp }, today ? clock(date) : `${day(date)} ${clock(date)}`);
}

/** JSON as text, laid out; numbers keep their spelling where the browser can do that. */
export function json(text) {
  const spelled = (_key, value, context) =>
    typeof value === 'number' && context && JSON.rawJSON && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
  return JSON.parse(text, spelled);
}

export const laidOut = (value) => JSON.stringify(value, null, 2);

/** Runs `work` when nothing more was typed for a moment. */
export function settled(work) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, 250);
  };
}
