// The config in force, without secrets, how it stands to its file, what reading the file again would
// change, and other settings for the file, which are looked at before they are written; and how the
// proxy itself is.

import { button, bytes, code, editable, el, fill, laidOut, lasted, number, pairs, redraw, tag, when } from './dom.js';
import { Refused, act, ask, attempt, send } from './rest.js';
import { link } from './route.js';

const state = el('div', { class: 'card' });
const told = el('div', { id: 'difference', 'aria-live': 'polite' });
const standing = el('div', { id: 'standing-config' });
const proxy = el('div', { class: 'card' });
const log = el('div', { id: 'verified', 'aria-live': 'polite' });
const text = el('textarea', { id: 'settings-text', rows: 16, spellcheck: 'false', autocomplete: 'off', 'aria-describedby': 'settings-help', input: () => fill(proposed) });
const proposed = el('div', { id: 'proposed', 'aria-live': 'polite' });
const editor = el('div', { class: 'trial card', hidden: true },
  el('p', { id: 'settings-help', class: 'quiet' }, 'What the file says. Its comments and layout stay. What is ', el('code', {}, '(not shown)'),
    ' and who is let in is changed in the file itself, a server by ', el('code', {}, 'mcpproxy upstream'), '.'),
  el('label', { for: 'settings-text' }, 'Settings, as JSON'), text,
  el('div', { class: 'answer' }, button('Show what that changes', () => act(preview)),
    button('Discard', () => close())), proposed);
let asked = 0;
let read; // what the file said when it was read for the editor, and its digest

export const settings = {
  name: 'settings',
  label: 'Settings',
  root: el('div', {},
    el('h2', {}, 'Config'), state,
    el('div', { class: 'answer' },
      button('Compare with the file', () => act(compare)),
      button('Reload', () => act(reload)),
      button('Change settings', () => act(open), { class: 'primary' })),
    told, editor,
    el('details', { open: true }, el('summary', {}, 'In force, without secrets'), standing),
    el('h2', {}, 'This proxy'), proxy,
    el('h2', {}, 'Activity log'),
    el('p', { class: 'quiet' }, 'Each record carries the hash of the one before it: what was changed, removed or put in between is found.'),
    el('div', { class: 'answer' }, button('Verify the log', () => act(verify)),
      el('a', { href: link('activity', { type: 'config_change' }) }, 'Changes of the config')), log),
  show: () => settings.refresh(),
  refresh: () => attempt(load),
  forget() {
    asked += 1;
    close();
    for (const place of [state, told, standing, proxy, log]) fill(place);
  },
};

const problems = (all) => el('ul', {}, all.map((it) => el('li', { class: it.severity === 'error' ? 'wrong' : 'quiet' },
  it.file && `${it.file}: `, it.line && `line ${it.line} column ${it.column}: `, it.problem)));
const keys = (all) => el('ul', {}, all.map((key) => el('li', {}, el('code', {}, key))));

let drawn;

async function load() {
  const mine = ++asked;
  const [{ data: config, text }, { data: status }] = await Promise.all([ask('config'), ask('status')]);
  if (mine !== asked) return;
  if (text !== drawn || !state.childElementCount) {
    drawn = text;
    fill(state, pairs(['file', config.path ? [el('span', { class: 'mono' }, config.path)] : 'none'], ['in force since', when(config.since)],
      ['needs a restart', config.needs_restart.length > 0 && keys(config.needs_restart)]),
    config.rejected && el('div', { class: 'decision blocked' }, el('p', {}, 'What the file holds since ', when(config.rejected.since), ' cannot be used; the config before it stays in force.'),
      problems(config.rejected.problems)),
    !config.rejected && el('p', { class: 'quiet' }, 'A change of the file applies as soon as it is written.'));
    fill(standing, code(laidOut(config.standing), 'config'));
  }
  const { activity, schemas } = status;
  redraw(proxy, pairs(['version', status.version], ['commit', status.commit], ['running for', lasted(status.uptime_seconds)],
    ['servers', `${number(status.servers.connected)} of ${number(status.servers.total)} connected`], ['tools', number(status.tools)],
    ['connections', number(status.load.connections)], ['sessions', number(status.load.sessions)],
    ['answers held', `${bytes(status.load.held.bytes)} of ${bytes(status.load.held.limit)}`],
    ['schemas that cannot be used', schemas.unusable.length > 0 && el('ul', {}, schemas.unusable.map((it) => el('li', {}, el('bdi', {}, it.tool), ': ', it.reason)))],
    ['engines disagreed', schemas.disagreements && number(schemas.disagreements)],
    ['records', activity.records !== undefined && number(activity.records)]));
}

async function compare() {
  const { data } = await ask('config/difference');
  const nothing = !data.changes.length && !data.problems.length && !data.applied.length && !data.needs_restart.length;
  fill(told, el('div', { class: 'card' }, nothing && el('p', {}, 'The file says what is in force.'),
    data.problems.some((it) => it.severity === 'error') && el('p', { class: 'wrong' }, 'The file cannot be used:'), difference(data)));
}

const difference = (data) => [data.problems.length > 0 && problems(data.problems),
  data.changes.length > 0 && changes(data.changes),
  data.left_out > 0 && el('p', { class: 'quiet' }, `and ${number(data.left_out)} more`),
  data.applied.length > 0 && [el('h3', {}, 'Applies at once'), keys(data.applied)],
  data.needs_restart.length > 0 && [el('h3', {}, 'Counts from the next start on'), keys(data.needs_restart)]];

