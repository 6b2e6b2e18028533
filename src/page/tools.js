// The tools: searched, looked into, compared with what was accepted, approved, and tried.

import { SETTLE_MS, arrange, button, code, editable, el, empty, fill, labelled, laidOut, number, option, pairs, redraw, settled, tag, visible } from './dom.js';
import { listen } from './live.js';
import { act, ask, attempt, segment, send } from './rest.js';
import { change, here, link } from './route.js';

const PAGE = 50; // tools asked for at once
const MOST = 100; // that an answer holds
const SOON_MS = 500; // after a server has changed something, in which it changes more
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
const more = button('More', () => act(further), { id: 'more-tools', hidden: true });
let [cursor, asked, shown, servers] = [undefined, 0, {}, []];

export const tools = {
  name: 'tools',
  label: 'Tools',
  root: el('div', {}, form, count, none, list, more),

  show(parameters) {
    const same = JSON.stringify(parameters) === JSON.stringify(shown);
    shown = parameters;
    if (document.activeElement !== search) search.value = parameters.q ?? '';
    held.checked = parameters.held === 'yes';
    choose();
    attempt(() => load(same));
    attempt(async () => {
      const { data } = await ask('servers');
      servers = data.servers.map((it) => it.name);
      choose();
    });
  },

  forget() {
    asked += 1;
    [shown, servers] = [{}, []];
    form.reset();
    choose();
    for (const place of [list, count, none]) fill(place);
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
  redraw(server, option('', 'all'), [...servers, ...unknown].map((name) => option(name)));
  server.value = wanted;
}

const page = (parameters) => ask('tools', { q: shown.q, server: shown.server, quarantined: shown.held === 'yes' ? true : '', ...parameters });

/** Lists the tools; `again`: as many as there were, and those that are the same stay as they are, with what is open in them. */
async function load(again) {
  const mine = ++asked;
  const wanted = again ? Math.max(list.childElementCount, PAGE) : PAGE;
  const found = new Map(); // a list that changes meanwhile may name a tool on two pages
  let data;
  do {
    ({ data } = await page({ limit: Math.min(wanted - found.size, MOST), cursor: data?.next_cursor }));
    if (mine !== asked) return;
    for (const it of data.tools) found.set(it.name, it);
  } while (data.next_cursor && found.size < wanted);
  const before = new Map([...list.children].map((card) => [card.dataset.name, card]));
  arrange(list, [...found.values()].map((it) => drawn(it, before.get(it.name))));
  end(data);
}

async function further() {
  const mine = ++asked;
  const { data } = await page({ limit: PAGE, cursor });
  if (mine !== asked) return;
  const known = new Set([...list.children].map((card) => card.dataset.name));
  list.append(...data.tools.filter((it) => !known.has(it.name)).map((it) => drawn(it)));
  end(data);
}

function end({ total, next_cursor: next }) {
  cursor = next;
  more.hidden = !cursor;
  count.textContent = `${number(total)} ${total === 1 ? 'tool' : 'tools'}${shown.held ? ' in quarantine' : ''}`;
  redraw(none, total === 0 && (shown.held && !shown.q && !shown.server ? empty('No tool is in quarantine.', showAll())
    : shown.q || shown.server || shown.held ? empty('No tool fits.', showAll())
      : empty('No server offers a tool.', el('p', {}, 'See how the ', el('a', { href: link('servers') }, 'servers'), ' are.'))));
}

const showAll = () => el('p', {}, el('a', { href: link('tools') }, 'Show all tools'));

/** The card of a tool: the one there was, where nothing about it is another; what was open in it stays open. */
function drawn(it, before) {
  const said = JSON.stringify(it);
  if (before?.said === said) return before;
  const made = tool(it);
  made.said = said;
  const parts = (card) => new Map([...card.querySelectorAll(':scope > details')].map((part) => [part.dataset.part, part]));
  for (const [name, part] of before ? parts(before) : []) {
    if (!part.open) continue;
    // A call that somebody is about to make is theirs.
    if (name === 'trial') parts(made).get(name)?.replaceWith(part);
    else if (parts(made).has(name)) parts(made).get(name).open = true;
  }
  return made;
}

async function again() {
  if (here().view === 'tools' && !document.hidden) await load(true);
}

// A server that lists its tools anew says so in one record and in those of its tools.
let soon;
listen((record) => {
  if (record.type !== 'catalog_change' && !(record.type === 'approval' && record.metadata?.approval === 'definition')) return;
  clearTimeout(soon);
  soon = setTimeout(() => attempt(again), SOON_MS);
}, again);

function tool(it) {
  const operation = it.call_with.replace('call_tool_', '');
  const hints = Object.entries(it.annotations ?? {}).filter(([, value]) => typeof value === 'boolean').map(([name, value]) => `${name}: ${value}`);
  const able = it.capability ?? {};
  const at = it.name.indexOf(':');
  return el('li', { class: 'card', 'data-name': it.name },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, it.name)), tag(operation)),
    it.quarantined && el('p', { class: 'wrong' }, 'Its definition is in quarantine: until somebody approves it, no agent sees it.'),
    it.findings.length > 0 && el('ul', { class: 'quiet' }, it.findings.map((found) =>
      el('li', {}, `${found.rule} (${found.level}) in ${found.place}: ${found.detail}`))),
    it.description && el('p', { class: 'quiet' }, it.description),
    pairs(['call with', el('code', {}, it.call_with)], ['side effect', able.side_effect], ['approval', able.approval === 'auto' ? undefined : able.approval],
      ['server says', hints.join(', ')],
      ['records', el('a', { href: link('activity', { server: it.name.slice(0, at), tool: it.name.slice(at + 1) }) }, 'calls of it')]),
    it.inputSchema && el('details', { 'data-part': 'parameters' }, el('summary', {}, 'Parameters'), code(laidOut(it.inputSchema), 'parameters')),
    answers(it), definition(it), trial(it, operation));
}

