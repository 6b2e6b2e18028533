// Colors of the page: light, dark, or those of the system. The choice is the only thing that the page stores in the browser.

import { $ } from './dom.js';

const KEY = 'mcpproxy-colors';
const CHOICES = ['light', 'dark'];

function choose(wanted) {
  const choice = CHOICES.includes(wanted) ? wanted : '';
  if (choice) document.documentElement.dataset.colors = choice;
  else delete document.documentElement.dataset.colors;
  $('theme').value = choice;
  return choice;
}

/** Applies the stored choice, and stores the next ones. */
export function startTheme() {
  try { choose(localStorage.getItem(KEY)); } catch { /* storage is disabled: the system's colors */ }
  $('theme').addEventListener('change', () => {
    const choice = choose($('theme').value);
    try {
      if (choice) localStorage.setItem(KEY, choice);
      else localStorage.removeItem(KEY);
    } catch { /* the choice counts until the page is closed */ }
  });
}
