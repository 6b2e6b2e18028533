// Lists as CSV files, made in the browser of the rows as they are filtered and sorted.

import { button } from './dom.js';
import { act } from './rest.js';

const READ_MS = 10_000; // in which a browser has read what it saves

/** A cell, quoted if needed. A spreadsheet would evaluate a text that begins like a formula, so that gets a single quote before it. */
function cell(value) {
  const text = String(value ?? '');
  const safe = typeof value === 'string' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** A CSV text (RFC 4180) of `rows`, whose first one has the names of the columns. */
export const csv = (rows) => rows.map((row) => `${row.map(cell).join(',')}\r\n`).join('');

/** A button that saves a list as `NAME.csv`. `rows` returns its rows, and may load them. */
export const csvButton = (name, rows, title = 'The list as filtered and sorted') => button('Download CSV', () => act(async () => {
  const address = URL.createObjectURL(new Blob([csv(await rows())], { type: 'text/csv' }));
  const link = document.createElement('a');
  Object.assign(link, { href: address, download: `mcpproxy-${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), READ_MS);
}), { title });
