// The tools view: one line each, and a panel with the details of the one that is open, its definition compared with the accepted one,
// approval and trial calls.

import { SETTLE_MS, anchor, block, button, chip, code, confirmed, copy, editable, el, empty, fill, identifier, keyHelp, labelled, laidOut, markChips, number, option, pairs, panel, panelButtons, para, quiet, redraw, rowsOpen, searchField, settled, sortColumn, sortHead, stepRows, tag, trouble, visible, zero } from './dom.js';
import { csvButton } from './csv.js';
import { listen } from './live.js';
import { act, ask, attempt, notice, segment, send } from './rest.js';
import { change, here, link, named } from './route.js';

const PAGE = 50; // page size
const MOST = 100; // maximum page size
const SOON_MS = 500; // after a server has changed something, in which it changes more
const WAIT_MS = 1000; // between two looks whether a call waits for a person
const OPERATIONS = ['read', 'write', 'destructive'];
/** The columns, with what the API calls their order; numbers begin with the largest. */
const COLUMNS = [
  { words: 'Tool', by: 'name', isText: true }, { words: 'Operation', by: 'operation', isText: true },
  { words: 'Calls', kind: 'num', by: '-calls', title: 'since the start of the proxy' },
  { words: 'Errors', kind: 'num', by: '-errors', title: 'calls that ended with an error' }, { words: 'Description', kind: 'wide' }];
const STANDS = {
  never: 'no definition was accepted yet', another: 'differs from the accepted definition', same: 'the accepted definition',
  forgotten: 'differs from the accepted definition, whose text is no longer stored',
};

const search = searchField('Search by purpose', { maxlength: 1024 });
const server = el('select', { name: 'server' }, option('', 'all'));
const held = el('input', { name: 'held', type: 'checkbox', value: 'yes' });
const bare = el('input', { name: 'bare', type: 'checkbox', value: 'yes' });
const form = el('form.chips', { id: 'tool-form', role: 'search' }, search, chip('Server', server), chip('In quarantine', held), chip('Not marked', bare));
const download = csvButton('tools', async () => {
  const rows = [['tool', 'operation', 'in quarantine', 'marked', 'calls', 'errors', 'description']];
  let data;
  do {
    ({ data } = await page({ limit: MOST, cursor: data?.next_cursor }));
    rows.push(...data.tools.map((it) => [it.name, operationOf(it), it.quarantined ? 'yes' : 'no', it.unannotated ? 'no' : 'yes', it.calls.total, it.calls.error, it.description]));
  } while (data.next_cursor);
  return rows;
});
const count = el('p.quiet', { id: 'tool-count', role: 'status' });
const list = el('tbody', {});
const head = el('thead', {});
const table = el('table.rows', { id: 'tools', hidden: true }, head, list);
const none = el('div', {});
const more = button('Show more', () => act(further), { id: 'more-tools', hidden: true });
const details = panel('tool', 'Tool');
const known = new Map(); // by name: the tools in the list
// `panels`: how often one was opened or closed; `total`: number of tools that match, of `catalog`
let [cursor, asked, shown, servers, panels, total, catalog] = [undefined, 0, {}, [], 0];

