// The servers: how each is, why, and what can be done about it.

import { button, command, copy, el, empty, fill, nodes, number, pairs, tag, took, visible, when } from './dom.js';
import { ask, attempt, segment, send } from './rest.js';
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
  fill(none, data.servers.length === 0 && empty('No server is configured.',
    el('p', {}, 'Add one: ', command('mcpproxy upstream add files -- npx -y @modelcontextprotocol/server-filesystem /tmp')),
    el('p', {}, 'Or take over those of another program: ', command('mcpproxy import'))));
  // A card that is there is only filled anew, so that a log that is open stays open.
  const before = new Map([...list.children].map((card) => [card.dataset.name, card]));
  const cards = data.servers.map((server) => {
    const made = before.get(server.name) ?? card(server.name);
    made.draw(server);
    return made;
  });
  if (cards.length !== before.size || cards.some((it) => !it.isConnected)) fill(list, cards);
  const wanted = here().view === 'servers' && here().parameters.name;
  for (const it of list.children) it.classList.toggle('marked', it.dataset.name === wanted);
}

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
    fill(title, el('h2', {}, el('bdi', {}, name)), tag(server.state));
    fill(about, described(server));
    const wanted = buttons(server);
    // Nobody's button goes away under their finger.
    if (wanted.map((it) => it.textContent).join() !== [...actions.children].map((it) => it.textContent).join()) fill(actions, wanted);
  };
  return made;
}

function described(server) {
  const { name, calls } = server;
  const records = (more, words) => el('a', { href: link('activity', { server: name, ...more }) }, words);
  const half = (us) => `${took(us.p50 / 1000)}, 1 % above ${took(us.p99 / 1000)}`;
  return nodes(
    server.reason && el('p', { class: server.state === 'failed' ? 'wrong' : 'quiet' }, server.reason),
    login(server),
    pairs(['tools', el('a', { href: link('tools', { server: name }) }, number(server.tools))],
      ['in quarantine', server.quarantined ? el('a', { href: link('tools', { server: name, held: 'yes' }) }, number(server.quarantined)) : ''],
      ['since', when(server.since)], ['transport', server.protocol], ['MCP', server.protocol_version], ['says it is', server.server_info],
      ['calls', calls.total && records({}, number(calls.total))], ['errors', calls.error && records({ status: 'error' }, number(calls.error))],
      ['took (median)', calls.total ? half(calls.duration_us) : '–'], ['of it the proxy', calls.total ? half(calls.overhead_us) : '–'],
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
  const act = (what, question) => () => {
    if (question && !confirm(visible(question))) return;
    attempt(async () => {
      try {
        await send(`servers/${segment(name)}/${what}`);
      } finally {
        await load();
      }
    });
  };
  if (server.state === 'disabled') return [button('Enable', act('enable'), { class: 'primary' })];
  return [
    needsLogin(server) && server.login?.state !== 'waiting' && button('Log in', act('login'), { class: 'primary' }),
    button('Restart', act('restart')),
    button('Disable', act('disable', `Disable ${name}? Its tools go away for every agent, until it is enabled.`), { class: 'deny' }),
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
      lines.textContent = kept.length ? visible(kept.map((it) => `${it.time.slice(11, 19)}  ${it.line}`).join('\n')) : 'It has said nothing yet.';
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
