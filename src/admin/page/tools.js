// The tools view: one line each, and a panel with the details of the one that is open, its definition compared with the accepted one,
// approval and trial calls.

import { SETTLE_MS, button, chip, code, copy, editable, el, empty, fill, keyHelp, labelled, laidOut, markChips, number, option, pairs, panel, redraw, rowsOpen, settled, stepRows, tag, visible } from './dom.js';
import { listen } from './live.js';
import { act, ask, attempt, segment, send } from './rest.js';
import { change, here, link } from './route.js';

const PAGE = 50; // page size
const MOST = 100; // maximum page size
const SOON_MS = 500; // after a server has changed something, in which it changes more
const OPERATIONS = ['read', 'write', 'destructive'];
const STANDS = {
  never: 'no definition was accepted yet', another: 'differs from the accepted definition', same: 'the accepted definition',
  forgotten: 'differs from the accepted definition, whose text is no longer stored',
};

const search = el('input', { name: 'q', type: 'search', autocomplete: 'off', placeholder: 'Search by purpose', 'aria-label': 'Search', maxlength: 1024 });
const server = el('select', { name: 'server' }, option('', 'all'));
const held = el('input', { name: 'held', type: 'checkbox', value: 'yes' });
const bare = el('input', { name: 'bare', type: 'checkbox', value: 'yes' });
const form = el('form', { id: 'tool-form', class: 'chips', role: 'search' }, search, chip('Server', server), chip('In quarantine', held), chip('Not marked', bare));
const count = el('p', { id: 'tool-count', class: 'quiet', role: 'status' });
const list = el('tbody', {});
const table = el('table', { id: 'tools', class: 'rows', hidden: true },
  el('thead', {}, el('tr', {}, [['Tool'], ['Operation'], ['Description', 'wide']].map(([words, kind]) => el('th', { scope: 'col', class: kind }, words)))), list);
const none = el('div', {});
const more = button('Show more', () => act(further), { id: 'more-tools', hidden: true });
const details = panel('tool', 'Tool');
const known = new Map(); // by name: the tools in the list
let [cursor, asked, shown, servers, panels] = [undefined, 0, {}, [], 0]; // `panels`: how often one was opened or closed

export const tools = {
  name: 'tools',
  label: 'Tools',
  root: el('div', {}, form, count, none, el('div', { class: 'split' }, el('div', { class: 'list' }, table, more, keyHelp()), details)),

  show({ tool: wanted, ...filter }) {
    const same = JSON.stringify(filter) === JSON.stringify(shown);
    const there = known.size > 0;
    shown = filter;
    if (document.activeElement !== search) search.value = filter.q ?? '';
    for (const box of [held, bare]) box.checked = filter[box.name] === 'yes';
    choose();
    if (!same || !there || !wanted) attempt(() => load(same));
    if (wanted) openTool(wanted);
    else closeTool();
    mark();
    attempt(async () => {
      const { data } = await ask('servers');
      servers = data.servers.map((it) => it.name);
      choose();
    });
  },

  forget() {
    asked += 1;
    [shown, servers] = [{}, []];
    known.clear();
    form.reset();
    choose();
    closeTool();
    for (const place of [list, count, none]) fill(place);
  },

  keys(event) {
    if (event.key === 'Escape' && !details.hidden) change({ tool: '' });
    else stepRows(event, table, !details.hidden);
  },
};

/** The form shows the address's server at once: what is typed next must not bring back another. */
function choose() {
  const wanted = shown.server ?? '';
  const unknown = wanted && !servers.includes(wanted) ? [wanted] : [];
  redraw(server, option('', 'all'), [...servers, ...unknown].map((name) => option(name)));
  server.value = wanted;
  markChips(form);
}

const page = (parameters) => ask('tools', { q: shown.q, server: shown.server, quarantined: shown.held && true, unannotated: shown.bare && true, ...parameters });

