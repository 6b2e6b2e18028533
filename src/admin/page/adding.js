// Forms that add servers and create tokens. A session of the page may do neither, because a server may be a program and a token
// outlives the session: these requests carry the API key, which is typed for each of them and kept nowhere.

import { button, code, command, el, fill, identifier, isObject, labelled, laidOut, option, para, quiet, trouble, when } from './dom.js';
import { Refused, act, ask, attempt, send } from './rest.js';
import { named } from './route.js';

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/;
const DAY_S = 86_400;
const LIVES = { '1 day': DAY_S, '30 days': 30 * DAY_S, '90 days': 90 * DAY_S, '1 year': 365 * DAY_S, unlimited: '' };
const LIFE = '90 days'; // unless another one is chosen
const MAX_PROPOSED = 20; // names of tools
const SAMPLE = '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]}}}';

/** Whether the browser runs on the proxy's machine as far as the address tells: the proxy adds servers only from there. */
export const isLocal = () => LOOPBACK.test(location.hostname);

/** Commands that add servers. */
export const serverCommands = () => [
  para('Add one: ', command('mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp')),
  para('Or import those of another program: ', command('mcpproxy import')),
];

/** A field for the API key. */
const keyField = () => el('input', { name: 'key', type: 'password', autocomplete: 'off', spellcheck: 'false', required: true, maxlength: 1024 });

/** What is wrong with a field of a form. */
class Wrong extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** Sends a request with the API key in `field`, which is emptied unless the key is right and something else is refused. */
export async function sendWithKey(field, path, body, more) {
  const key = field.value.trim();
  const wrong = (words) => {
    field.value = '';
    return new Wrong(field, words);
  };
  if (!key) throw wrong('Enter the API key.');
  if (!/^[\x21-\x7e]+$/.test(key)) throw wrong('Wrong API key.');
  try {
    const answer = await send(path, body, { ...more, headers: { 'X-API-Key': key } });
    field.value = '';
    return answer;
  } catch (error) {
    throw error.status === 401 ? wrong('Wrong API key.') : error;
  }
}

const SAID = 'field-error';

/** Marks a field as wrong, and says why below it. */
function mark(field, words) {
  field.setAttribute('aria-invalid', 'true');
  field.setAttribute('aria-describedby', SAID);
  field.closest('label').after(el('p.wrong', { id: SAID }, words));
  field.focus();
}

function unmark(form) {
  form.querySelector(`#${SAID}`)?.remove();
  for (const field of form.querySelectorAll('[aria-invalid]')) for (const name of ['aria-invalid', 'aria-describedby']) field.removeAttribute(name);
}

/**
 * Asks a question and for the API key in a dialog, which stays open until `work`, which gets the key's field, has succeeded. The focus
 * then goes to what `work` returns.
 */
export function withKey(question, words, style, work) {
  const key = keyField();
  const submit = (event) => {
    event.preventDefault();
    unmark(form);
    go.disabled = true;
    act(async () => {
      try {
        const next = await work(key);
        dialog.close();
        next?.focus();
      } catch (error) {
        if (!(error instanceof Refused || error instanceof Wrong)) throw error;
        mark(key, error.message);
      } finally {
        go.disabled = false;
      }
    });
  };
  const go = el('button', { type: 'submit', class: `primary ${style}` }, words);
  const form = el('form.trial', { submit, novalidate: true }, el('p', { id: 'question' }, question), labelled('API key', key), el('div.answer', {}, button('Cancel', () => dialog.close()), go));
  const dialog = el('dialog.card', { 'aria-labelledby': 'question', close: () => dialog.remove() }, form);
  document.body.append(dialog);
  window.addEventListener('hashchange', () => dialog.close(), { once: true });
  dialog.showModal();
  key.focus();
}

const text = (name, more = {}) => el('input', { name, autocomplete: 'off', spellcheck: 'false', ...more });
const lines = (name, placeholder, rows = 2) => el('textarea', { name, rows, spellcheck: 'false', placeholder });

/** Checkboxes; each of `entries` has a value, and maybe words that say why it is not chosen, and more about it. */
const choices = (legend, entries, style = 'choices') => el(`fieldset.${style}`, {}, el('legend', {}, legend), entries.map(({ value, checked, why, more }) => el('label', {},
  el('input', { type: 'checkbox', value, checked, disabled: Boolean(why) && !checked }), identifier(value), why && el('span.quiet', {}, ` (${why})`), more && [' ', more])));
