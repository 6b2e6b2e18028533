// The tools: searched, looked into, compared with what was accepted, approved, and tried.

import { button, code, el, empty, fill, labelled, laidOut, number, option, pairs, settled, tag, visible } from './dom.js';
import { ask, attempt, segment, send } from './rest.js';
import { change, link } from './route.js';

const PAGE = 50; // tools asked for at once
const OPERATIONS = ['read', 'write', 'destructive'];
const STANDS = {
  never: 'no definition of it was accepted yet', another: 'another one is accepted', same: 'the accepted one',
  forgotten: 'another one is accepted, whose text is not known any more',
};

const search = el('input', { name: 'q', type: 'search', autocomplete: 'off', placeholder: 'what should the tool do?', maxlength: 1024 });
const server = el('select', { name: 'server' }, option('', 'all'));
const held = el('input', { name: 'held', type: 'checkbox', value: 'yes' });
const form = el('form', { id: 'tool-form', role: 'search' }, labelled('Search', search, { class: 'grow' }), labelled('Server', server),
  el('label', { class: 'check' }, held, ' in quarantine'));
const count = el('p', { id: 'tool-count', class: 'quiet', role: 'status' });
const list = el('ul', { id: 'tools', class: 'cards' });
const none = el('div', {});
const more = button('More', () => attempt(() => load(cursor)), { id: 'more-tools', hidden: true });
let [cursor, asked, shown, servers] = [undefined, 0, {}, []];

export const tools = {
  name: 'tools',
  label: 'Tools',
  root: el('div', {}, form, count, none, list, more),

  show(parameters) {
    const same = JSON.stringify(parameters) === JSON.stringify(shown) && list.childElementCount;
    shown = parameters;
    if (document.activeElement !== search) search.value = parameters.q ?? '';
    held.checked = parameters.held === 'yes';
    choose();
    if (!same) attempt(() => load());
    attempt(async () => {
      const { data } = await ask('servers');
      servers = data.servers.map((it) => it.name);
      choose();
    });
  },

  refresh() {},

  forget() {
    asked += 1;
    shown = {};
    fill(list);
    fill(count);
  },

  keys(event) {
    if (event.key !== '/' || event.target.closest('input, select, textarea')) return;
    event.preventDefault();
    search.focus();
  },
};

/** The form shows the address's server at once: what is typed next must not bring back another. */
function choose() {
  const wanted = shown.server ?? '';
  const unknown = wanted && !servers.includes(wanted) ? [wanted] : [];
  fill(server, option('', 'all'), [...servers, ...unknown].map((name) => option(name)));
  server.value = wanted;
}

async function load(from) {
  const mine = ++asked;
  const { data } = await ask('tools', { q: shown.q, server: shown.server, limit: shown.held ? 100 : PAGE, cursor: from });
  if (mine !== asked) return;
  if (!from) fill(list);
  const meant = shown.held ? data.tools.filter((it) => it.quarantined) : data.tools;
  list.append(...meant.map(tool));
  cursor = data.next_cursor;
  more.hidden = !cursor;
  count.textContent = shown.held ? `${number(list.childElementCount)} in quarantine` : `${number(data.total)} ${data.total === 1 ? 'tool' : 'tools'}`;
  fill(none, !list.childElementCount && !cursor && (shown.q || shown.server || shown.held
    ? empty('No tool fits.', el('p', {}, el('a', { href: link('tools') }, 'Show all tools')))
    : empty('No server offers a tool.', el('p', {}, 'See how the ', el('a', { href: link('servers') }, 'servers'), ' are.'))));
}

function tool(it) {
  const operation = it.call_with.replace('call_tool_', '');
  const hints = Object.entries(it.annotations ?? {}).filter(([, value]) => typeof value === 'boolean').map(([name, value]) => `${name}: ${value}`);
  const able = it.capability ?? {};
  const at = it.name.indexOf(':');
  return el('li', { class: 'card' },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.name)), tag(operation)),
    it.quarantined && el('p', { class: 'wrong' }, 'Its definition is in quarantine: until somebody approves it, no agent sees it.'),
    it.findings.length > 0 && el('ul', { class: 'quiet' }, it.findings.map((found) =>
      el('li', {}, `${found.rule} (${found.level}) in ${found.place}: ${found.detail}`))),
    it.description && el('p', { class: 'quiet' }, it.description),
    pairs(['call with', el('code', {}, it.call_with)], ['side effect', able.side_effect], ['approval', able.approval === 'auto' ? undefined : able.approval],
      ['server says', hints.join(', ')],
      ['records', el('a', { href: link('activity', { server: it.name.slice(0, at), tool: it.name.slice(at + 1) }) }, 'calls of it')]),
    it.inputSchema && el('details', {}, el('summary', {}, 'Parameters'), code(laidOut(it.inputSchema), 'parameters')),
    answers(it), definition(it), trial(it, operation));
}

/** What asks when it is opened, and shows what it was told. */
function opened(words, look) {
  const made = el('details', { toggle: () => made.open && attempt(async () => {
    const told = await look();
    if (made.open) made.replaceChildren(made.firstElementChild, ...told);
  }) }, el('summary', {}, words));
  return made;
}

