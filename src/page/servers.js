// The servers: how each is, why, and what can be done about it.

import { arrange, button, clock, command, copy, el, empty, fill, nodes, number, pairs, redraw, tag, took, visible, when } from './dom.js';
import { act, ask, attempt, segment, send } from './rest.js';
import { here, link } from './route.js';

const LOG_LINES = 200; // of a server's stderr at first
const MAX_LOG_LINES = 1000; // kept while it is followed
const FOLLOW_MS = 2000;

const list = el('ul', { id: 'servers', class: 'cards' });
const none = el('div', {});
let asked = 0;

export const servers = {
  name: 'servers',
  label: 'Servers',
  root: el('div', {}, none, list),
  show: () => servers.refresh(),
  refresh: () => attempt(load),
  forget() {
    asked += 1;
    fill(list);
  },
};

async function load() {
  const mine = ++asked;
  const { data } = await ask('servers');
  if (mine !== asked) return;
  redraw(none, data.servers.length === 0 && empty('No server is configured.', ...nextSteps()));
  // A card that is there is only filled anew, so that a log that is open stays open.
  const before = new Map([...list.children].map((card) => [card.dataset.name, card]));
  const cards = data.servers.map((server) => {
    const made = before.get(server.name) ?? card(server.name);
    made.draw(server);
    return made;
  });
  arrange(list, cards);
  const wanted = here().view === 'servers' && here().parameters.name;
  for (const it of list.children) it.classList.toggle('marked', it.dataset.name === wanted);
}

/** What to do where there is no server. */
export const nextSteps = () => [
  el('p', {}, 'Add one: ', command('mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp')),
  el('p', {}, 'Or take over those of another program: ', command('mcpproxy import')),
];

function card(name) {
  const title = el('div', { class: 'line' });
  const about = el('div', {});
  const actions = el('div', { class: 'answer' });
  const made = el('li', { class: 'card', 'data-name': name }, title, about, actions, log(name));
  let drawn;
  made.draw = (server) => {
    const said = JSON.stringify(server);
    if (said === drawn) return;
    drawn = said;
    redraw(title, el('h2', {}, el('bdi', {}, name)), tag(server.state));
    redraw(about, described(server));
    const wanted = buttons(server);
    // Nobody's button goes away under their finger.
    if (wanted.map((it) => it.textContent).join() !== [...actions.children].map((it) => it.textContent).join()) {
      const focused = actions.contains(document.activeElement);
      fill(actions, wanted);
      if (focused) actions.firstElementChild.focus();
    }
  };
  return made;
}

function described(server) {
  const { name, calls } = server;
  const records = (more, words) => el('a', { href: link('activity', { server: name, ...more }) }, words);
  const times = (us) => (calls.total ? `p50 ${took(us.p50 / 1000) || '–'}, p99 ${took(us.p99 / 1000) || '–'}` : '–');
  return nodes(
    server.reason && el('p', { class: server.state === 'failed' ? 'wrong' : 'quiet' }, server.reason),
    login(server),
    pairs(['tools', el('a', { href: link('tools', { server: name }) }, number(server.tools))],
      ['in quarantine', server.quarantined ? el('a', { href: link('tools', { server: name, held: 'yes' }) }, number(server.quarantined)) : ''],
      ['since', when(server.since)], ['transport', server.protocol], ['MCP', server.protocol_version], ['says it is', server.server_info],
      ['calls', calls.total && records({}, number(calls.total))], ['errors', calls.error && records({ status: 'error' }, number(calls.error))],
      ['took', times(calls.duration_us)], ['of it the proxy', times(calls.overhead_us)],
      ['changes', records({ type: 'server_change' }, 'what became of it')]));
}

const needsLogin = (server) => /needs login/.test(server.reason);

/** How a login stands that was begun here. The address is opened by the person, so that no browser takes it for a pop-up. */
function login({ login: standing }) {
  if (!standing) return undefined;
  if (standing.state === 'failed') return el('p', { class: 'wrong' }, 'The login failed: ', standing.reason);
  if (standing.state === 'beginning' || !/^https?:/.test(standing.open)) return el('p', { class: 'quiet' }, 'The login begins…');
  return el('p', {}, el('a', { href: standing.open, target: '_blank', rel: 'noopener noreferrer' }, 'Open the login'),
    ', in a browser on the machine that the proxy runs on, until ', when(standing.until), '. ', copy(standing.open, 'address'));
}

function buttons(server) {
  const { name } = server;
  const does = (what, question) => () => {
    if (question && !confirm(visible(question))) return;
    act(async () => {
      try {
        await send(`servers/${segment(name)}/${what}`);
      } finally {
        await load();
      }
    });
  };
  if (server.state === 'disabled') return [button('Enable', does('enable'), { class: 'primary' })];
  return [
    needsLogin(server) && server.login?.state !== 'waiting' && button('Log in', does('login'), { class: 'primary' }),
    button('Restart', does('restart')),
    button('Disable', does('disable', `Disable ${name}? Its tools go away for every agent, until it is enabled.`), { class: 'deny' }),
  ].filter(Boolean);
}

/** What the server says on stderr; followed while it is open. */
function log(name) {
  const lines = el('pre', { class: 'log', tabindex: 0, role: 'log', 'aria-label': `What ${visible(name)} says` });
  let [cursor, timer, kept] = [undefined, undefined, []];
  const more = async () => {
    const { data } = await ask(`servers/${segment(name)}/logs`, { limit: LOG_LINES, cursor });
    const bottom = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 20;
    cursor = data.next_cursor;
    kept = [...kept, ...data.lines].slice(-MAX_LOG_LINES);
    if (data.lines.length || !kept.length) {
      lines.textContent = kept.length ? visible(kept.map((it) => `${clock(new Date(it.time))}  ${it.line}`).join('\n')) : 'It has said nothing yet.';
    }
    if (bottom) lines.scrollTop = lines.scrollHeight;
  };
  const follow = async () => {
    if (!made.open || !made.isConnected) return;
    if (!document.hidden && made.offsetParent) await attempt(more);
    clearTimeout(timer);
    timer = setTimeout(follow, FOLLOW_MS);
  };
  const made = el('details', { toggle: () => (made.open ? follow() : clearTimeout(timer)) }, el('summary', {}, 'Log'), lines);
  return made;
}
