// Plots over time, drawn here as SVG: stacked bars and lines, zoomed by dragging or by buttons.

import { button, clock, day, el, fill, number, took } from './dom.js';

const [HEIGHT, LEFT, BELOW, ABOVE] = [200, 52, 22, 8];
const MAX_BAR = 28; // width of a bar, in pixels
const DOT = 8; // size of a value that stands alone
const RECENT_MS = 90_000_000; // a day and an hour
const LEAST_STEPS = 2; // a zoom shows at least so many

/** The beginning of a step: the minute, with the day if the step is long or not of the last day. */
export function stamp(time, step) {
  const date = new Date(time);
  const minute = clock(date).slice(0, 5);
  return step < 3600 && Date.now() - time < RECENT_MS ? minute : `${day(date)} ${minute}`;
}

/** A round distance of at most five grid lines. */
function tickOf(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [0.2, 0.5, 1, 2].map((part) => part * power).find((part) => most / part <= 5) ?? power;
}

/**
 * Draws `points` (each with `start`, in ms) into `place`. `series` are names and how a point says their value; `kind` is
 * `bars` (stacked) or `lines`. `picked(from, to)` gets the range that was dragged over, `clicked(point)` the step that was clicked, and
 * `hovered(point)` the step below the pointer, or nothing once it has left.
 */
export function plot(place, { points, step, series, kind, label, spell = number, picked, clicked, hovered }) {
  if (place.querySelector('.dragged')) return; // not under somebody's finger
  const width = Math.max(place.clientWidth, 240);
  const value = (point, one) => one.of(point) || 0;
  const tops = points.map((point) => (kind === 'bars'
    ? series.reduce((sum, one) => sum + value(point, one), 0)
    : Math.max(...series.map((one) => value(point, one)))));
  const most = Math.max(...tops, kind === 'bars' ? 1 : 0.001);
  const tick = kind === 'bars' ? Math.max(tickOf(most), 1) : tickOf(most);
  const top = Math.max(Math.ceil(most / tick - 1e-9), 1) * tick;
  const y = (amount) => HEIGHT - BELOW - (amount / top) * (HEIGHT - BELOW - ABOVE);
  const wide = (width - LEFT) / points.length;
  const thick = Math.max(Math.min(wide - 2, MAX_BAR), 1);
  const isEmpty = !tops.some(Boolean);
  const parts = [];
  for (let line = 0; line <= (isEmpty ? 0 : top + tick / 2); line += tick) {
    parts.push(el('line', { x1: LEFT, x2: width, y1: y(line), y2: y(line) }),
      el('text', { x: LEFT - 6, y: y(line) + 4, 'text-anchor': 'end' }, spell(line) || '0'));
  }
  const every = Math.ceil(points.length / Math.max(Math.floor((width - LEFT) / 90), 1));
  const middle = (at) => LEFT + (at + 0.5) * wide;
  points.forEach((point, at) => {
    const x = LEFT + at * wide;
    if (at % every === 0 && x + 70 < width) parts.push(el('text', { x, y: HEIGHT - 6 }, stamp(point.start, step)));
    let base = 0;
    const bars = kind === 'bars' ? series.filter((one) => value(point, one)).map((one) => {
      const [low, high] = [y(base), y(base += value(point, one))];
      return el('rect', { class: `bar ${one.name}`, x: x + (wide - thick) / 2, width: thick, y: high, height: Math.max(low - high - 1, 1) });
    }) : [];
    const said = series.map((one) => `${one.name} ${spell(value(point, one)) || '–'}`).join('\n');
    parts.push(el('g', {}, bars, el('rect.hit', { x, width: wide, y: ABOVE, height: HEIGHT - BELOW - ABOVE }),
      el('title', {}, `${stamp(point.start, step)}\n${said}`)));
  });
  if (kind === 'lines') {
    for (const one of series) {
      const line = points.map((point, at) => (value(point, one) ? `${middle(at).toFixed(1)},${y(value(point, one)).toFixed(1)}` : ''));
      // Where nothing was called there is no line.
      for (const part of runs(line)) {
        const dots = part.split(' ');
        parts.push(dots.length > 1 ? el('polyline', { class: `curve ${one.name}`, points: part })
          : el('rect', { class: `bar ${one.name}`, x: Number(dots[0].split(',')[0]) - DOT / 2, y: Number(dots[0].split(',')[1]) - DOT / 2, width: DOT, height: DOT }));
      }
    }
  }
  if (isEmpty) parts.push(el('text', { x: LEFT + (width - LEFT) / 2, y: HEIGHT / 2, 'text-anchor': 'middle' }, 'No calls in this time'));
  const chosen = el('rect.chosen', { y: ABOVE, height: HEIGHT - BELOW - ABOVE, width: 0 });
  const drawn = el('svg', { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: 'img', 'aria-label': label }, parts, chosen);
  drag(drawn, chosen, { points, wide, step, picked, clicked, hovered });
  // The drawing may be replaced below the pointer; its place is not.
  place.onpointerleave = () => hovered?.();
  fill(place, drawn);
}