const chosen = (place) => [...place.querySelectorAll('input:checked')].map((it) => it.value);

/**
 * A form that ends with the API key. `work` sends it, and returns what is shown instead of it, then with a button that closes that, or
 * nothing. `fieldOf` names the field of a refused key of the config.
 */
function keyed(id, label, parts, words, work, close, fieldOf = () => undefined) {
  const key = keyField();
  const said = el('div', { role: 'alert' });
  const forget = () => {
    fill(said);
    unmark(form);
  };
  const refused = ({ message, more: { problems = [] } = {} }) => {
    const [first] = problems;
    const field = form.elements[first ? fieldOf(first.key) : /already exists/.test(message) && 'name'];
    if (field?.offsetParent) mark(field, first ? first.problem.replace(`${first.key}: `, '') : message);
    else fill(said, trouble(message));
    fill(said, [...said.children], problems.length > 1 && el('ul', {}, problems.map((it) => el('li', {}, it.problem))));
  };
  const submit = (event) => {
    event.preventDefault();
    forget();
    go.disabled = true;
    act(async () => {
      try {
        const done = await work(form.elements, key);
        if (!done) return;
        const shown = el('div.card came', { role: 'status', tabindex: -1 }, done, el('div.answer', {}, button('Done', close, { class: 'primary' })));
        form.replaceWith(shown);
        shown.focus();
      } catch (error) {
        if (error instanceof Wrong) mark(error.field, error.message);
        else if (error instanceof Refused) refused(error);
        else throw error;
      } finally {
        go.disabled = false;
      }
    });
  };
  const go = el('button', { type: 'submit', class: 'primary' }, words);
  const form = el('form.trial card adder', { id, 'aria-label': label, submit, input: forget, change: forget, novalidate: true }, el('h2', {}, label), parts,
    labelled('API key', key), quiet('This needs the key itself, ', el('code', {}, 'api_key'), ' in the config file. The page does not keep it.'),
    said, el('div.answer', {}, go, button('Cancel', close)));
  return form;
}

// ---- Servers

