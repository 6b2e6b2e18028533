// The operator's rules: what is in force, and what they say of a call that nobody makes.

import { anchor, button, code, command, editable, el, empty, exactly, fill, identifier, json, labelled, number, option, pairs, para, quiet, redraw, searchField, sortHead, tag, trouble, visible } from './dom.js';
import { MISSING, decisions, explainable, subject } from './record.js';
import { Refused, act, ask, attempt, segment, send } from './rest.js';
import { link, named } from './route.js';

const faults = el('div', { id: 'rule-faults', 'aria-live': 'polite' });
const about = el('div', {});
const search = searchField('Search rules', { input: () => drawRules() });
const found = el('p.quiet', { id: 'rule-count', role: 'status' });
const rules = el('ul.cards', { id: 'rules' });
const searching = el('div', { hidden: true }, el('div.chips', {}, search), found);
const text = (name, more = {}) => el('input', { name, autocomplete: 'off', spellcheck: 'false', ...more });
const form = el('form.trial card', { id: 'explain-form', 'aria-label': 'Explain' },
  labelled('Principal', text('principal', { value: 'anonymous', required: true, placeholder: 'admin, token:NAME, jwt:SUBJECT', list: 'principal-names' })),
  labelled('Groups', text('groups', { placeholder: 'separated by commas' })),
  labelled('Tool', text('tool', { required: true, placeholder: 'server:tool', list: 'tool-names' })),
  labelled('Operation', el('select', { name: 'action' }, option('', 'what the tool is marked for'), ['read', 'write', 'destructive'].map((name) => option(name)))),
  labelled('Sensitivity', el('select', { name: 'sensitivity' }, option('', 'not stated'), ['public', 'internal', 'private', 'unknown'].map((name) => option(name)))),
  labelled('Reason', text('reason', { maxlength: 1000 })),
  labelled('Client', text('client', { maxlength: 1024, placeholder: 'name that it reports' })),
  labelled('Arguments', el('textarea', { name: 'args', rows: 3, spellcheck: 'false' }, '{}')),
  el('div.answer', {}, el('button', { type: 'submit', class: 'primary' }, 'Explain')));
const names = el('datalist', { id: 'tool-names' });
const principals = el('datalist', { id: 'principal-names' });
const source = el('div', { id: 'explain-source', role: 'status' });
const said = el('div', { id: 'explained', 'aria-live': 'polite' });
const stop = button('Stop', () => {
  replay += 1;
  stop.hidden = true;
}, { hidden: true });
const replayForm = el('form.trial card', { id: 'replay-form', 'aria-label': 'Replay' },
  labelled('Rules', el('textarea', { name: 'rules', rows: 5, spellcheck: 'false', placeholder: 'In Cedar. They replace the rules in force. Empty: the rules in force, compared with none.' })),
  el('div.answer', {}, labelled('Period', el('select', { name: 'days' }, option('1', 'the last day'), option('7', 'the last 7 days'), option('30', 'the last 30 days'), option('', 'the whole log'))),
    el('button', { type: 'submit', class: 'primary' }, 'Replay'), stop,
    button('Insert the rules in force', () => {
      replayForm.elements.rules.value = inForce.rules.map((rule) => rule.text).join('\n\n');
      replayForm.elements.rules.focus();
    }, { id: 'insert', hidden: true })));
const insert = replayForm.querySelector('#insert');
const [explaining, replaying] = [['explain', 'Explain'], ['replay', 'Replay']].map(([part, words]) => el('h2', { id: `policy-${part}`, tabindex: -1 }, words));
const replayed = el('div', { id: 'replayed', 'aria-live': 'polite', tabindex: -1 });
const MAX_OPEN_RULES = 6; // more rules are shown without their text, and searched
const MAX_TEXT = 4096; // bytes of a rule's text that are listed: a longer one may be cut
const MAX_NEAREST = 3; // tools named instead of an unknown one
const REDACTED = '[redacted]'; // replacement of secrets in the log
let asked = 0;
let filled = 0; // number of times that the form was filled from the address; answers to earlier ones are dropped
let replay = 0; // the number of the last one: another one, or a stop, ends it