/** The points of each line, if the dots that are empty interrupt it. */
const runs = (dots) => dots.join(' ').split(/ {2,}/).map((part) => part.trim()).filter(Boolean);

/** A click is of one step; a way with the button down picks a range. */
function drag(drawn, chosen, { points, wide, step, picked, clicked, hovered }) {
  let from;
  const at = (event) => {
    const box = drawn.getBoundingClientRect();
    const x = (event.clientX - box.left) * (drawn.viewBox.baseVal.width / box.width);
    return Math.min(Math.max(Math.floor((x - LEFT) / wide), 0), points.length - 1);
  };
  const mark = (event) => {
    const [low, high] = [Math.min(from, at(event)), Math.max(from, at(event))];
    chosen.setAttribute('x', LEFT + low * wide);
    chosen.setAttribute('width', high > low ? (high - low + 1) * wide : 0);
    return [low, high];
  };
  drawn.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    from = at(event);
    drawn.classList.add('dragged');
    drawn.setPointerCapture(event.pointerId);
  });
  drawn.addEventListener('pointermove', (event) => {
    if (from !== undefined) mark(event);
    hovered?.(points[at(event)]);
  });
  const over = () => {
    from = undefined;
    drawn.classList.remove('dragged');
  };
  drawn.addEventListener('pointercancel', over);
  drawn.addEventListener('pointerup', (event) => {
    if (from === undefined) return;
    const [low, high] = mark(event);
    over();
    chosen.setAttribute('width', 0);
    if (high - low + 1 >= LEAST_STEPS) picked?.(points[low].start, points[high].start + step * 1000);
    else clicked?.(points[low]);
  });
}

/**
 * Buttons that zoom, for the keyboard: `from` and `to` are drawn, in steps of `step`, of what lies between `first` and `last`.
 * `zoomed(from, to)` is told, nothing for all of it.
 */
export function zooms({ from, to, step, first, last, isAll, zoomed }) {
  const span = to - from;
  // What there is nothing to do for keeps the focus of whoever pressed it.
  const does = (words, label, click) => button(words, click || (() => {}), { 'aria-label': label, 'aria-disabled': !click && 'true' });
  const within = (start, length) => {
    const whole = Math.max(Math.round(length / step), LEAST_STEPS) * step;
    const begin = Math.max(first, Math.min(start, last - whole));
    const low = from + Math.floor((begin - from) / step) * step;
    zoomed(low, low + whole);
  };
  return [
    does('+', 'Zoom in', span > LEAST_STEPS * step && (() => within(to - span / 2, span / 2))), // the newest part
    does('−', 'Zoom out', !isAll && (() => (span * 2 >= last - first ? zoomed() : within(from - span / 2, span * 2)))),
    does('←', 'Earlier', from > first && (() => within(from - span / 2, span))),
    does('→', 'Later', to < last && (() => within(from + span / 2, span))),
    does('All', 'All of the period', !isAll && (() => zoomed())),
  ];
}

/** A small line of values, at equal distances or at these `places` from 0 to 100. Where there is no value there is no line. */
export function spark(values, label, name = 'calls', places = values.map((_, at) => at * 100 / Math.max(values.length - 1, 1))) {
  const most = Math.max(...values.filter((value) => value !== undefined), 1e-9);
  const dot = (value, at) => `${places[at].toFixed(1)},${(23 - 22 * value / most).toFixed(1)}`;
  const parts = runs(values.map((value, at) => (value === undefined ? '' : dot(value, at))));
  // A value alone is a short line.
  const line = (part) => (part.includes(' ') ? part : part.replace(/^([\d.]+),(.*)$/, (_all, x, y) => `${Math.max(Number(x) - 1, 0)},${y} ${Math.min(Number(x) + 1, 100)},${y}`));
  return el('svg.spark', { viewBox: '0 0 100 24', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    values.length > 1 && parts.map((part) => el('polyline', { class: `curve ${name}`, points: line(part) })));
}

export const milliseconds = (value) => took(value) || '0';