/** Words of a command line; quotes keep blanks together. */
function split(field) {
  const line = field.value;
  if (/["']/.test(line.replace(/"[^"]*"|'[^']*'/g, ''))) throw new Wrong(field, 'A quote is not closed.');
  return (line.match(/(?:[^\s"']|"[^"]*"|'[^']*')+/g) ?? []).map((word) => word.replace(/"([^"]*)"|'([^']*)'/g, '$1$2'));
}

/** The object that the lines of a field are, like `NAME=value`; `undefined` if there are none. */
function pairsOf(field, sign) {
  const rows = field.value.split('\n').map((row) => row.trim()).filter(Boolean);
  const found = rows.map((row) => {
    const at = row.indexOf(sign);
    if (at < 1) throw new Wrong(field, `Write NAME${sign === '=' ? sign : `${sign} `}VALUE on each line, not '${row}'.`);
    return [row.slice(0, at).trim(), row.slice(at + 1).trim()];
  });
  return found.length ? Object.fromEntries(found) : undefined;
}

const isEntry = (value) => isObject(value) && ['command', 'url', 'serverUrl', 'httpUrl'].some((key) => typeof value[key] === 'string');

/** Blanks of the same shape, so that a parser's position stays that of the text. */
const blanks = (text) => text.replace(/[^\n]/g, ' ');

/** Entries of a config of another program, by name: JSON, with comments and commas at the end, also a part of it. */
function entriesIn(written) {
  const plain = written.replace(/("(?:[^"\\]|\\.)*")|\/\/[^\n]*|\/\*[^]*?\*\//g, (all, text) => text ?? blanks(all))
    .replace(/("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])/g, (all, text) => text ?? ' ').trimEnd().replace(/,$/, '');
  let value;
  try {
    value = JSON.parse(plain.trimStart().startsWith('"') ? `{${plain}}` : plain);
  } catch (error) {
    throw new SyntaxError(`Invalid JSON: ${error.message}. Servers in TOML are imported with mcpproxy import.`);
  }
  const lists = [value?.mcpServers, value?.servers, value?.context_servers, value?.mcp?.servers];
  const found = lists.find(isObject) ?? [value].find((it) => isObject(it) && Object.values(it).some(isEntry));
  if (!found) throw new SyntaxError(isEntry(value) ? 'The entry has no name: write {"NAME": {…}}.' : 'It has no servers: write {"mcpServers": {"NAME": {…}}}.');
  return found;
}

/** Why a server of another program is not proposed. */
function unwanted(name, entry, known) {
  if (!isEntry(entry)) return 'no command and no url';
  if (known.includes(name)) return 'the name is taken: change it above';
  const url = entry.url ?? entry.serverUrl ?? entry.httpUrl ?? '';
  return /(^|\/)mcpproxy$/.test(entry.command ?? '') || (name === 'mcpproxy' && url.startsWith('http')) ? 'mcpproxy itself' : undefined;
}

/** A server that asks for a value is added disabled. */
const asks = (entry) => JSON.stringify(entry).includes('${input:');

/** What an entry runs or reaches. */
const target = (entry) => [entry.command, ...(Array.isArray(entry.args) ? entry.args : []), entry.url ?? entry.serverUrl ?? entry.httpUrl].filter((word) => typeof word === 'string').join(' ');

const KINDS = { command: 'Command', url: 'URL', json: 'Import JSON' };

/** A form that adds servers; `known` names those that are there, `added` gets the new names, and whether there is nothing more to say. */
export function serverForm(known, added, close) {
  const kinds = el('fieldset.tabs', {}, el('legend', {}, 'Kind'), Object.entries(KINDS).map(([value, words], at) => el('label', {}, el('input', { type: 'radio', name: 'kind', value, checked: at === 0 }), words)));
  const kind = () => kinds.querySelector(':checked').value;
  const found = el('div', {});
  const json = lines('json', SAMPLE, 6);
  let read = {};
  const find = () => {
    read = {};
    try {
      if (json.value.trim()) read = entriesIn(json.value);
      const entries = Object.entries(read).map(([value, entry]) => {
        const why = unwanted(value, entry, known());
        return { value, checked: !why, why: why ?? (asks(entry) ? 'disabled until you write its value into the config' : undefined), more: isEntry(entry) && el('code', {}, target(entry)) };
      });
      fill(found, entries.length > 0 && choices('Add', entries, 'choices rows-of-one'));
    } catch (error) {
      fill(found, trouble(error.message));
    }
  };
  json.addEventListener('input', find);
  const file = el('input', { type: 'file', accept: '.json,.jsonc,application/json', change: async () => {
    json.value = (await file.files[0]?.text()) ?? '';
    find();
  } });
  const parts = {
    command: [labelled('Name', text('name', { maxlength: 64, placeholder: 'files' })),
      labelled('Command', text('command', { placeholder: 'npx -y @modelcontextprotocol/server-filesystem /tmp' })),
      labelled('Environment', lines('env', 'NAME=value, one per line'))],
    url: [labelled('URL', text('url', { placeholder: 'https://mcp.example.com/mcp' })), labelled('Headers', lines('headers', 'Name: value, one per line'))],
    json: [labelled('Servers', json), labelled('Or read them from a file', file), found],
  };
  const [name, ...ofCommand] = parts.command;
  const turn = () => {
    name.hidden = kind() === 'json';
    for (const one of ofCommand) one.hidden = kind() !== 'command';
    for (const it of ['url', 'json']) for (const one of parts[it]) one.hidden = kind() !== it;
  };
  kinds.addEventListener('change', turn);
  turn();
  const wanted = (fields) => {
    if (kind() === 'json') {
      const names = chosen(found);
      if (!names.length) throw new Wrong(json, Object.keys(read).length || !json.value.trim() ? 'Choose a server.' : 'Correct the JSON.');
      return Object.fromEntries(names.map((it) => [it, asks(read[it]) ? { ...read[it], enabled: false } : read[it]]));
    }
    const filled = (field, words) => {
      if (!field.value.trim()) throw new Wrong(field, words);
      return field.value.trim();
    };
    const name = filled(fields.name, 'Enter a name.');
    if (known().includes(name)) throw new Wrong(fields.name, `There is already a server '${name}'.`);
    if (kind() === 'url') return { [name]: { url: filled(fields.url, 'Enter the URL.'), headers: pairsOf(fields.headers, ':') } };
    filled(fields.command, 'Enter the command.');
    const [program, ...args] = split(fields.command);
    return { [name]: { command: program, args: args.length ? args : undefined, env: pairsOf(fields.env, '=') } };
  };
  const fieldOf = (key = '') => ['command', 'url', 'env', 'headers'].find((member) => key.endsWith(`.${member}`)) ?? 'name';
  return keyed('server-adder', 'Add a server', [kinds, parts.command, parts.url, parts.json], 'Add', async (fields, key) => {
    const all = wanted(fields);
    const names = Object.keys(all);
    const { data: { warnings } } = await sendWithKey(key, 'config/servers', { servers: all });
    const isAll = names.length === 1 && warnings.length === 0;
    await added(names, isAll);
    return !isAll && [para(el('strong', {}, `Added ${names.join(', ')}.`), ' The list shows the state of each.'),
      warnings.length > 0 && el('ul', {}, warnings.map((it) => el('li.quiet', {}, it.problem)))];
  }, close, fieldOf);
}

// ---- Tokens

/** The secret of a token, which is shown once. */
export function secret({ name, token, expires }) {
  const open = el('div', {});
  attempt(async () => {
    const { data } = await ask('config');
    fill(open, data.standing.require_mcp_auth !== true && para('Agents without a token are admitted, too, until the config says ', el('code', {}, '"require_mcp_auth": true'), '.'));
  });
  const entry = { mcpServers: { mcpproxy: { type: 'http', url: `${location.origin}/mcp`, headers: { 'X-API-Key': token } } } };
  return [para(el('strong', {}, `The secret of ${name}, shown only now`), expires && [', valid until ', when(expires)], ':'), code(token, 'secret'),
    el('details', {}, el('summary', {}, 'Entry for a client'), code(laidOut(entry), 'entry')), open];
}

/** A field for names and patterns of tools, separated by commas. It proposes known names, and says what matches none of them. */
function toolsField() {
  const [list, unknown] = [el('datalist', { id: 'token-tools' }), el('p.quiet', { id: 'unknown-tools', role: 'status' })];
  const patterns = () => field.value.split(',').map((it) => it.trim()).filter(Boolean);
  const matches = (pattern) => {
    const exact = new RegExp(`^${pattern.replace(/[.+?^${}()|[\]\\]/g, '\\$&').replaceAll('*', '.*')}$`);
    return names.some((name) => exact.test(pattern.includes(':') ? name : named(name).tool));
  };
  const propose = () => {
    // An option replaces the whole value, so it begins with the names before the last one.
    const [, before, last] = /^(.*,\s*)?(.*)$/.exec(field.value);
    fill(list, names.filter((name) => name.includes(last)).slice(0, MAX_PROPOSED).map((name) => option(`${before ?? ''}${name}`)));
  };
  const check = () => {
    const none = names.length ? patterns().filter((pattern) => !matches(pattern)) : [];
    fill(unknown, none.length > 0 && `No known tool matches ${none.join(', ')}.`);
  };
  const field = text('tools', { list: list.id, 'aria-describedby': unknown.id, placeholder: 'all; or names, separated by commas, with * for any characters', input: propose, change: check });
  let names = [];
  attempt(async () => {
    const found = [];
    let data;
    do {
      ({ data } = await ask('tools', { limit: 100, cursor: data?.next_cursor }));
      found.push(...data.tools.map((it) => it.name));
    } while (data.next_cursor);
    names = found;
    propose();
    check();
  });
  return { patterns, parts: [labelled('Tools', field), list, unknown] };
}

/** A form that creates a token; `made` is called after that. */
export function tokenForm(made, close) {
  const servers = el('div', {}, quiet('…'));
  attempt(async () => {
    const { data } = await ask('servers');
    fill(servers, data.servers.length > 0 && choices('Servers (none chosen: all)', data.servers.map((it) => ({ value: it.name }))));
  });
  const operations = choices('Operations (none chosen: all)', ['read', 'write', 'destructive'].map((value) => ({ value })));
  const tools = toolsField();
  const life = el('select', { name: 'life' }, Object.keys(LIVES).map((words) => option(words)));
  life.value = LIFE;
  const parts = [labelled('Name', text('name', { maxlength: 64, placeholder: 'ci' })),
    servers, operations, tools.parts, labelled('Valid for', life)];
  return keyed('token-adder', 'Create a token', parts, 'Create', async (fields, key) => {
    const name = fields.name.value.trim();
    if (!/^[A-Za-z0-9][\w.-]*$/.test(name)) throw new Wrong(fields.name, name ? 'A name has letters, digits, -, _ and ., and begins with a letter or digit.' : 'Enter a name.');
    const wanted = { name, servers: chosen(servers), operations: chosen(operations), tools: tools.patterns() };
    const seconds = LIVES[life.value];
    const { data } = await sendWithKey(key, 'tokens', seconds ? { ...wanted, expires_in: seconds } : wanted);
    await made();
    return secret(data);
  }, close);
}