export const policy = {
  name: 'policy',
  label: 'Policy',
  takes: ['principal', 'tool', 'part', 'record', 'approval'],
  root: el('div', {}, el('div.side', {}, anchor(link('policy', { part: 'explain' }), 'Explain a call'), anchor(link('policy', { part: 'replay' }), 'Replay the log'),
    anchor(link('activity', { type: 'policy_decision' }), 'What was decided')),
  faults, about, searching, rules,
    explaining, quiet('Which rules decide a call, and what each of them sees. Nothing is called.'),
    source, form, names, principals, said,
    replaying, quiet('What other rules would have decided about the calls in the log, instead of the rules in force. Nothing is called, and nothing changed.'),
    replayForm, replayed),

  show(parameters) {
    const mine = ++filled;
    for (const name of ['principal', 'tool']) if (parameters[name]) form.elements[name].value = parameters[name];
    const part = { explain: explaining, replay: replaying }[parameters.part];
    this.refresh().then(() => {
      part?.scrollIntoView();
      part?.focus({ preventScroll: true });
    });
    if (parameters.record) fromRecord(parameters.record, () => mine === filled);
    else if (parameters.approval) fromApproval(parameters.approval, () => mine === filled);
    attempt(async () => {
      const { data } = await ask('tools', { limit: 100 });
      fill(names, data.tools.map((it) => option(it.name)));
      const { data: calls } = await ask('activity', { type: 'tool_call', limit: 100, exclude_payloads: true });
      fill(principals, [...new Set(calls.activities.map((it) => it.principal))].map((it) => option(it)));
    });
  },

  refresh: () => attempt(load, 'policy'),

  forget() {
    asked += 1;
    filled += 1;
    replay += 1;
    stop.hidden = true;
    for (const it of [form, replayForm]) it.reset();
    [search.value, searching.hidden] = ['', true];
    for (const place of [faults, about, rules, names, principals, source, said, replayed]) fill(place);
  },
};

let drawn;
let inForce = { rules: [] };

/** File and line of a rule; pointed at, with its folder. */
const placeOf = ({ file, line }) => el('p.quiet mono', { title: visible(file) }, `${file.split(/[\\/]/).at(-1)}:${line}`);

async function load() {
  const mine = ++asked;
  const [{ data, text: spelled }, { data: status }] = await Promise.all([ask('policy'), ask('status')]);
  if (mine !== asked) return;
  const wrong = status.faults.filter((it) => it.part === 'rules');
  redraw(faults, wrong.length > 0 && el('ul.card fault', {}, wrong.map((it) => el('li', {}, el('bdi', {}, it.cause)))));
  if (spelled === drawn && about.childElementCount) return;
  [drawn, inForce] = [spelled, data];
  insert.hidden = data.rules.length === 0 || data.left_out > 0 || data.rules.some((rule) => new Blob([rule.text]).size >= MAX_TEXT);
  searching.hidden = data.rules.length <= MAX_OPEN_RULES;
  if (data.mode === 'none') {
    fill(about, empty('There are no rules: whoever may speak to the proxy may call what intent and capabilities allow.',
      para('Name a file of Cedar rules under ', el('code', {}, 'policy.files'), ' in the config; it is in force as soon as it is written. Check it first: ',
        command('mcpproxy policy check rules.cedar'))));
    fill(rules);
    return;
  }
  fill(about, el('div.card facts', {}, pairs(['mode', data.mode === 'shadow' ? 'shadow: refusals are only put on record' : 'enforce'],
    ['default', data.default], ['rules', number(data.rules.length + data.left_out)])));
  drawRules();
}