/** Lists the tools; `again`: as many as there were. */
async function load(again) {
  const mine = ++asked;
  const wanted = again ? Math.max(known.size, PAGE) : PAGE;
  const found = new Map(); // a list that changes meanwhile may name a tool on two pages
  let data;
  do {
    ({ data } = await page({ limit: Math.min(wanted - found.size, MOST), cursor: data?.next_cursor }));
    if (mine !== asked) return;
    for (const it of data.tools) found.set(it.name, it);
  } while (data.next_cursor && found.size < wanted);
  known.clear();
  for (const [name, it] of found) known.set(name, it);
  end(data);
}

async function further() {
  const mine = ++asked;
  const before = list.lastElementChild;
  const { data } = await page({ limit: PAGE, cursor });
  if (mine !== asked) return;
  for (const it of data.tools) if (!known.has(it.name)) known.set(it.name, it);
  end(data);
  before?.nextElementSibling?.querySelector('a').focus();
}

function end({ total, next_cursor: next }) {
  cursor = next;
  more.hidden = !cursor;
  more.textContent = `Show more of ${number(total)}`;
  redraw(list, [...known.values()].map(row));
  table.hidden = known.size === 0;
  mark();
  const of = known.size < total ? `${number(known.size)} of ` : '';
  count.textContent = `${of}${number(total)} ${total === 1 ? 'tool' : 'tools'}${shown.held ? ' in quarantine' : ''}`;
  redraw(none, total === 0 && (shown.held && !shown.q && !shown.server && !shown.bare ? empty('No tool is in quarantine.', showAll())
    : Object.values(shown).some(Boolean) ? empty('No tool matches.', showAll())
      : empty('No server offers a tool.', el('p', {}, 'See the state of the ', el('a', { href: link('servers') }, 'servers'), '.'))));
}

const showAll = () => el('p', {}, el('a', { href: link('tools') }, 'Show all tools'));
const operationOf = (it) => it.call_with.replace('call_tool_', '');

function row(it) {
  const notes = [it.unannotated && 'not marked', it.capability?.approval === 'required' && 'asks a person'].filter(Boolean);
  return el('tr', { 'data-key': it.name, 'data-name': it.name },
    el('th', { scope: 'row' }, el('a', { href: link('tools', { ...shown, tool: it.name }) }, el('bdi', {}, it.name)), it.quarantined && [' ', el('span', { class: 'wrong' }, 'in quarantine')]),
    el('td', {}, tag(operationOf(it))), el('td', { class: 'wide' }, el('span', { class: 'cut quiet', title: visible(it.description ?? '') }, notes.map((words) => [el('span', { class: 'note' }, words), ' ']), it.description ?? '')));
}

// ---- The panel

function mark() {
  const name = details.dataset.name;
  for (const line of list.children) {
    const isOpen = line.dataset.name === name;
    line.classList.toggle('open', isOpen);
    if (isOpen) line.querySelector('a').setAttribute('aria-current', 'true');
    else line.querySelector('a').removeAttribute('aria-current');
  }
}

async function openTool(name) {
  const isNew = details.dataset.name !== name;
  const mine = ++panels;
  const well = await (isNew ? act : attempt)(async () => {
    const [before] = isNew ? [] : details.querySelectorAll('.tool');
    let made;
    try {
      const it = (await ask(`tools/${segment(name)}`)).data.tool;
      if (mine !== panels) return;
      made = drawn(it, before);
    } catch (error) {
      if (error.status !== 404) throw error;
      if (mine !== panels) return;
      made = el('div', { class: 'tool' }, el('p', {}, 'No server offers this tool now.'));
      made.head = el('div', {}, el('h2', {}, el('bdi', {}, name)));
    }
    if (made === before) return;
    if (isNew) {
      details.dataset.name = name;
      fill(details, el('div', { class: 'top' }, made.head, button('✕', () => change({ tool: '' }), { 'aria-label': 'Close' })), made);
      details.hidden = false;
      details.scrollTop = 0;
      details.focus({ preventScroll: true });
    } else {
      before.head.replaceWith(made.head);
      before.replaceWith(made);
    }
  });
  if (well) mark();
}