function changes(all) {
  const value = (it, sign) => it !== undefined && el('pre', { class: sign === '+' ? 'new' : 'old', tabindex: 0, role: 'group', 'aria-label': sign === '+' ? 'in the file' : 'in force' }, `${sign} ${laidOut(it)}`);
  return el('ul', { class: 'changes' }, all.map((it) => el('li', {},
    el('div', { class: 'line' }, el('code', {}, it.key), el('span', { class: 'quiet' }, it.change)),
    value(it.old, '-'), value(it.new, '+'),
    it.old === undefined && it.new === undefined && el('p', { class: 'quiet' }, 'Its value is not shown: it may be a secret.'))));
}

async function open() {
  const { data } = await ask('config/settings');
  read = data;
  text.value = editable(data.settings);
  fill(proposed);
  editor.hidden = false;
  text.focus();
}

function close() {
  read = undefined;
  text.value = '';
  fill(proposed);
  editor.hidden = true;
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** The JSON Merge Patch that makes `next` of `old`. */
function patchOf(old, next) {
  const patch = Object.create(null);
  for (const key of new Set([...Object.keys(old), ...Object.keys(next)])) {
    const [was, is] = [old, next].map((value) => (Object.hasOwn(value, key) ? value[key] : null));
    if (isObject(was) && isObject(is)) {
      const inner = patchOf(was, is);
      if (Object.keys(inner).length > 0) patch[key] = inner;
    } else if (JSON.stringify(was) !== JSON.stringify(is)) patch[key] = is;
  }
  return patch;
}

const TOKEN = /[{}[\],:]|"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

/** Where a text ceases to be JSON; browsers do not tell it of every error. */
function wrongAt(json) {
  const open = [];
  let wants = 'value';
  for (let at = 0; ; at = TOKEN.lastIndex) {
    at += /^\s*/.exec(json.slice(at))[0].length;
    TOKEN.lastIndex = at;
    const token = TOKEN.exec(json)?.[0];
    const kind = token === undefined ? 'none' : '{}[],:'.includes(token) ? token : token[0] === '"' ? 'text' : 'plain';
    const inside = open.at(-1);
    const ends = kind === (inside === '{' ? '}' : ']') && inside !== undefined && (wants === 'next' || wants.endsWith(' or end'));
    if (ends) {
      open.pop();
      wants = 'next';
    } else if (wants.startsWith('value') && (kind === '{' || kind === '[')) {
      open.push(kind);
      wants = kind === '{' ? 'key or end' : 'value or end';
    } else if (wants.startsWith('value') && (kind === 'text' || kind === 'plain')) wants = 'next';
    else if (wants.startsWith('key') && kind === 'text') wants = ':';
    else if (wants === ':' && kind === ':') wants = 'value';
    else if (wants === 'next' && kind === ',' && inside !== undefined) wants = inside === '{' ? 'key' : 'value';
    else return at;
  }
}

async function preview() {
  let next;
  try {
    next = JSON.parse(text.value);
    if (!isObject(next)) throw new SyntaxError('write an object, { … }');
  } catch (error) {
    const before = text.value.slice(0, wrongAt(text.value)).split('\n');
    fill(proposed, el('p', { class: 'wrong' }, `That cannot be read, at line ${before.length} column ${before.at(-1).length + 1}: ${error.message}`));
    return;
  }
  const patch = patchOf(read.settings, next);
  if (Object.keys(patch).length === 0) {
    fill(proposed, el('p', {}, 'Nothing has changed.'));
    return;
  }
  const change = { digest: read.digest, patch };
  try {
    const { data } = await send('config/preview', change);
    fill(proposed, difference(data), el('div', { class: 'answer' },
      button('Write and apply', () => act(() => taken(proposed, 'Nothing was written', async () => {
        await reloaded('config/change', change);
        close();
      })), { class: 'primary' })));
  } catch (error) {
    refused(proposed, 'It cannot be used so', error);
  }
}

const reload = () => taken(told, 'The file cannot be used; the config before it stays in force', () => reloaded('config/reload'));

/** Does what changes the config, tells at `place` why it was refused, and shows what is in force then. */
async function taken(place, words, work) {
  try {
    await work();
  } catch (error) {
    refused(place, words, error);
  }
  await load();
}

async function reloaded(path, body) {
  const { data } = await send(path, body);
  fill(told, el('div', { class: 'card' }, el('p', {}, data.unchanged ? 'Nothing has changed.' : 'It is in force.'),
    data.applied.length > 0 && [el('h3', {}, 'Applied'), keys(data.applied)],
    data.needs_restart.length > 0 && [el('h3', {}, 'Counts from the next start on'), keys(data.needs_restart)],
    data.warnings.length > 0 && problems(data.warnings)));
}

function refused(place, words, error) {
  if (!(error instanceof Refused) || ![409, 422].includes(error.status)) throw error;
  fill(place, el('div', { class: 'card' }, el('p', { class: 'wrong' }, `${words}:`), problems(error.more.problems ?? [{ severity: 'error', problem: error.message }])));
}

async function verify() {
  fill(log, el('p', { class: 'quiet' }, 'Under way.'));
  try {
    const { data } = await ask('activity/verify');
    fill(log, el('div', { class: 'card' }, el('div', { class: 'line' }, el('strong', {}, data.sound ? 'The log is as it was written.' : 'The log is not as it was written.'),
      tag(data.sound ? 'success' : 'error')), code(laidOut(data), 'report')));
  } catch (error) {
    fill(log);
    throw error;
  }
}
