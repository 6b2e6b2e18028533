// The config in force without secrets, its differences from the file, a form and an editor for settings with a preview, and the status
// of the proxy itself.

import { anchor, block, button, bytes, code, confirmed, copied, editable, el, fill, identifier, isObject, laidOut, lasted, number, pairs, para, quiet, redraw, tag, took, trouble, when } from './dom.js';
import { Refused, act, ask, attempt, get, notice, send } from './rest.js';
import { link } from './route.js';
import { settingsForm } from './settings_form.js';

const state = el('div', {});
const config = el('div.card', {}, state, el('div.answer', {},
  button('Change settings', () => act(() => open()), { class: 'primary' }),
  button('Compare with the file', () => act(compare)),
  button('Reload', () => act(reload)),
  anchor(link('activity', { type: 'config_change' }), 'Changes of the config')));
const differences = el('div', { id: 'difference', 'aria-live': 'polite' });
const standing = el('div', { id: 'standing-config' });
const proxy = el('div.card facts', {});
const records = el('div', {});
const log = el('div', { id: 'verified', 'aria-live': 'polite' });
const text = el('textarea', { id: 'settings-text', rows: 16, spellcheck: 'false', autocomplete: 'off', 'aria-describedby': 'settings-help', input: () => changed() });
const proposed = el('div', { id: 'proposed', 'aria-live': 'polite' });
const fields = el('div', {});
const pending = el('span.quiet', { role: 'status' });
const asText = el('div', { hidden: true }, el('label', { for: 'settings-text' }, 'Settings, as JSON'), text);
const turn = button('Edit as JSON', () => act(turned));
const editor = el('div.trial card', { hidden: true },
  el('p.quiet', { id: 'settings-help' }, 'These settings are written into the config file, whose comments and layout are kept. Change other keys, and values that are ', el('code', {}, '(not shown)'),
    ', in the file itself, and servers with ', el('code', {}, 'mcpproxy upstream'), '.'),
  fields, asText,
  el('div.answer', {}, button('Preview changes', () => act(preview), { class: 'primary' }), turn,
    button('Discard', async () => (!isChanged() || await confirmed('Discard the changes?', 'Discard')) && close()), pending), proposed);
/** The part of the view where a fault is shown. */
const PARTS = { config: 'config', rules: 'config', activity: 'log' };
const partOf = (fault) => PARTS[fault.part] ?? 'proxy';
const faults = Object.fromEntries(['config', 'proxy', 'log'].map((part) => [part, el('div', { 'data-faults': part })]));
const heading = (part, words) => el('h2', { id: `settings-${part}`, tabindex: -1 }, words);
let asked = 0;
let read; // the settings and the digest of the file when the editor was opened
let next; // the settings as the form has them

export const settings = {
  name: 'settings',
  label: 'Settings',
  takes: ['part', 'server'],
  root: el('div', {},
    heading('config', 'Config'), faults.config, config,
    differences, editor,
    el('details', {}, el('summary', {}, 'Config in force, secrets hidden'), standing),
    heading('proxy', 'This proxy'), faults.proxy, proxy,
    heading('log', 'Activity log'), faults.log,
    el('div.card', {}, records, el('p.quiet below', {}, 'Each record contains the hash of the previous one, so changed, removed and inserted records are detected.'),
      el('div.answer', {}, button('Verify the log', () => act(verify)), anchor(link('activity'), 'All records'))), log),
  async show({ part, server }) {
    await settings.refresh();
    if (server) act(() => open(server));
    const place = part && document.getElementById(`settings-${partOf({ part })}`);
    place?.scrollIntoView({ block: 'center' });
    place?.focus({ preventScroll: true });
  },
  refresh: () => attempt(load, 'settings'),
  forget() {
    asked += 1;
    close();
    for (const place of [state, differences, standing, proxy, records, log, ...Object.values(faults)]) fill(place);
  },
};

const problems = (all) => el('ul', {}, all.map((it) => el('li', { class: it.severity === 'error' ? 'wrong' : 'quiet' },
  it.file && [it.file, it.line, it.column].filter(Boolean).join(':') + ': ', it.problem)));
const keys = (all) => el('ul', {}, all.map((key) => el('li', {}, el('code', {}, key))));

const SYNC_MS = 500; // until written records are durable
let drawn;
let ahead; // last record less the written ones