function closeTool() {
  panels += 1;
  const { name } = details.dataset;
  if (!name) return;
  const focused = details.contains(document.activeElement) || document.activeElement === document.body;
  delete details.dataset.name;
  details.hidden = true;
  fill(details);
  mark();
  if (focused) list.querySelector(`tr[data-name="${CSS.escape(name)}"] a`)?.focus();
}

/** The details of a tool, reused if unchanged. Open sections stay open. */
function drawn(it, before) {
  const said = JSON.stringify(it);
  if (before?.said === said) return before;
  const made = content(it);
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
  if (here().view !== 'tools' || document.hidden) return;
  await load(true);
  if (details.dataset.name) await openTool(details.dataset.name);
}

// A server that lists its tools again says so in one record and in those of its tools.
let soon;
listen((record) => {
  if (record.type !== 'catalog_change' && !(record.type === 'approval' && record.metadata?.approval === 'definition')) return;
  clearTimeout(soon);
  soon = setTimeout(() => attempt(again), SOON_MS);
}, again);

function content(it) {
  const operation = operationOf(it);
  const hints = Object.entries(it.annotations ?? {}).filter(([, value]) => typeof value === 'boolean').map(([name, value]) => `${name}: ${value}`);
  const able = it.capability ?? {};
  const at = it.name.indexOf(':');
  const [of, name] = [it.name.slice(0, at), it.name.slice(at + 1)];
  const defined = definition(it);
  const made = el('div', { class: 'tool' },
    it.quarantined && el('p', { class: 'wrong' }, 'Until somebody approves its definition, no agent sees it.'),
    it.findings?.length > 0 && el('ul', {}, it.findings.map((found) =>
      el('li', { class: found.level === 'high' ? 'wrong' : 'quiet' }, `${found.rule} (${found.level}) in ${found.place}: ${found.detail}`))),
    it.description && el('p', {}, it.description),
    it.quarantined && defined,
    pairs(['server', el('a', { href: link('servers', { name: of }) }, el('bdi', {}, of))], ['called with', el('code', {}, it.call_with)],
      ['side effect', able.side_effect], ['approval', able.approval === 'auto' ? undefined : able.approval],
      ['annotations', hints.join(', ') || (it.unannotated && 'none')],
      ['records', el('a', { href: link('activity', { server: of, tool: name }) }, 'its calls')],
      ['policy', el('a', { href: link('policy', { tool: it.name, part: 'explain' }) }, 'what the rules say')]),
    it.inputSchema && el('details', { 'data-part': 'parameters' }, el('summary', {}, 'Parameters'), parameters(it.inputSchema), code(laidOut(it.inputSchema), 'parameters')),
    el('details', { 'data-part': 'answers' }, el('summary', {}, 'Output schema'), it.outputSchema ? code(laidOut(it.outputSchema), 'output schema')
      : el('p', { class: 'quiet' }, 'It declares no output schema: its results are not validated.')),
    !it.quarantined && defined, trial(it, operation));
  made.head = el('div', {}, el('h2', {}, el('bdi', {}, it.name)), el('div', { class: 'tags' }, tag(operation), it.quarantined && el('span', { class: 'wrong' }, 'in quarantine'), copy(it.name, 'name')));
  return made;
}

/** The parameters of a schema by name: type, whether required, default, and description. */
function parameters({ properties, required }) {
  const kind = (it) => (it?.enum ? it.enum.map((value) => JSON.stringify(value)).join(', ') : [it?.type ?? 'any'].flat().join(' or '));
  const about = (name, it) => [kind(it), Array.isArray(required) && required.includes(name) && 'required', it?.default !== undefined && `default ${JSON.stringify(it.default)}`];
  return pairs(...Object.entries(properties ?? {}).slice(0, MOST).map(([name, it]) => [visible(name), [
    el('span', { class: 'quiet' }, about(name, it).filter(Boolean).join('; ')), it?.description && el('div', {}, String(it.description))]]));
}

