// Forms that add servers and create tokens. A session of the page may do neither, because a server may be a program and a token
// outlives the session: these requests carry the API key, which is typed for each of them and kept nowhere.

import { button, code, command, el, fill, identifier, labelled, option, para, quiet, trouble, when } from './dom.js';
import { Refused, act, ask, attempt, send } from './rest.js';

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/;
const DAY_S = 86_400;
const LIVES = { '1 day': DAY_S, '30 days': 30 * DAY_S, '90 days': 90 * DAY_S, '1 year': 365 * DAY_S, unlimited: '' };
const LIFE = '90 days'; // unless another one is chosen
const SAMPLE = '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]}}}';

/** Whether the browser runs on the proxy's machine as far as the address tells: the proxy adds servers only from there. */
export const isLocal = () => LOOPBACK.test(location.hostname);

/** Commands that add servers. */
export const serverCommands = () => [
  para('Add one: ', command('mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp')),
  para('Or import those of another program: ', command('mcpproxy import')),
];

/** A field for the API key. */
export const keyField = () => el('input', { name: 'key', type: 'password', autocomplete: 'off', spellcheck: 'false', required: true, maxlength: 1024 });

/** Sends a request with the API key in `field`, and empties it. */
export async function sendWithKey(field, path, body, more) {
  const key = field.value.trim();
  field.value = '';
  const wrong = () => new Refused(403, 'Wrong API key. It is api_key in the config file.');
  if (!/^[\x21-\x7e]+$/.test(key)) throw wrong();
  try {
    return await send(path, body, { ...more, headers: { 'X-API-Key': key } });
  } catch (error) {
    throw error.status === 401 ? wrong() : error;
  }
}

const text = (name, more = {}) => el('input', { name, autocomplete: 'off', spellcheck: 'false', ...more });
const lines = (name, placeholder, rows = 2) => el('textarea', { name, rows, spellcheck: 'false', placeholder });

/** Checkboxes; each of `entries` has a value, and maybe words that say why it is not chosen. */
const choices = (legend, entries) => el('fieldset.choices', {}, el('legend', {}, legend), entries.map(({ value, checked, why }) => el('label', {},
  el('input', { type: 'checkbox', value, checked, disabled: Boolean(why) && !checked }), ' ', identifier(value), why && el('span.quiet', {}, ` (${why})`))));
const chosen = (place) => [...place.querySelectorAll('input:checked')].map((it) => it.value);

/** A form that ends with the API key. `work` sends it and returns what is shown instead of it, then with a button that closes that. */
function keyed(id, label, parts, words, work, close) {
  const key = keyField();
  const said = el('div', { role: 'alert' });
  const submit = (event) => {
    event.preventDefault();
    fill(said);
    go.disabled = true;
    act(async () => {
      try {
        const done = await work(form.elements, key);
        form.replaceWith(el('div.card came', { role: 'status', tabindex: -1 }, done, el('div.answer', {}, button('Done', close, { class: 'primary' }))));
      } catch (error) {
        if (!(error instanceof Refused || error instanceof SyntaxError)) throw error;
        fill(said, trouble(error.message), error.more?.problems?.length > 1 && el('ul', {}, error.more.problems.map((it) => el('li', {}, it.problem))));
      } finally {
        go.disabled = false;
      }
    });
  };
  const forget = () => fill(said);
  const go = el('button', { type: 'submit', class: 'primary' }, words);
  const form = el('form.trial card adder', { id, 'aria-label': label, submit, input: forget, change: forget }, el('h2', {}, label), parts,
    labelled('API key', key), quiet('This needs the key itself, ', el('code', {}, 'api_key'), ' in the config file. The page does not keep it.'),
    said, el('div.answer', {}, go, button('Cancel', close)));
  return form;
}

// ---- Servers

