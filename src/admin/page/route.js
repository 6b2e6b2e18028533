// Where the page is: the view and what it shows stand in the address, so that reload, back and a
// link that somebody was sent lead to the same.

/** The address of a view with these parameters. */
export function link(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== '' && value !== undefined && value !== null);
  return `#${view}${given.length ? `?${new URLSearchParams(given)}` : ''}`;
}

/** Server and tool of `server:tool`. */
export function named(name) {
  const at = name.indexOf(':');
  return { server: name.slice(0, at), tool: name.slice(at + 1) };
}

/** What the address says. */
export function here() {
  const [view, query = ''] = location.hash.slice(1).split(/\?(.*)/s);
  return { view: !view || view === 'overview' ? 'now' : view, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** Goes there; `replace` leaves no step to go back to. */
export function go(view, parameters = {}, replace = false) {
  const to = link(view, parameters);
  if (to === location.hash) return;
  if (replace) {
    history.replaceState(null, '', to);
    window.dispatchEvent(new HashChangeEvent('hashchange'));
  } else location.hash = to;
}

/** Changes some parameters of where we are. */
export function change(parameters, replace = false) {
  const now = here();
  go(now.view, { ...now.parameters, ...parameters }, replace);
}
