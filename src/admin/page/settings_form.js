// A form for the settings that can be changed here, made from the JSON Schema of the config.

import { button, bytes, el, fill, isObject, labelled, number, option } from './dom.js';

const HIDDEN = '(not shown)';
const ALL = 'All servers';
const GENERAL = 'General';

let ids = 0; // of fields, which their labels name

/** The schema of a path, with its references resolved; `undefined` if there is none. */
function schemaOf(root, path) {
  const resolved = (at) => {
    let schema = at;
    for (let depth = 0; schema?.$ref && depth < 8; depth += 1) {
      const { $ref: reference, ...more } = schema;
      schema = { ...reference.slice(2).split('/').reduce((inner, key) => inner?.[key], root), ...more };
    }
    return schema;
  };
  return path.reduce((schema, key) => resolved(schema?.properties?.[key] ?? resolved(schema)?.additionalProperties), resolved(root));
}

const get = (settings, path) => path.reduce((at, key) => (isObject(at) && Object.hasOwn(at, key) ? at[key] : undefined), settings);

/** Sets a value, or removes it (`undefined`) with the sections that were made for it. */
function set(settings, path, value, before) {
  const [key, ...rest] = path;
  if (rest.length === 0) {
    if (value === undefined) delete settings[key];
    else settings[key] = value;
    return;
  }
  if (!isObject(settings[key])) {
    if (value === undefined) return;
    settings[key] = {};
  }
  set(settings[key], rest, value, isObject(before) ? before[key] : undefined);
  if (Object.keys(settings[key]).length === 0 && !(isObject(before) && Object.hasOwn(before, key))) delete settings[key];
}

const byDefault = (schema, isSize) => {
  const value = schema.default;
  if (value === undefined || (Array.isArray(value) && value.length === 0)) return 'not set';
  return `default: ${typeof value === 'number' ? `${number(value)}${isSize && value >= 1024 ? ` (${bytes(value)})` : ''}` : typeof value === 'boolean' ? (value ? 'yes' : 'no') : value}`;
};

/** The field of a value, which may be a size in bytes: how it is shown, and how what is in it is read. */
function fieldOf(schema, value, isSize) {
  const choices = schema.enum ?? (schema.type === 'boolean' ? [true, false] : undefined);
  if (choices) {
    const words = (choice) => (choice === true ? 'yes' : choice === false ? 'no' : String(choice));
    const made = el('select', {}, option('', byDefault(schema)), choices.map((choice) => option(String(choice), words(choice))));
    made.value = value === undefined ? '' : String(value);
    return [made, () => choices.find((choice) => String(choice) === made.value)];
  }
  if (schema.type === 'integer' || schema.type === 'number') {
    const made = el('input', { type: 'number', min: schema.minimum, max: schema.maximum, step: schema.type === 'integer' ? 1 : 'any', placeholder: byDefault(schema, isSize) });
    made.value = value ?? '';
    return [made, () => (made.value === '' ? undefined : Number(made.value))];
  }
  const made = el('input', { autocomplete: 'off', spellcheck: 'false', placeholder: byDefault(schema) });
  if (schema.type === 'array') {
    made.value = Array.isArray(value) ? value.join(', ') : '';
    return [made, () => (made.value.trim() === '' ? undefined : made.value.split(',').map((word) => word.trim()).filter(Boolean))];
  }
  made.value = value ?? '';
  return [made, () => (made.value.trim() === '' ? undefined : made.value.trim())];
}

/** What the form can show at a path: nothing that is hidden, and no value of another kind. */
function fits(schema, value) {
  if (value === undefined) return true;
  if (value === HIDDEN) return false;
  if (schema.enum) return schema.enum.includes(value);
  if (schema.type === 'array') return Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === 'string' && !item.includes(','));
  return { boolean: 'boolean', integer: 'number', number: 'number', string: 'string' }[schema.type] === typeof value;
}

/**
 * The form of `settings`, of which those at `patchable` paths can be changed; `changed` is called after each change of `next`.
 * A path with `*` is a setting of a tool or principal, to which its user adds names.
 */