/** Words of a command line; quotes keep blanks together. */
function split(line) {
  if (/["']/.test(line.replace(/"[^"]*"|'[^']*'/g, ''))) throw new SyntaxError('A quote in the command is not closed.');
  return (line.match(/(?:[^\s"']|"[^"]*"|'[^']*')+/g) ?? []).map((word) => word.replace(/"([^"]*)"|'([^']*)'/g, '$1$2'));
}

/** The object that lines of names and values are, like `NAME=value`; `undefined` if there are none. */
function pairsOf(written, sign) {
  const rows = written.split('\n').map((row) => row.trim()).filter(Boolean);
  const found = rows.map((row) => {
    const at = row.indexOf(sign);
    if (at < 1) throw new SyntaxError(`Write NAME${sign === '=' ? sign : `${sign} `}VALUE on each line, not '${row}'.`);
    return [row.slice(0, at).trim(), row.slice(at + 1).trim()];
  });
  return found.length ? Object.fromEntries(found) : undefined;
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const isEntry = (value) => isObject(value) && ['command', 'url', 'serverUrl', 'httpUrl'].some((key) => typeof value[key] === 'string');

/** Servers of a config of another program, by name: JSON, with comments and commas at the end, also a part of it. */
export function serversIn(written) {
  const plain = written.replace(/("(?:[^"\\]|\\.)*")|\/\/[^\n]*|\/\*[^]*?\*\//g, '$1').replace(/("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])/g, '$1').trim().replace(/,$/, '');
  let value;
  try {
    value = JSON.parse(plain.startsWith('"') ? `{${plain}}` : plain);
  } catch {
    throw new SyntaxError('This is no JSON. Servers in TOML are imported with mcpproxy import.');
  }
  const found = [value?.mcpServers, value?.servers, value?.context_servers, value?.mcp?.servers, value].find((it) => isObject(it) && Object.values(it).some(isEntry));
  if (!found) throw new SyntaxError(isEntry(value) ? 'The entry has no name: write {"NAME": {…}}.' : 'It has no servers: write {"mcpServers": {"NAME": {…}}}.');
  return Object.fromEntries(Object.entries(found).filter(([, entry]) => isEntry(entry)));
}

/** Why a server of another program is not proposed. */
function unwanted(name, entry, known) {
  if (known.includes(name)) return 'the name is taken';
  const url = entry.url ?? entry.serverUrl ?? entry.httpUrl ?? '';
  return /(^|\/)mcpproxy$/.test(entry.command ?? '') || (name === 'mcpproxy' && url.startsWith('http')) ? 'mcpproxy itself' : undefined;
}

/** A server that asks for a value is added disabled. */
const asks = (entry) => JSON.stringify(entry).includes('${input:');

/** A form that adds servers; `known` names those that are there, `added` is called with the new names. */
export function serverForm(known, added, close) {
  const kind = el('select', { name: 'kind' }, option('command', 'a command'), option('url', 'a URL'), option('json', 'servers of another program, as JSON'));
  const found = el('div', {});
  const json = lines('json', SAMPLE, 6);
  let read = {};
  const find = () => {
    try {
      read = json.value.trim() ? serversIn(json.value) : {};
      const entries = Object.entries(read).map(([value, entry]) => {
        const why = unwanted(value, entry, known());
        return { value, checked: !why, why: why ?? (asks(entry) ? 'disabled until you write its value into the config' : undefined) };
      });
      fill(found, entries.length > 0 && choices('Add', entries));
    } catch (error) {
      read = {};
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
    url: [labelled('URL', text('url', { type: 'url', placeholder: 'https://mcp.example.com/mcp' })), labelled('Headers', lines('headers', 'Name: value, one per line'))],
    json: [labelled('Servers', json), labelled('Or read them from a file', file), found],
  };
  const [name, ...ofCommand] = parts.command;
  const turn = () => {
    name.hidden = kind.value === 'json';
    for (const one of ofCommand) one.hidden = kind.value !== 'command';
    for (const it of ['url', 'json']) for (const one of parts[it]) one.hidden = kind.value !== it;
  };
  kind.addEventListener('change', turn);
  turn();
  const wanted = (fields) => {
    if (kind.value === 'json') {
      const names = chosen(found);
      if (!names.length) throw new SyntaxError('No server is chosen.');
      return Object.fromEntries(names.map((it) => [it, asks(read[it]) ? { ...read[it], enabled: false } : read[it]]));
    }
    if (!fields.name.value.trim()) throw new SyntaxError('Give the server a name.');
    const [program, ...args] = split(fields.command.value);
    const entry = kind.value === 'url' ? { url: fields.url.value.trim(), headers: pairsOf(fields.headers.value, ':') }
      : { command: program, args: args.length ? args : undefined, env: pairsOf(fields.env.value, '=') };
    if (!(entry.url || entry.command)) throw new SyntaxError(`Give the server a ${kind.value === 'url' ? 'URL' : 'command'}.`);
    return { [fields.name.value.trim()]: entry };
  };
  return keyed('server-adder', 'Add a server', [labelled('Kind', kind), parts.command, parts.url, parts.json], 'Add', async (fields, key) => {
    const all = wanted(fields);
    const names = Object.keys(all);
    const { data } = await sendWithKey(key, 'config/servers', { servers: all });
    await added(names);
    return [para(el('strong', {}, `Added ${names.join(', ')}.`), ' Its tools appear once it is connected.'),
      data.warnings.length > 0 && el('ul', {}, data.warnings.map((it) => el('li.quiet', {}, it.problem)))];
  }, close);
}

// ---- Tokens

/** The secret of a token, which is shown once. */
export function secret({ name, token, expires }) {
  const open = el('div', {});
  attempt(async () => {
    const { data } = await ask('config');
    fill(open, data.standing.require_mcp_auth !== true && para('Agents without a token are admitted, too, until the config says ', el('code', {}, '"require_mcp_auth": true'), '.'));
  });
  return [para(el('strong', {}, `The secret of ${name}, shown only now`), expires && [', valid until ', when(expires)], ':'), code(token, 'secret'),
    para('The agent sends it in the header ', el('code', {}, 'X-API-Key'), ' to ', el('code', {}, `${location.origin}/mcp`), '.'), open];
}

/** A form that creates a token; `made` is called after that. */
export function tokenForm(made, close) {
  const servers = el('div', {}, quiet('…'));
  attempt(async () => {
    const { data } = await ask('servers');
    fill(servers, data.servers.length > 0 && choices('Servers (none chosen: all)', data.servers.map((it) => ({ value: it.name }))));
  });
  const operations = choices('Operations (none chosen: all)', ['read', 'write', 'destructive'].map((value) => ({ value })));
  const life = el('select', { name: 'life' }, Object.keys(LIVES).map((words) => option(words)));
  life.value = LIFE;
  const parts = [labelled('Name', text('name', { required: true, maxlength: 64, pattern: '[A-Za-z0-9][A-Za-z0-9._\\-]*', title: 'letters, digits, -, _ and .', placeholder: 'ci' })),
    servers, operations, labelled('Tools', text('tools', { placeholder: 'all; or names, separated by commas, with * for any characters' })), labelled('Valid for', life)];
  return keyed('token-adder', 'Create a token', parts, 'Create', async (fields, key) => {
    const wanted = { name: fields.name.value.trim(), servers: chosen(servers), operations: chosen(operations), tools: fields.tools.value.split(',').map((it) => it.trim()).filter(Boolean) };
    const seconds = LIVES[life.value];
    const { data } = await sendWithKey(key, 'tokens', seconds ? { ...wanted, expires_in: seconds } : wanted);
    await made();
    return secret(data);
  }, close);
}
