// The operator's rules: what is in force, and what they say of a call that nobody makes.

import { code, command, el, empty, fill, labelled, number, option, pairs, tag } from './dom.js';
import { Refused, ask, attempt, send } from './rest.js';
import { link } from './route.js';

const about = el('div', {});
const rules = el('ul', { id: 'rules', class: 'cards' });
const text = (name, more = {}) => el('input', { name, autocomplete: 'off', spellcheck: 'false', ...more });
const form = el('form', { id: 'explain-form', class: 'trial card', 'aria-label': 'Explain' },
  labelled('Who', text('principal', { value: 'anonymous', required: true, placeholder: 'admin, token:NAME, jwt:SUBJECT' })),
  labelled('Groups', text('groups', { placeholder: 'with commas' })),
  labelled('Tool', text('tool', { required: true, placeholder: 'server:tool', list: 'tool-names' })),
  labelled('As', el('select', { name: 'action' }, option('', 'what the tool is marked for'), ['read', 'write', 'destructive'].map((name) => option(name)))),
  labelled('Sensitivity', el('select', { name: 'sensitivity' }, option('', 'not stated'), ['public', 'internal', 'private', 'unknown'].map((name) => option(name)))),
  labelled('Arguments', el('textarea', { name: 'args', rows: 3, spellcheck: 'false' }, '{}')),
  el('div', { class: 'answer' }, el('button', { type: 'submit', class: 'primary' }, 'Explain')));
const names = el('datalist', { id: 'tool-names' });
const said = el('div', { id: 'explained', 'aria-live': 'polite' });
let asked = 0;

export const policy = {
  name: 'policy',
  label: 'Policy',
  root: el('div', {}, about, rules,
    el('h2', {}, 'Explain'), el('p', { class: 'quiet' }, 'Which rules decide a call, and what each of them sees. Nothing is called.'),
    form, names, said,
    el('h2', {}, 'Replay'), el('p', { class: 'quiet' }, 'What other rules would have said of the calls in the log:'),
    el('p', {}, command('mcpproxy policy replay new.cedar --since 30d')),
    el('p', {}, el('a', { href: link('activity', { type: 'policy_decision' }) }, 'What was decided'))),

  show(parameters) {
    for (const name of ['principal', 'tool']) if (parameters[name]) form.elements[name].value = parameters[name];
    this.refresh();
    attempt(async () => {
      const { data } = await ask('tools', { limit: 100 });
      fill(names, data.tools.map((it) => option(it.name)));
    });
  },

  refresh: () => attempt(load),

  forget() {
    asked += 1;
    for (const place of [about, rules, names, said]) fill(place);
  },
};

let drawn;

async function load() {
  const mine = ++asked;
  const { data, text: spelled } = await ask('policy');
  if (mine !== asked || (spelled === drawn && about.childElementCount)) return;
  drawn = spelled;
  if (data.mode === 'none') {
    fill(about, empty('There are no rules: whoever may speak to the proxy may call what intent and capabilities allow.',
      el('p', {}, 'Name a file of Cedar rules under ', el('code', {}, 'policy.files'), ' in the config; it is in force as soon as it is written. Check it first: ',
        command('mcpproxy policy check rules.cedar'))));
    fill(rules);
    return;
  }
  fill(about, pairs(['mode', data.mode === 'shadow' ? 'shadow: refusals are only put on record' : 'enforce'],
    ['where no rule fits', data.default], ['rules', number(data.rules.length + data.left_out)]));
  fill(rules, data.rules.map((rule) => el('li', { class: 'card' },
    el('div', { class: 'line' }, el('h2', {}, el('bdi', {}, rule.rule)), tag(rule.effect)),
    rule.message && el('p', {}, el('bdi', {}, rule.message)),
    rule.asks_a_person && el('p', { class: 'quiet' }, 'A person can lift it: it asks for an approval.'),
    el('p', { class: 'quiet mono' }, `${rule.file}:${rule.line}`),
    el('details', {}, el('summary', {}, 'Text'), code(rule.text, 'rule')))));
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  const given = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
  attempt(async () => {
    try {
      const body = { principal: given.principal, tool: given.tool, args: JSON.parse(given.args || '{}') };
      if (given.groups) body.groups = given.groups.split(',').map((name) => name.trim()).filter(Boolean);
      for (const name of ['action', 'sensitivity']) if (given[name]) body[name] = given[name];
      explained((await send('policy/explain', body)).data);
    } catch (error) {
      if (error.status === 401 || !(error instanceof Refused || error instanceof SyntaxError)) throw error;
      fill(said, el('p', { class: 'wrong' }, error instanceof SyntaxError ? `The arguments are not JSON: ${error.message}` : error.message));
    }
  });
});

function explained(data) {
  fill(said, el('div', { class: 'card' },
    el('div', { class: 'line' }, el('h2', {}, 'It is ', data.decision === 'allow' ? 'allowed' : 'refused'), tag(data.decision)),
    data.text && el('p', {}, el('bdi', {}, data.text)),
    pairs(['mode', data.mode], ['decided by', data.decided_by.join(', ') || 'the default']),
    data.rules.length === 0 && el('p', { class: 'quiet' }, 'No rule is about such a call.'),
    data.rules.map((rule) => el('div', { class: 'met' },
      el('div', { class: 'line' }, el('strong', {}, el('bdi', {}, rule.rule)), el('span', {}, rule.effect, ', ', rule.outcome)),
      rule.error && el('p', { class: 'wrong' }, rule.error),
      el('p', { class: 'quiet mono' }, `${rule.file}:${rule.line}`),
      pairs(...rule.saw.map((it) => [it.path, it.value ?? 'not there']))))));
}
