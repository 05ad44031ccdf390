// What happens, as it happens. A stream that breaks is opened again, after a while that grows, and
// goes on where it was. Read with fetch: an EventSource could not send a key.

import { credentials } from "./api.js";

const SILENCE_MS = 40_000; // the server says something every 15 s
const WAIT_MS = [500, 1000, 2000, 4000, 8000, 15_000];

/** `onevent(event)`, `onopen(again)` and `onstate("live" | "connecting" | "offline" | "locked")`. */
export class Live {
  constructor({ onevent, onopen, onstate }) {
    Object.assign(this, { onevent, onopen, onstate });
    this.last = null;
    this.failures = 0;
    this.opened = false;
    this.abort = null;
    this.wake = null;
    addEventListener("online", () => this.wake?.());
    // A browser lets a page have six connections: one that nobody looks at gives its own back.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.abort?.abort() : this.wake?.()));
  }

  /** Listens until the page goes; a new key is used from the next connection on. */
  async run() {
    for (;;) {
      if (document.hidden) await this.pause(null);
      const state = await this.listen();
      if (document.hidden) continue;
      if (state !== "ended") this.failures += 1;
      this.onstate(state === "locked" ? "locked" : this.failures > 1 || !navigator.onLine ? "offline" : "connecting");
      await this.pause(state === "locked" ? null : WAIT_MS[Math.min(this.failures, WAIT_MS.length - 1)]);
    }
  }

  /** Connects at once, with the key as it is now. */
  restart() {
    this.last = null;
    this.abort?.abort();
    this.wake?.();
  }

  pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = milliseconds === null ? null : setTimeout(resolve, milliseconds * (0.75 + Math.random() / 2));
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async listen() {
    this.abort = new AbortController();
    const headers = { accept: "text/event-stream", ...credentials() };
    if (this.last !== null) headers["last-event-id"] = this.last;
    let watchdog = null;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => this.abort.abort(), SILENCE_MS);
    };
    try {
      alive();
      const response = await fetch("events", { headers, signal: this.abort.signal, cache: "no-store" });
      if (response.status === 401) return "locked";
      if (!response.ok) return "failed";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      this.failures = 0;
      this.onstate("live");
      this.onopen(this.opened);
      this.opened = true;
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return "ended";
        alive();
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        blocks.forEach((block) => this.told(block));
      }
    } catch {
      return "failed";
    } finally {
      clearTimeout(watchdog);
    }
  }

  told(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const [, name, value] = /^(\w+): ?(.*)$/s.exec(line) ?? [];
      if (name) fields[name] = value;
    }
    if (fields.id) this.last = fields.id;
    if (fields.event === "lost") this.onopen(true);
    else if (fields.data) this.onevent(JSON.parse(fields.data));
  }
}
