// Visual regression test: compares the screenshots with the accepted appearance of each view.
// `looks.json` holds the mean color of each square of a screenshot. Fonts and time-dependent text hardly affect these
// values. The test reports each view that differs, and fails if a large part of a view differs.
//
// To accept the screenshots of a run, review them in target/page and run: ACCEPT_LOOKS=1 tools/page/run

import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { SHOTS } from './proxy.mjs';

const FILE = join(import.meta.dirname, 'looks.json');
const SQUARE = 64; // pixels
const TOLERANCE = 3; // color levels, of 16
const REPORTED = 0.05; // share of differing squares that is reported
const FAILED = 0.3; // share of differing squares that fails the test

/** Mean colors of the squares of a screenshot: three hexadecimal digits each, row by row. */
async function squares(page, file) {
  const image = `data:image/png;base64,${readFileSync(join(SHOTS, file)).toString('base64')}`;
  return page.evaluate(async ([source, square]) => {
    const picture = new Image();
    picture.src = source;
    await picture.decode();
    const [width, height] = [Math.ceil(picture.width / square), Math.ceil(picture.height / square)];
    const canvas = new OffscreenCanvas(picture.width, picture.height);
    const context = canvas.getContext('2d');
    context.drawImage(picture, 0, 0);
    const { data } = context.getImageData(0, 0, picture.width, picture.height);
    const sums = new Float64Array(width * height * 4);
    for (let y = 0; y < picture.height; y += 1) {
      for (let x = 0; x < picture.width; x += 1) {
        const [from, to] = [(y * picture.width + x) * 4, (Math.floor(y / square) * width + Math.floor(x / square)) * 4];
        for (let channel = 0; channel < 3; channel += 1) sums[to + channel] += data[from + channel];
        sums[to + 3] += 1;
      }
    }
    const level = (at, channel) => Math.round(sums[at + channel] / sums[at + 3] / 17).toString(16);
    const row = (y) => Array.from({ length: width }, (_, x) => [0, 1, 2].map((it) => level((y * width + x) * 4, it)).join('')).join('');
    return Array.from({ length: height }, (_, y) => row(y));
  }, [image, SQUARE]);
}

/** Share of the squares that differ; 1 if the sizes differ. */
function difference(accepted, found) {
  const [before, now] = [accepted.join(''), found.join('')];
  if (accepted.length !== found.length || before.length !== now.length) return 1;
  let differ = 0;
  for (let at = 0; at < now.length; at += 3) {
    const far = [0, 1, 2].some((it) => Math.abs(Number.parseInt(before[at + it], 16) - Number.parseInt(now[at + it], 16)) > TOLERANCE);
    differ += far ? 1 : 0;
  }
  return differ / (now.length / 3);
}

/** Compares all screenshots with the accepted ones. Computes the mean colors in `page`. */
export async function compare(page) {
  const names = readdirSync(SHOTS).filter((it) => /-(light|dark)\.png$/.test(it)).sort();
  const found = {};
  for (const name of names) found[name.replace(/\.png$/, '')] = await squares(page, name);
  if (process.env.ACCEPT_LOOKS) {
    const rows = Object.entries(found).map(([name, it]) => `${JSON.stringify(name)}: ${JSON.stringify(it)}`);
    writeFileSync(FILE, `{\n${rows.join(',\n')}\n}\n`);
    console.log(`accepted ${names.length} screenshots`);
    return;
  }
  const accepted = existsSync(FILE) ? JSON.parse(readFileSync(FILE, 'utf8')) : {};
  const failed = [];
  for (const [name, it] of Object.entries(found)) {
    const part = accepted[name] ? difference(accepted[name], it) : 1;
    if (part > REPORTED) console.log(`screenshot differs: ${name}, ${Math.round(part * 100)} % of its squares; see target/page/${name}.png`);
    if (part > FAILED) failed.push(name);
  }
  for (const name of Object.keys(accepted)) if (!found[name]) failed.push(`${name} is missing`);
  if (failed.length) throw new Error(`screenshots differ from the accepted ones: ${failed.join(', ')}; to accept them, run ACCEPT_LOOKS=1 tools/page/run`);
  console.log(`compared ${names.length} screenshots with the accepted ones`);
}