/** Shows the rules that the search finds. */
function drawRules() {
  const word = search.value.trim().toLowerCase();
  const all = inForce.rules;
  const shown = all.filter((rule) => [rule.rule, rule.message, rule.effect, rule.text].some((it) => it.toLowerCase().includes(word)));
  found.textContent = `${number(shown.length)} of ${number(all.length)} rules`;
  fill(rules, shown.map((rule) => el('li.card', {},
    el('div.line', {}, el('h2', {}, identifier(rule.rule)), tag(rule.effect)),
    rule.message && para(el('bdi', {}, rule.message)),
    rule.asks_a_person && quiet('A person can lift it: it asks for an approval.'),
    el('div.line', {}, placeOf(rule), anchor(link('activity', { type: 'policy_decision', q: rule.rule }), 'Its decisions')),
    el('details', { open: all.length <= MAX_OPEN_RULES }, el('summary', {}, 'Rule'), code(rule.text, 'rule')))));
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  explain();
});
form.addEventListener('input', () => fill(source));

function explain(call) {
  const given = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
  return act(async () => {
    try {
      // Numbers keep their spelling, as rules compare them.
      const body = { principal: given.principal, tool: given.tool, args: json(given.args || '{}') };
      if (given.groups) body.groups = given.groups.split(',').map((name) => name.trim()).filter(Boolean);
      for (const name of ['action', 'sensitivity', 'reason', 'client']) if (given[name]) body[name] = given[name];
      explained((await send('policy/explain', body)).data, call && await otherReason(call));
    } catch (error) {
      if (error.status === 401 || !(error instanceof Refused || error instanceof SyntaxError)) throw error;
      fill(said, el('div.card fault', {}, para(error instanceof SyntaxError ? `The arguments are not JSON: ${error.message}` : error.message),
        error.status === 404 && nearest(given.tool)));
    }
  });
}

/** Buttons that explain the tools whose names begin most like `tool`, with or without the server. */
function nearest(tool) {
  const shared = (one, other) => [...one, ''].findIndex((letter, at) => letter !== other[at]);
  const alike = (name) => Math.max(shared(name, tool), shared(named(name).tool, named(tool).tool));
  const near = [...names.options].map((it) => it.value).filter((it) => alike(it) > 1).sort((one, other) => alike(other) - alike(one)).slice(0, MAX_NEAREST);
  return near.length > 0 && el('div.answer', {}, 'Nearest tools:', near.map((name) => button(name, () => {
    form.elements.tool.value = name;
    explain();
  })));
}

/** Fills the form with the call of a record, and explains it. */
function fromRecord(id, wanted) {
  return act(async () => {
    for (const place of [source, said]) fill(place);
    form.reset();
    let call;
    try {
      call = json((await ask(`activity/${segment(id)}`)).text).data.activity;
    } catch (error) {
      if (error.status !== 404) throw error;
      if (wanted()) fill(source, para(MISSING));
      return;
    }
    if (!wanted()) return;
    if (!explainable(call)) {
      fill(source, para('Only calls of tools can be explained.'));
      return;
    }
    const { data_sensitivity: sensitivity, reason } = call.intent ?? {};
    const { tool_variant: variant, groups = [], client_name: client } = call.metadata;
    const lacks = lacking(call);
    const given = {
      principal: call.principal, groups: groups.join(', '), tool: subject(call), action: variant.replace(/^(call_tool_|direct$)/, ''),
      sensitivity, reason, client, args: lacks.whole ? editable(call.arguments ?? {}) : '{}',
    };
    enter(given);
    fill(source, para('The call of ', anchor(link('activity', { record: call.id }), 'this record'), ', ', exactly(call.timestamp),
      ', evaluated with the current rules and tools. Its session and time are left out.'),
    lacks.words.length > 0 && trouble(lacks.words.map((words) => `${words} `), 'The answer may differ from what was decided.'));
    await explain(call);
    if (wanted()) said.scrollIntoView({ block: 'nearest' });
  });
}

function enter(given) {
  for (const [name, value] of Object.entries(given)) {
    const field = form.elements[name];
    field.value = value ?? '';
    if (field.tagName === 'SELECT' && field.selectedIndex < 0) field.value = ''; // stated by the agent, right or wrong
  }
}