async function load() {
  const mine = ++asked;
  const [{ data, text }, { data: status }] = await Promise.all([ask('config'), ask('status')]);
  if (mine !== asked) return;
  if (text !== drawn || !state.childElementCount) {
    drawn = text;
    config.classList.toggle('fault', Boolean(data.rejected));
    fill(state, pairs(['file', data.path ? copied(data.path, 'path of the file') : 'none'], ['in force since', when(data.since)],
      ['needs a restart', data.needs_restart.length > 0 && keys(data.needs_restart)]),
    data.rejected && el('div.decision blocked', {}, para('What the file holds since ', when(data.rejected.since), ' is invalid; the previous config stays in force.'),
      problems(data.rejected.problems)),
    !data.rejected && quiet('A change of the file applies as soon as it is written.'));
    fill(standing, code(laidOut(data.standing), 'config'));
  }
  for (const [part, place] of Object.entries(faults)) {
    const isTold = (fault) => fault.server || ['fleet', 'index'].includes(fault.part) || (fault.part === 'config' && data.rejected);
    const here = status.faults.filter((fault) => partOf(fault) === part && !isTold(fault));
    redraw(place, here.length > 0 && el('ul.card fault', {}, here.map((fault) => el('li', {}, fault.part === 'rules' ? anchor(link('policy'), 'rules') : el('strong', {}, fault.part), ': ', el('bdi', {}, fault.cause)))));
  }
  const { activity, schemas } = status;
  const before = ahead;
  ahead = activity.durable_seq - activity.written;
  if (ahead < before) setTimeout(() => mine === asked && settings.refresh(), SYNC_MS);
  redraw(proxy, pairs(['version', status.version], ['commit', status.commit], ['running for', lasted(status.uptime_seconds)],
    ['servers', anchor(link('servers'), `${number(status.servers.connected)} of ${number(status.servers.total)} connected`)], ['tools', anchor(link('tools'), number(status.tools))],
    ['connections', number(status.load.connections)], ['sessions', number(status.load.sessions)],
    ['results held', `${bytes(status.load.held.bytes)} of ${bytes(status.load.held.limit)}`],
    ['unusable schemas', schemas.unusable.length > 0 && el('ul', {}, schemas.unusable.map((it) => el('li', {}, identifier(it.tool), ': ', it.reason)))],
    ['engine disagreements', schemas.disagreements && number(schemas.disagreements)]));
  redraw(records, el('div.facts', {}, pairs(['state', activity.state], ['last record', number(activity.durable_seq)], ['size of the records', bytes(activity.disk_bytes)],
    ['written since the start', number(activity.written)], ['longest write to disk', took(activity.longest_sync_ms)], ['lost', number(activity.lost)])));
}

async function compare() {
  const { data } = await ask('config/difference');
  const nothing = !data.changes.length && !data.problems.length && !data.applied.length && !data.needs_restart.length;
  fill(differences, el('div.card', {}, nothing && para('The file matches the config in force.'),
    data.problems.some((it) => it.severity === 'error') && trouble('The file is invalid:'), difference(data)));
}

const difference = (data) => [data.problems.length > 0 && problems(data.problems),
  data.changes.length > 0 && changes(data.changes),
  data.left_out > 0 && quiet(`and ${number(data.left_out)} more`),
  data.applied.length > 0 && [el('h3', {}, 'Applies at once'), keys(data.applied)],
  data.needs_restart.length > 0 && [el('h3', {}, 'Takes effect at the next start'), keys(data.needs_restart)]];

function changes(all) {
  const value = (it, sign) => it !== undefined && block(sign === '+' ? 'in the file' : 'in force', `${sign} ${laidOut(it)}`, { class: sign === '+' ? 'new' : 'old' });
  return el('ul.changes', {}, all.map((it) => el('li', {},
    el('div.line', {}, el('code', {}, it.key), el('span.quiet', {}, it.change)),
    value(it.old, '-'), value(it.new, '+'),
    it.old === undefined && it.new === undefined && quiet('The value is not shown because it may be a secret.'))));
}

/** Opens the form, unless it is open and may hold changes, and shows the settings of a server in it. */
async function open(server) {
  if (editor.hidden) await begin();
  if (!server) return;
  if (fields.hidden) turned();
  const of = fields.querySelector('select');
  of.value = [...of.options].some((it) => it.value === server) ? server : '';
  if (of.value !== server) notice(`No server named '${server}'.`);
  of.dispatchEvent(new Event('change'));
  editor.scrollIntoView();
}

async function begin() {
  const [{ data }, schema] = await Promise.all([ask('config/settings'), get('/api/v1/config/schema.json').then((answer) => answer.json())]);
  read = { ...data, schema };
  next = structuredClone(data.settings);
  text.value = '';
  asForm();
  editor.hidden = false;
  fields.querySelector('select').focus();
}

function asForm() {
  fill(fields, settingsForm(read.schema, read, next, changed));
  turnTo(false);
  changed();
}

function turnTo(json) {
  [asText.hidden, fields.hidden] = [!json, json];
  turn.textContent = json ? 'Edit as a form' : 'Edit as JSON';
}

/** Changes between the form and the JSON, with what is in them. */
function turned() {
  if (asText.hidden) {
    text.value = editable(next);
    turnTo(true);
    text.focus();
    return;
  }
  const typed = parsed();
  if (!typed) return;
  next = typed;
  asForm();
}