export function settingsForm(schema, { settings, patchable }, next, changed) {
  const fields = el('div', {});
  const names = Object.keys(isObject(settings.mcpServers) ? settings.mcpServers : {});
  const search = el('input', { type: 'search', autocomplete: 'off', spellcheck: 'false', placeholder: 'name or words', input: () => find() });
  const none = el('p.quiet', { role: 'status' });
  const of = el('select', { change: () => draw() }, option('', ALL), names.map((name) => option(name)));
  const paths = patchable.map((path) => path.split('.'));

  function field(path, words) {
    const at = schemaOf(schema, path);
    const value = get(next, path);
    if (!at || at.deprecated || !fits(at, value)) return undefined;
    const [made, read] = fieldOf(at, value, /bytes$/.test(words.at(-1)));
    made.addEventListener('input', () => {
      set(next, path, read(), settings);
      changed();
    });
    ids += 1;
    made.id = `setting-${ids}`;
    made.dataset.path = path.join('.');
    const help = `${made.id}-help`;
    made.setAttribute('aria-describedby', help);
    const section = words.slice(0, -1).map((word) => `${word}.`).join('');
    const name = el('code', {}, section && el('span.quiet', {}, section), words.at(-1));
    return el('div.setting', {}, el('label', { for: made.id }, name), made, el('p', { id: help, class: 'quiet' }, at.description ?? ''));
  }

  /** The fields of the names that have settings below `before`, and a field that adds a name. */
  function named(before, all, words) {
    const place = el('div', {});
    const shown = new Set(Object.keys(get(next, before) ?? {}));
    const one = (name) => all.map((rest) => field([...before, name, ...rest], [...words, name, ...rest]));
    fill(place, [...shown].flatMap(one));
    const name = el('input', { autocomplete: 'off', spellcheck: 'false', placeholder: before[0] === 'mcpServers' ? 'tool, or pattern with *' : words.at(-1) === 'tools' ? 'server:tool, or pattern with *' : 'token:NAME, or pattern with *' });
    const add = () => {
      const typed = name.value.trim();
      name.value = '';
      if (!typed || shown.has(typed)) return;
      shown.add(typed);
      const made = one(typed);
      place.append(...made.filter(Boolean));
      place.querySelector(`[data-path^="${CSS.escape([...before, typed].join('.'))}."]`)?.focus();
    };
    name.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter') return;
      event.preventDefault();
      add();
    });
    const adds = labelled(`Add a name to ${words.join('.')}`, name);
    return [place, el('div.answer', {}, adds, button('Add', add))];
  }

  function draw() {
    const server = of.value;
    const wanted = paths.filter(([root]) => (root === 'mcpServers') === Boolean(server)).map((path) => (server ? path.slice(2) : path));
    const root = server ? ['mcpServers', server] : [];
    const sections = new Map();
    const maps = new Map();
    for (const words of wanted) {
      const star = words.indexOf('*');
      const before = words.slice(0, star);
      const key = before.join('.');
      let made;
      if (star < 0) made = field([...root, ...words], words);
      else if (maps.has(key)) {
        maps.get(key).push(words.slice(star + 1));
        continue;
      } else {
        const rest = [words.slice(star + 1)];
        maps.set(key, rest);
        made = () => named([...root, ...before], rest, before);
      }
      if (!made) continue;
      const section = words.length > 1 ? words[0] : GENERAL;
      sections.set(section, [...(sections.get(section) ?? []), made]);
    }
    fill(fields, [...sections].map(([section, all]) => el('details', { open: section === GENERAL, 'data-section': section }, el('summary', {}, section[0].toUpperCase() + section.slice(1).replaceAll('_', ' ')), all.map((it) => (it instanceof Function ? it() : it)))));
    find();
  }

  /** Shows the settings that contain the text, and opens their sections. */
  function find() {
    const word = search.value.trim().toLowerCase();
    for (const section of fields.children) {
      const all = [...section.querySelectorAll('.setting')];
      for (const one of all) one.hidden = !one.textContent.toLowerCase().includes(word);
      section.hidden = word !== '' && all.every((one) => one.hidden);
      section.open = word ? !section.hidden : section.dataset.section === GENERAL;
    }
    none.textContent = [...fields.children].every((section) => section.hidden) ? 'No setting matches.' : '';
  }

  draw();
  return el('div', { id: 'settings-form' }, el('div.answer', {}, labelled('Settings of', of), labelled('Find', search)), fields, none);
}