/** Fills the form with a call that waits for approval, and explains it. */
function fromApproval(id, wanted) {
  return act(async () => {
    const { call } = (await ask(`approvals/${segment(id)}`)).data.approval;
    if (!call || !wanted()) return;
    form.reset();
    enter({ principal: call.principal, tool: `${call.server_name}:${call.tool_name}`, action: call.operation, reason: call.reason, client: call.client_name, args: call.arguments });
    await explain();
  });
}

/** Parts of a call that rules may read and its record lacks. `whole`: whether the arguments are complete. */
function lacking({ arguments: args, arguments_truncated: cut, metadata }) {
  const whole = args !== undefined && !cut;
  const words = [
    cut && 'Its arguments were cut in the log, so that the rules see none.',
    args === undefined && 'Its arguments are not kept any more.',
    whole && JSON.stringify(args ?? {}).includes(REDACTED) && `Secrets in its arguments were replaced by ${REDACTED}.`,
    metadata.groups?.some((group) => group.includes(',')) && 'A group with a comma is entered as two.',
    metadata.groups_left_out && 'Some of the principal\'s groups are not in the log.',
  ].filter(Boolean);
  return { whole, words };
}

/** Why a call failed, unless rules refused it. */
async function otherReason(call) {
  const before = { rejected: 'The call was rejected', blocked: 'Its answer was blocked' }[call.status];
  const isByRules = before && (await decisions(call)).some((it) => it.status === 'blocked' && it.metadata?.policy === 'rules');
  return before && !isByRules && para(before, ' for another reason: ', el('bdi', {}, call.error_message));
}

function explained(data, other) {
  const isByToken = data.decider === 'token';
  const who = isByToken ? 'The token refuses' : `The rules ${data.decision === 'allow' ? 'allow' : 'refuse'}`;
  fill(said, el('div', { class: `card decision ${data.decision}` },
    el('div.line', {}, el('h2', {}, `${who} it`), tag(data.decision)),
    !isByToken && other,
    data.text && para(el('bdi', {}, data.text)),
    pairs(['action', data.action], ['mode', data.mode], ['decided by', isByToken ? 'the scope of the token' : data.decided_by.join(', ') || 'the default']),
    quiet('Operation, arguments, limits and approval of a call are checked apart from the rules.'),
    data.rules.length === 0 && quiet('No rule is about such a call.'),
    data.rules_for_other_actions.length > 0 && quiet('Rules for other actions only: ', data.rules_for_other_actions.map((rule, at) => [at > 0 && ', ', identifier(rule.rule)]), '.'),
    data.rules.map((rule) => el('div.met', {},
      el('div.line', {}, el('strong', {}, identifier(rule.rule)), el('span', {}, tag(rule.effect), ', ', rule.outcome.replaceAll('_', ' '))),
      rule.error && trouble(rule.error),
      placeOf(rule),
      pairs(...rule.saw.map((it) => [it.path, it.value ?? 'not there']))))));
}

const COLUMNS = ['calls', 'newly_refused', 'newly_allowed', 'undecidable'];
const COUNTED = [...COLUMNS, 'rule_errors'];
const MOST_ROWS = 50;
const MOST_REASONS = 20;

replayForm.addEventListener('submit', (event) => {
  event.preventDefault();
  const mine = ++replay;
  const given = Object.fromEntries(new FormData(replayForm));
  const body = {};
  if (given.rules.trim()) body.rules = given.rules;
  if (given.days) body.start_time = new Date(Date.now() - given.days * 86400000).toISOString();
  stop.hidden = false;
  act(async () => {
    try {
      await replayAll(body, () => mine === replay);
      if (mine !== replay) return;
      replayed.scrollIntoView({ block: 'nearest' });
      if (document.activeElement === document.body || replayForm.contains(document.activeElement)) replayed.focus({ preventScroll: true });
    } catch (error) {
      if (error.status === 401 || !(error instanceof Refused)) throw error;
      if (mine === replay) fill(replayed, el('p.card fault wrong', {}, el('bdi', {}, error.message)));
    } finally {
      if (mine === replay) stop.hidden = true;
    }
  });
});