/** What asks when it is opened, and shows what it was told. */
function opened(part, words, look) {
  const made = el('details', { 'data-part': part, toggle: () => made.open && act(async () => {
    const told = await look();
    if (made.open) made.replaceChildren(made.firstElementChild, ...told);
  }) }, el('summary', {}, words));
  return made;
}

function answers(it) {
  return opened('answers', 'Answers', async () => {
    const { data } = await ask(`tools/${segment(it.name)}`);
    const schema = data.tool.outputSchema;
    return [schema ? code(laidOut(schema), 'output schema') : el('p', { class: 'quiet' }, 'It declares no output schema: its answers are not validated.')];
  });
}

/** How a tool is defined now and how that was accepted. */
function definition(it) {
  return opened('definition', it.quarantined ? 'What waits for approval' : 'Definition', async () => {
    const { data } = await ask(`tools/${segment(it.name)}/diff`);
    return differs(data);
  });
}

/** What is another about a definition, part by part, and the button that accepts exactly that. */
function differs({ name, digest, tools: [now] }) {
  const since = performance.now();
  const approve = ({ currentTarget }) => {
    // It may have come under the pointer just now, in the place of another.
    if (performance.now() - since < SETTLE_MS || !confirm(visible(`Approve ${name} as it is defined now?`))) return;
    const card = currentTarget.closest('li');
    act(async () => {
      try {
        await send(`tools/${segment(name)}/approve`, { digest });
      } finally {
        card.said = undefined; // whatever came of it, its definition is looked at anew
        await load(true);
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
  args.value = editable(example(it.inputSchema));
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
  return el('details', { 'data-part': 'trial' }, el('summary', {}, 'Try a call'),
    el('form', { class: 'trial', submit: run },
      labelled('Arguments', args), labelled('As', how), labelled('Reason', reason),
      el('div', { class: 'answer' }, el('button', { type: 'submit', class: 'primary' }, 'Call'))), came);
}

const typed = () => change({ q: search.value.trim(), server: server.value, held: held.checked ? 'yes' : '' }, true);
form.addEventListener('submit', (event) => event.preventDefault());
search.addEventListener('input', settled(typed));
server.addEventListener('change', typed);
held.addEventListener('change', typed);