function close() {
  read = undefined;
  next = undefined;
  text.value = '';
  for (const place of [fields, proposed, pending]) fill(place);
  editor.hidden = true;
}

/** The JSON Merge Patch from `old` to `next`. */
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

/** Number of settings that a patch changes. */
const sizeOf = (patch) => Object.values(patch).reduce((sum, value) => sum + (isObject(value) ? sizeOf(value) : 1), 0);

/** Whether the form differs from what was read. */
const isChanged = () => read !== undefined && (asText.hidden ? sizeOf(patchOf(read.settings, next)) > 0 : text.value !== editable(read.settings));

/** Shows each problem at its field, of which the first gets the focus. */
function markFields(all) {
  unmarkFields();
  const marked = all.map(({ key, problem }) => {
    const field = key && fields.querySelector(`[data-path="${CSS.escape(key)}"]`);
    field?.setAttribute('aria-invalid', 'true');
    field?.closest('.setting').append(trouble(problem));
    return field;
  }).filter(Boolean);
  if (marked.length) marked[0].closest('details').open = true;
  marked[0]?.focus();
}

function unmarkFields() {
  for (const field of fields.querySelectorAll('[aria-invalid]')) {
    field.removeAttribute('aria-invalid');
    field.closest('.setting').querySelector('.wrong').remove();
  }
}

/** Forgets the preview of earlier changes, and counts those of the form. */
function changed() {
  fill(proposed);
  unmarkFields();
  const count = asText.hidden ? sizeOf(patchOf(read.settings, next)) : 0;
  pending.textContent = count ? `${number(count)} ${count === 1 ? 'change' : 'changes'}, not written yet` : '';
}

window.addEventListener('beforeunload', (event) => {
  if (isChanged()) event.preventDefault();
});

const TOKEN = /[{}[\],:]|"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

/** Position of the first JSON syntax error, which browsers do not always report. */
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

/** The settings in the text; `undefined` if they are invalid, which is shown. */
function parsed() {
  try {
    const value = JSON.parse(text.value);
    if (!isObject(value)) throw new SyntaxError('write an object, { … }');
    return value;
  } catch (error) {
    const before = text.value.slice(0, wrongAt(text.value)).split('\n');
    fill(proposed, trouble(`Invalid JSON at line ${before.length} column ${before.at(-1).length + 1}: ${error.message}`));
    return undefined;
  }
}

async function preview() {
  const wanted = asText.hidden ? next : parsed();
  if (!wanted) return;
  const patch = patchOf(read.settings, wanted);
  if (Object.keys(patch).length === 0) {
    fill(proposed, para('Nothing has changed.'));
    return;
  }
  const change = { digest: read.digest, patch };
  try {
    const { data } = await send('config/preview', change);
    fill(proposed, difference(data), el('div.answer', {},
      button('Write and apply', () => act(() => taken(proposed, 'Nothing was written', async () => {
        await reloaded('config/change', change);
        close();
      })), { class: 'primary' })));
  } catch (error) {
    refused(proposed, 'The change is invalid', error);
  }
}

const reload = () => taken(differences, 'The file is invalid; the previous config stays in force', () => reloaded('config/reload'));

/** Changes the config, shows a rejection at `place`, and reloads the view. */
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
  fill(differences, el('div.card', {}, para(data.unchanged ? 'Nothing has changed.' : 'The config is in force.'),
    data.applied.length > 0 && [el('h3', {}, 'Applied'), keys(data.applied)],
    data.needs_restart.length > 0 && [el('h3', {}, 'Takes effect at the next start'), keys(data.needs_restart)],
    data.warnings.length > 0 && problems(data.warnings)));
}

function refused(place, words, error) {
  if (!(error instanceof Refused) || ![409, 422].includes(error.status)) throw error;
  const all = error.more.problems ?? [{ severity: 'error', problem: error.message }];
  // What is only proposed has no lines that somebody could look up.
  const shown = place === proposed ? all.map(({ severity, problem }) => ({ severity, problem })) : all;
  fill(place, el('div.card', {}, trouble(`${words}:`), problems(shown)));
  if (place === proposed) markFields(all);
}

async function verify() {
  fill(log, quiet('In progress.'));
  try {
    const { data } = await ask('activity/verify');
    fill(log, el('div.card', {}, el('div.line', {}, el('strong', {}, data.sound ? 'The log is intact.' : 'The log is not intact.'),
      tag(data.sound ? 'success' : 'error')),
    pairs(['records', data.records && `${number(data.records)}, from ${number(data.first)} to ${number(data.last)}`]),
    el('details', { open: !data.sound }, el('summary', {}, 'Report'), code(laidOut(data), 'report'))));
  } catch (error) {
    fill(log);
    throw error;
  }
}
