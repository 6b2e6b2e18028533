// The stream of records, with polling while it is unavailable.

import { $, moving } from './dom.js';
import { attempt, get } from './rest.js';

const POLL_MS = 3000; // while the stream is unavailable or unproven
const RETRY_MS = [1000, 2000, 5000, 15000, 30000]; // before the stream is tried again

const hears = []; // listeners for records
const polls = []; // called while there is no stream

/** Calls `record` for each record of the stream, and `poll` periodically while there is no stream. */
export function listen(record, poll) {
  hears.push(record);
  if (poll) polls.push(poll);
}

export const live = {
  stopping: undefined,
  last: '', // id of the last record that came by the stream
  proved: false, // something came through: nothing on the way holds the stream back
  timer: undefined,

  start() {
    this.stop();
    this.stopping = new AbortController();
    this.say('polling', 'connecting');
    this.timer = setInterval(() => this.poll(), POLL_MS);
    this.run(this.stopping.signal);
  },

  stop() {
    this.stopping?.abort();
    clearInterval(this.timer);
    this.proved = false;
  },

  say(state, words) {
    if ($('live').dataset.state !== state || $('live').textContent !== words) {
      moving(() => {
        $('live').dataset.state = state;
        $('live').textContent = words;
      });
    }
  },

  async poll() {
    if (this.proved) return;
    const well = await attempt(() => Promise.all(polls.map((poll) => poll())));
    if (well && !this.proved) this.say('polling', 'every few seconds');
  },

  async run(signal) {
    for (let tried = 0; !signal.aborted; tried += 1) {
      try {
        await this.read(signal);
        tried = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (error.over) {
          await attempt(() => { throw error; });
          return;
        }
        this.proved = false;
        this.say('lost', 'no connection');
      }
      await new Promise((done) => { setTimeout(done, RETRY_MS[Math.min(tried, RETRY_MS.length - 1)]); });
    }
  },

  async read(signal) {
    const headers = this.last ? { 'Last-Event-ID': this.last } : {};
    const response = await get('/events', { headers, signal });
    if (response.status === 401) throw Object.assign(new Error('over'), { over: true, status: 401 });
    if (!response.ok) throw new Error(response.statusText);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) {
        this.proved = false;
        return;
      }
      if (!this.proved) {
        this.proved = true;
        this.say('live', 'live');
        attempt(() => Promise.all(polls.map((poll) => poll()))); // what came between the list and the stream
      }
      const events = (rest + value).replaceAll('\r\n', '\n').split('\n\n');
      rest = events.pop();
      events.forEach((event) => this.take(event));
    }
  },

  take(event) {
    const fields = event.split('\n').map((line) => /^(id|data): ?(.*)$/s.exec(line)).filter(Boolean);
    const data = fields.filter(([, name]) => name === 'data').map(([, , value]) => value).join('\n');
    this.last = fields.find(([, name]) => name === 'id')?.[2] ?? this.last;
    if (!data) return;
    let record;
    try { record = JSON.parse(data); } catch { return; } // another kind of event
    if (record.id) hears.forEach((hear) => hear(record));
  },
};