function answers(it) {
  return opened('Answers', async () => {
    const { data } = await ask(`tools/${segment(it.name)}`);
    const schema = data.tool.outputSchema;
    return [schema ? code(laidOut(schema), 'output schema') : el('p', { class: 'quiet' }, 'It declares no output schema: its answers are not validated.')];
  });
}

/** How a tool is defined now and how that was accepted. */
function definition(it) {
  return opened(it.quarantined ? 'What waits for approval' : 'Definition', async () => {
    const { data } = await ask(`tools/${segment(it.name)}/diff`);
    return differs(data);
  });
}

/** What is another about a definition, part by part, and the button that accepts exactly that. */
function differs({ name, digest, tools: [now] }) {
  const approve = () => {
    if (!confirm(visible(`Approve ${name} as it is defined now?`))) return;
    attempt(async () => {
      try {
        await send(`tools/${segment(name)}/approve`, { digest });
      } finally {
        await load();
      }
    });
  };
  const value = (label, text) => text !== undefined && text !== null
    && [el('p', { class: 'quiet' }, label), el('pre', { tabindex: 0, role: 'group', 'aria-label': label }, text)];
  const place = (it) => [it.place && el('p', { class: 'mono' }, it.place), value('accepted', it.old), value('now', it.new)];
  const part = (it) => [
    el('div', { class: 'line' }, el('strong', {}, it.part), tag(it.grade)),
    it.why.length > 0 && el('p', { class: 'quiet' }, it.why.join(', ')), it.places.map(place),
    it.left_out > 0 && el('p', { class: 'quiet' }, `and ${number(it.left_out)} more: mcpproxy tools diff`)];
  return [pairs(['is', STANDS[now.accepted] ?? now.accepted], ['change', now.grade], ['digest', el('span', { class: 'mono' }, digest)]),
    ...now.parts.flatMap(part).flat(Infinity).filter((child) => child instanceof Node),
    ...(now.quarantined ? [el('div', { class: 'answer' }, button('Approve', approve, { class: 'primary' }))] : []),
  ].filter(Boolean);
}

/** Arguments to begin with: what the schema requires, empty. */
function example(schema) {
  const blank = { string: '', number: 0, integer: 0, boolean: false, array: [], object: {} };
  const of = (it) => it?.default ?? it?.enum?.[0] ?? blank[Array.isArray(it?.type) ? it.type[0] : it?.type] ?? null;
  const required = Array.isArray(schema?.required) ? schema.required : [];
  return Object.fromEntries(required.map((name) => [name, of(schema.properties?.[name])]));
}

/** A call by hand, like an agent's: checked, judged, and on record. */
function trial(it, operation) {
  const args = el('textarea', { name: 'args', rows: 5, spellcheck: 'false' });
  args.value = laidOut(example(it.inputSchema));
  const how = el('select', { name: 'operation' }, OPERATIONS.map((name) => option(name)));
  how.value = operation;
  const reason = el('input', { name: 'reason', autocomplete: 'off', maxlength: 1000, placeholder: 'why, for the record' });
  const came = el('div', { class: 'came', 'aria-live': 'polite' });
  const run = async (event) => {
    event.preventDefault();
    let given;
    try {
      given = JSON.parse(args.value || '{}');
    } catch (error) {
      fill(came, el('p', { class: 'wrong' }, `The arguments are not JSON: ${error.message}`));
      return;
    }
    if (how.value === 'destructive' && !confirm(visible(`Call ${it.name}? It may delete or change something for good.`))) return;
    const id = crypto.randomUUID?.() ?? `page-${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
    const record = el('p', {}, el('a', { href: link('activity', { request_id: id }) }, 'Its record'));
    fill(came, el('p', { class: 'quiet' }, 'Under way.'));
    const intent = { operation_type: how.value, data_sensitivity: 'unknown', reason: reason.value };
    const body = { tool_name: `call_tool_${how.value}`, arguments: { name: it.name, args: given, intent } };
    try {
      const { data } = await send('tools/call', body, { headers: { 'X-Request-Id': id } });
      fill(came, tag(data.isError ? 'error' : 'success'), code(laidOut(data), 'result'), record);
    } catch (error) {
      fill(came, el('p', { class: 'wrong' }, error.message), record);
      if (error.status === 401) attempt(() => { throw error; });
    }
  };
  return el('details', {}, el('summary', {}, 'Try a call'),
    el('form', { class: 'trial', submit: run },
      labelled('Arguments', args), labelled('As', how), labelled('Reason', reason),
      el('div', { class: 'answer' }, el('button', { type: 'submit', class: 'primary' }, 'Call'))), came);
}

const typed = () => change({ q: search.value.trim(), server: server.value, held: held.checked ? 'yes' : '' }, true);
form.addEventListener('submit', (event) => event.preventDefault());
search.addEventListener('input', settled(typed));
server.addEventListener('change', typed);
held.addEventListener('change', typed);