/** Asks for page after page of the log, as long as it is wanted, and shows what they come to so far. */
async function replayAll(body, wanted) {
  const sum = { read: 0, total: counts(), reasons: new Map(), errors: new Map(), rows: new Map() };
  let cursor;
  do {
    const { data } = await send('policy/replay', { ...body, cursor });
    if (!wanted()) return;
    cursor = data.next_cursor;
    sum.read += data.read;
    add(sum.total, data.total);
    for (const [map, found] of [[sum.reasons, data.undecidable_because], [sum.errors, data.rule_errors_because]]) {
      for (const [why, count] of Object.entries(found)) map.set(why, (map.get(why) ?? 0) + count);
    }
    for (const row of data.by_tool_and_principal) {
      const key = JSON.stringify([row.tool, row.principal]);
      if (!sum.rows.has(key)) sum.rows.set(key, { tool: row.tool, principal: row.principal, ...counts() });
      add(sum.rows.get(key), row);
    }
    fill(replayed, outcome(sum, cursor !== undefined));
  } while (cursor !== undefined);
}

/** The calls of a tool by a principal, which lead to their records. */
function changedRow(row) {
  const records = link('activity', { type: 'tool_call', ...named(row.tool), principal: row.principal });
  return el('tr', {}, el('th', { scope: 'row' }, anchor(link('tools', { tool: row.tool }), identifier(row.tool))),
    el('td', {}, anchor(link('principals', { name: row.principal }), identifier(row.principal))),
    COLUMNS.map((name) => el('td.num', {}, name === 'calls' ? el('a', { href: records }, number(row.calls)) : number(row[name]))), el('td', {}, el('bdi', {}, [...row.rules].join(', '))));
}

const counts = () => ({ ...Object.fromEntries(COUNTED.map((name) => [name, 0])), rules: new Set() });

function add(to, page) {
  for (const name of COUNTED) to[name] += page[name];
  for (const rule of page.rules) to.rules.add(rule);
}

function outcome(sum, goesOn) {
  const { total } = sum;
  const changed = (row) => row.newly_refused + row.newly_allowed;
  const rows = [...sum.rows.values()].filter((row) => changed(row) || row.undecidable)
    .sort((one, other) => changed(other) - changed(one) || other.undecidable - one.undecidable || (one.tool < other.tool ? -1 : 1));
  const reasons = [...sum.reasons].map(([why, count]) => `${why}: ${number(count)}`).join(', ');
  const errors = [...sum.errors].sort((one, other) => other[1] - one[1]).slice(0, MOST_REASONS);
  return el('div.card', {},
    el('div.line', {}, el('h2', {}, number(total.newly_refused), ' newly refused, ', number(total.newly_allowed), ' newly allowed')),
    quiet(`${number(total.calls)} calls of ${number(sum.read)} records`, goesOn ? ' so far…' : ''),
    pairs(['undecidable', total.undecidable && number(total.undecidable)], ['for want of', reasons]),
    total.rule_errors > 0 && trouble(`${number(total.rule_errors)} of the newly refused because a rule cannot be evaluated:`),
    errors.length > 0 && el('ul', {}, errors.map(([why, count]) => el('li', {}, el('bdi', {}, why), ` (${number(count)})`))),
    rows.length === 0 ? para('Nothing would be decided otherwise.') : el('div.scroll', { tabindex: 0, role: 'region', 'aria-label': 'What would be decided otherwise' }, el('table.rows', { id: 'replay-rows' },
      sortHead(['Tool', 'Principal', 'Calls', 'Newly refused', 'Newly allowed', 'Undecidable', 'Rules'].map((words, at) => ({ words, kind: at > 1 && at < 6 && 'num' }))),
      el('tbody', {}, rows.slice(0, MOST_ROWS).map(changedRow)))),
    rows.length > MOST_ROWS && quiet(`… and ${number(rows.length - MOST_ROWS)} more`));
}