export const tools = {
  name: 'tools',
  label: 'Tools',
  takes: ['tool', 'q', 'server', 'held', 'bare', 'sort'],
  root: el('div', {}, el('div.side', {}, download), form, count, none, el('div.split', {}, el('div.list', {}, table, more, keyHelp()), details)),

  show({ tool: wanted, ...filter }) {
    const same = JSON.stringify(filter) === JSON.stringify(shown);
    const there = known.size > 0;
    shown = filter;
    if (document.activeElement !== search) search.value = filter.q ?? '';
    for (const box of [held, bare]) box.checked = filter[box.name] === 'yes';
    choose();
    if (!same || !there || !wanted) attempt(() => load(same), 'tools');
    if (wanted) openTool(wanted);
    else closeTool();
    mark();
    attempt(loadServers);
  },

  forget() {
    asked += 1;
    [shown, servers, total] = [{}, []];
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

async function loadServers() {
  servers = (await ask('servers')).data.servers;
  choose();
  tell();
}

/** The form shows the address's server at once: what is typed next must not bring back another. */
function choose() {
  const wanted = shown.server ?? '';
  const names = new Set([...servers.map((it) => it.name), wanted].filter(Boolean));
  redraw(server, option('', 'all'), [...names].map((name) => option(name)));
  server.value = wanted;
  markChips(form);
}

/** The order in the words of the API. */
function order(sort = '') {
  const by = sortColumn(COLUMNS, sort)?.by;
  const turned = by?.[0] === '-' ? by.slice(1) : `-${by}`;
  return by && (sort[0] === '-' ? turned : by);
}

const page = (parameters) => ask('tools', { q: shown.q, sort: order(shown.sort), server: shown.server, quarantined: shown.held && true, unannotated: shown.bare && true, ...parameters });

/** Lists the tools; `again`: as many as there were. */
async function load(again) {
  const mine = ++asked;
  const wanted = again ? Math.max(known.size, PAGE) : PAGE;
  if (!again) total = undefined;
  const found = new Map(); // a list that changes meanwhile may name a tool on two pages
  let data;
  do {
    ({ data } = await page({ limit: Math.min(wanted - found.size, MOST), cursor: data?.next_cursor }));
    if (mine !== asked) return;
    for (const it of data.tools) found.set(it.name, it);
  } while (data.next_cursor && found.size < wanted);
  const all = isFiltered() ? undefined : (await ask('status')).data.tools;
  if (mine !== asked) return;
  catalog = all;
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

function end(data) {
  ({ total, next_cursor: cursor } = data);
  more.hidden = !cursor;
  more.textContent = `Show more of ${number(total)}`;
  redraw(head, ...sortHead(COLUMNS, shown.sort, (sort) => change({ sort }, true)).children);
  const focused = list.contains(document.activeElement);
  redraw(list, [...known.values()].map(row));
  if (focused && !list.contains(document.activeElement)) list.querySelector('a')?.focus();
  table.hidden = download.hidden = known.size === 0;
  mark();
  tell();
}

/** Says how many tools match, and how many more rules hide where only the server limits the list. */
function tell() {
  if (total === undefined) return;
  const one = servers.find((it) => it.name === shown.server);
  const hidden = (isFiltered({ server: '' }) ? undefined : shown.server ? one?.tools : catalog) - total;
  const of = known.size < total ? `${number(known.size)} of ` : '';
  redraw(count, `${of}${number(total)} ${total === 1 ? 'tool' : 'tools'}${shown.held ? ' in quarantine' : ''}`, hidden > 0 && ['; ',
    anchor(link('policy', { principal: 'admin', part: 'explain' }), `${number(hidden)} ${hidden === 1 ? 'tool is' : 'tools are'} hidden by rules`)]);
  redraw(none, total === 0 && (shown.held && !shown.q && !shown.server && !shown.bare ? empty('No tool is in quarantine.', showAll())
    : isFiltered() ? empty(shown.server && servers.length && !one ? `There is no server '${shown.server}'.` : 'No tool matches.', showAll())
      : empty('No server offers a tool.', para('See the state of the ', anchor(link('servers'), 'servers'), '.'))));
}

const isFiltered = (less) => Object.values({ ...shown, sort: '', ...less }).some(Boolean);
const showAll = () => para(anchor(link('tools'), 'Show all tools'));
const operationOf = (it) => it.call_with.replace('call_tool_', '');

function row(it) {
  const notes = [it.findings?.length > 0 && 'suspicious text', it.unannotated && 'not marked', it.capability?.approval === 'required' && 'asks a person'].filter(Boolean);
  return el('tr', { 'data-key': it.name, 'data-name': it.name },
    el('th', { scope: 'row' }, anchor(link('tools', { ...shown, tool: it.name }), identifier(it.name)), it.quarantined && [' ', el('span.wrong', {}, 'in quarantine')]),
    el('td', {}, !it.quarantined && tag(operationOf(it))), counted(it, it.calls.total), counted(it, it.calls.error, { status: 'error' }, 'num error-count'), el('td.wide', {}, el('span.cut quiet', { title: visible(it.description ?? '') }, notes.map((words) => [el('span.note', {}, words), ' ']), it.description ?? '')));
}

/** A number of calls, which leads to their records. */
function counted({ name }, count, more = {}, kind = 'num') {
  const { server: of, tool } = named(name);
  return el(`td.${kind}`, {}, count ? anchor(link('activity', { server: of, tool, ...more }), number(count)) : zero());
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

/** Whether the proxy has a tool that it does not show. */
const isHidden = (name) => send('policy/explain', { principal: 'admin', tool: name }).then(() => true, () => false);

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
      const hides = await isHidden(name);
      if (mine !== panels) return;
      if (!hides) {
        change({ tool: '' }, true);
        notice(`No server offers a tool named '${name}' now.`);
        return;
      }
      made = el('div.tool', {}, para('Rules hide this tool: ', anchor(link('policy', { principal: 'admin', tool: name, part: 'explain' }), 'see which'), '.'));
      made.head = el('div', {}, el('h2', {}, identifier(name)));
    }
    if (made === before) return;
    if (isNew) {
      details.dataset.name = name;
      fill(details, el('div.top', {}, made.head, panelButtons(table, 'tool', () => change({ tool: '' }))), made);
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

/** The details of a tool, reused if only its calls have changed. Open sections stay open. */
function drawn(it, before) {
  const said = JSON.stringify({ ...it, calls: undefined });
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
  await Promise.all([load(true), loadServers()]);
  if (details.dataset.name) await openTool(details.dataset.name);
}

// A server that lists its tools again says so in one record and in those of its tools.
let soon;
listen((record) => {
  if (record.type !== 'catalog_change' && !(record.type === 'approval' && record.metadata?.approval === 'definition')) return;
  clearTimeout(soon);
  soon = setTimeout(() => attempt(again, 'tools'), SOON_MS);
}, again);

function content(it) {
  const operation = operationOf(it);
  const hints = Object.entries(it.annotations ?? {}).filter(([, value]) => typeof value === 'boolean').map(([name, value]) => `${name}: ${value}`);
  const able = it.capability ?? {};
  const refused = it.calls.blocked + it.calls.rejected;
  const { server: of, tool: name } = named(it.name);
  const defined = definition(it);
  const made = el('div.tool', {},
    it.quarantined && trouble('Until somebody approves its definition, no agent sees it.'),
    it.findings?.length > 0 && el('ul', {}, it.findings.map(finding)),
    it.description && para(it.description),
    it.quarantined && defined,
    pairs(['server', anchor(link('servers', { name: of }), identifier(of))], ['called with', el('code', {}, it.call_with)],
      ['side effect', able.side_effect], ['approval', able.approval === 'auto' ? undefined : able.approval],
      ['annotations', hints.join(', ') || (it.unannotated && 'none')],
      ['calls', anchor(link('activity', { server: of, tool: name }), it.calls.total ? `${number(it.calls.total)} since the start` : 'its earlier calls')],
      ['errors', it.calls.error > 0 && anchor(link('activity', { server: of, tool: name, status: 'error' }), number(it.calls.error))],
      ['refused', refused > 0 && anchor(link('activity', { server: of, tool: name, status: 'blocked,rejected' }), number(refused))],
      ['policy', anchor(link('policy', { tool: it.name, part: 'explain' }), 'what the rules say')]),
    it.inputSchema && el('details', { 'data-part': 'parameters' }, el('summary', {}, 'Parameters'), parameters(it.inputSchema), code(laidOut(it.inputSchema), 'parameters')),
    el('details', { 'data-part': 'answers' }, el('summary', {}, 'Output schema'), it.outputSchema ? code(laidOut(it.outputSchema), 'output schema')
      : quiet('It declares no output schema: its results are not validated.')),
    !it.quarantined && defined, trial(it, operation));
  made.head = el('div', {}, el('h2', {}, identifier(it.name)), el('div.tags', {}, it.quarantined ? el('span.wrong', {}, 'in quarantine') : tag(operation), copy(it.name, 'name')));
  return made;
}

/** The parameters of a schema by name: type, whether required, default, and description. */
function parameters({ properties, required }) {
  const kind = (it) => (it?.enum ? it.enum.map((value) => JSON.stringify(value)).join(', ') : [it?.type ?? 'any'].flat().join(' or '));
  const about = (name, it) => [kind(it), Array.isArray(required) && required.includes(name) && 'required', it?.default !== undefined && `default ${JSON.stringify(it.default)}`];
  return pairs(...Object.entries(properties ?? {}).slice(0, MOST).map(([name, it]) => [visible(name), [
    el('span.quiet', {}, about(name, it).filter(Boolean).join('; ')), it?.description && el('div', {}, String(it.description))]]));
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
    return differs(data, it.findings);
  }, it.quarantined);
}

/** A finding of the scan in a definition. */
const finding = ({ rule, level, place, detail }) => el('li', { class: level === 'high' ? 'wrong' : 'quiet' }, `${rule} (${level}) in ${place}: ${detail}`);

/** The differences of a definition by part, and the button that approves exactly this definition. */
function differs({ name, digest, tools: [now] }, findings = []) {
  const since = performance.now();
  const grave = findings.some((found) => found.level === 'high');
  const approve = async ({ currentTarget }) => {
    const card = currentTarget.closest('.tool');
    // It may have come under the pointer just now, in the place of another.
    if (performance.now() - since < SETTLE_MS || !await confirmed(`Approve ${name} as it is defined now?`, 'Approve', grave ? 'danger' : '',
      findings.length > 0 && el('ul', {}, findings.map(finding)))) return;
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
    && el('div', {}, quiet(label), block(label, text, { class: label === 'now' ? 'new' : 'old' }));
  const place = (it) => [it.place && el('p.mono', {}, it.place), el('div.sides', {}, value('accepted', it.old), value('now', it.new))];
  const part = (it) => [
    el('div.line', {}, el('strong', {}, it.part), tag(it.grade)),
    it.why.length > 0 && quiet(it.why.join(', ')), it.places.map(place),
    it.left_out > 0 && quiet(`and ${number(it.left_out)} more: mcpproxy tools diff`)];
  return [pairs(['compared', STANDS[now.accepted] ?? now.accepted], ['change', now.grade], ['digest', el('span.mono', {}, digest)]),
    ...now.parts.flatMap(part).flat(Infinity).filter((child) => child instanceof Node),
    ...(now.quarantined ? [el('div.answer', {}, button('Approve', approve, { class: 'primary' }))] : []),
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
  const came = el('div.came', { 'aria-live': 'polite' });
  const run = async (event) => {
    event.preventDefault();
    let given;
    try {
      given = JSON.parse(args.value || '{}');
    } catch (error) {
      fill(came, trouble(`The arguments are not JSON: ${error.message}`));
      return;
    }
    if (how.value === 'destructive' && !await confirmed(`Call ${it.name}? It may delete or change something for good.`, 'Call')) return;
    const id = crypto.randomUUID?.() ?? `page-${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
    const record = para(anchor(link('activity', { request_id: id }), 'Show its record'));
    fill(came, quiet('In progress.'));
    let waiting = setInterval(() => attempt(async () => {
      const [waits] = (await ask('approvals')).data.approvals.filter((one) => one.call.request_id === id);
      if (waits && waiting) redraw(came, para('The call waits for a person: ', anchor(link('approvals'), 'approve or deny it'), '.'));
    }), WAIT_MS);
    const intent = { operation_type: how.value, data_sensitivity: 'unknown', reason: reason.value };
    const body = { tool_name: `call_tool_${how.value}`, arguments: { name: it.name, args: given, intent } };
    try {
      const { data } = await send('tools/call', body, { headers: { 'X-Request-Id': id } });
      fill(came, tag(data.isError ? 'error' : 'success'), code(laidOut(data), 'result'), record);
    } catch (error) {
      fill(came, trouble(error.message), record);
      if (error.status === 401) attempt(() => { throw error; });
    } finally {
      clearInterval(waiting);
      waiting = undefined;
    }
  };
  return el('details', { 'data-part': 'trial' }, el('summary', {}, 'Try a call'),
    el('form.trial', { submit: run },
      labelled('Arguments', args), labelled('Operation', how), labelled('Reason', reason),
      el('div.answer', {}, el('button', { type: 'submit', class: 'primary' }, 'Call'))), came);
}

const typed = () => change({ q: search.value.trim(), server: server.value, held: held.checked ? 'yes' : '', bare: bare.checked ? 'yes' : '' }, true);
form.addEventListener('submit', (event) => event.preventDefault());
search.addEventListener('input', settled(typed));
server.addEventListener('change', typed);
for (const box of [held, bare]) box.addEventListener('change', typed);
rowsOpen(list);