/** A section that loads its contents when opened. */
function opened(part, words, look, open = false) {
  const made = el('details', { open, 'data-part': part, toggle: () => made.open && act(async () => {
    const told = await look();
    if (made.open) made.replaceChildren(made.firstElementChild, ...told);
  }) }, el('summary', {}, words));
  return made;
}

/** The current definition of a tool compared with the accepted one. */
function definition(it) {
  return opened('definition', it.quarantined ? 'Pending definition' : 'Definition', async () => {
    const { data } = await ask(`tools/${segment(it.name)}/diff`);
    return differs(data);
  }, it.quarantined);
}

/** The differences of a definition by part, and the button that approves exactly this definition. */
function differs({ name, digest, tools: [now] }) {
  const since = performance.now();
  const approve = ({ currentTarget }) => {
    // It may have come under the pointer just now, in the place of another.
    if (performance.now() - since < SETTLE_MS || !confirm(visible(`Approve ${name} as it is defined now?`))) return;
    const card = currentTarget.closest('.tool');
    act(async () => {
      try {
        await send(`tools/${segment(name)}/approve`, { digest });
      } finally {
        card.said = undefined; // whatever came of it, its definition is looked at again
        await again();
      }
    });
  };
  const value = (label, text) => text !== undefined && text !== null
    && el('div', {}, el('p', { class: 'quiet' }, label), el('pre', { class: label === 'now' ? 'new' : 'old', tabindex: 0, role: 'group', 'aria-label': label }, text));
  const place = (it) => [it.place && el('p', { class: 'mono' }, it.place), el('div', { class: 'sides' }, value('accepted', it.old), value('now', it.new))];
  const part = (it) => [
    el('div', { class: 'line' }, el('strong', {}, it.part), tag(it.grade)),
    it.why.length > 0 && el('p', { class: 'quiet' }, it.why.join(', ')), it.places.map(place),
    it.left_out > 0 && el('p', { class: 'quiet' }, `and ${number(it.left_out)} more: mcpproxy tools diff`)];
  return [pairs(['compared', STANDS[now.accepted] ?? now.accepted], ['change', now.grade], ['digest', el('span', { class: 'mono' }, digest)]),
    ...now.parts.flatMap(part).flat(Infinity).filter((child) => child instanceof Node),
    ...(now.quarantined ? [el('div', { class: 'answer' }, button('Approve', approve, { class: 'primary' }))] : []),
  ].filter(Boolean);
}

/** Initial arguments: the required properties with empty values. */
function example(schema) {
  const blank = { string: '', number: 0, integer: 0, boolean: false, array: [], object: {} };
  const of = (it) => it?.default ?? it?.enum?.[0] ?? blank[Array.isArray(it?.type) ? it.type[0] : it?.type] ?? null;
  const required = Array.isArray(schema?.required) ? schema.required : [];
  return Object.fromEntries(required.map((name) => [name, of(schema.properties?.[name])]));
}

/** A manual call, which is checked, validated and recorded like an agent's. */
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
    const record = el('p', {}, el('a', { href: link('activity', { request_id: id }) }, 'Show its record'));
    fill(came, el('p', { class: 'quiet' }, 'In progress.'));
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
      labelled('Arguments', args), labelled('Operation', how), labelled('Reason', reason),
      el('div', { class: 'answer' }, el('button', { type: 'submit', class: 'primary' }, 'Call'))), came);
}

const typed = () => change({ q: search.value.trim(), server: server.value, held: held.checked ? 'yes' : '', bare: bare.checked ? 'yes' : '' }, true);
form.addEventListener('submit', (event) => event.preventDefault());
search.addEventListener('input', settled(typed));
server.addEventListener('change', typed);
for (const box of [held, bare]) box.addEventListener('change', typed);
rowsOpen(list);
