// The timeline as a picture: tokens per turn as the client sent them and as they were forwarded,
// the trigger, and a mark for every compaction with what it saved.

import { el, put, svg } from "./dom.js";
import { count, full, KIND, short, timeOfDay } from "./words.js";

const HEIGHT = 280;
const EDGE = { top: 34, right: 14, bottom: 26, left: 46 };
const MARK_WORDS = { ...KIND, revoke: "Revoked", overflow: "Overflow", failed: "Failed" };
const LABEL_ROOM = 46;

/** A round step that cuts `most` into about four. */
export function stepFor(most) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? power * 10;
}

export class Chart {
  /** `onmark(mark)` when a mark that has checkpoints is chosen. */
  constructor({ onmark }) {
    this.onmark = onmark;
    this.at = null;
    this.story = { turns: [], marks: [] };
    this.canvas = el("div", { class: "chart-canvas" });
    this.cursor = el("div", {
      class: "chart-cursor",
      role: "slider",
      tabindex: 0,
      "aria-label": "Turn",
      "aria-orientation": "horizontal",
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event),
      onpointerdown: (event) => this.point(event),
      onclick: (event) => this.click(event),
      onpointerleave: () => this.move(null),
    });
    this.readout = el("p", { class: "chart-readout muted" });
    this.element = el(
      "figure",
      { class: "chart" },
      el(
        "figcaption",
        { class: "chart-legend" },
        el("span", { class: "key key-client", text: "sent by the client" }),
        el("span", { class: "key key-forwarded", text: "forwarded to the model" }),
        el("span", { class: "key key-saved", text: "saved" }),
        el("span", { class: "key key-trigger", text: "trigger T" }),
        el("span", { class: "key key-window", text: "window W" }),
      ),
      el("div", { class: "chart-box" }, this.canvas, this.cursor),
      this.readout,
    );
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
  }

  close() {
    this.observer.disconnect();
  }

  show(story) {
    const atEnd = this.at === null || this.at === this.story.turns.length - 1;
    this.story = story;
    if (atEnd) this.at = null;
    this.draw();
  }

  scales(width) {
    const { turns } = this.story;
    const highest = Math.max(1, ...turns.map((turn) => Math.max(turn.client, turn.forwarded)));
    const trigger = turns.at(-1)?.trigger ?? null;
    const window = turns.at(-1)?.window ?? null;
    let most = highest * 1.1;
    if (trigger !== null && trigger <= highest * 2.5) most = Math.max(most, trigger * 1.1);
    if (window !== null && window <= highest * 1.5) most = Math.max(most, window * 1.05);
    const inner = { width: width - EDGE.left - EDGE.right, height: HEIGHT - EDGE.top - EDGE.bottom };
    const gap = turns.length > 1 ? inner.width / (turns.length - 1) : 0;
    return {
      most,
      trigger,
      window,
      gap,
      x: (index) => EDGE.left + (turns.length > 1 ? index * gap : inner.width / 2),
      y: (tokens) => EDGE.top + inner.height * (1 - tokens / most),
    };
  }

  draw() {
    const width = Math.floor(this.canvas.clientWidth);
    const { turns } = this.story;
    if (!width || !turns.length) return;
    const scale = (this.scale = this.scales(width));
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": this.summary() });
    picture.append(...this.grid(scale, width), ...this.areas(scale), ...this.bounds(scale, width), ...this.marks(scale, width));
    this.pointer = svg("g", { class: "pointer", hidden: true });
    picture.append(this.pointer);
    put(this.canvas, picture);
    this.cursor.setAttribute("aria-valuemin", 1);
    this.cursor.setAttribute("aria-valuemax", turns.length);
    this.move(this.at);
  }

  summary() {
    const { turns, marks } = this.story;
    const last = turns.at(-1);
    const saving = marks.filter((mark) => mark.saved > 0);
    return (
      `${count(turns.length, "turn")}. The last one had ${full(last.client)} tokens from the client, of which ` +
      `${full(last.forwarded)} were forwarded. ${count(saving.length, "replacement")} made room.`
    );
  }

  grid({ most, x, y }, width) {
    const parts = [];
    const step = stepFor(most);
    for (let tokens = 0; tokens <= most; tokens += step) {
      parts.push(
        svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(tokens), y2: y(tokens) }),
        svg("text", { class: "tick", x: EDGE.left - 8, y: y(tokens) + 4, "text-anchor": "end" }, short(tokens)),
      );
    }
    const { turns } = this.story;
    const places = turns.length < 3 ? turns.map((_, at) => at) : [0, Math.floor((turns.length - 1) / 2), turns.length - 1];
    places.forEach((at, index) => {
      const anchor = places.length === 1 ? "middle" : ["start", places.length === 2 ? "end" : "middle", "end"][index];
      parts.push(svg("text", { class: "tick", x: x(at), y: HEIGHT - 7, "text-anchor": anchor }, `turn ${full(at + 1)}`));
    });
    return parts;
  }

  areas({ x, y, gap }) {
    const { turns } = this.story;
    const line = (field) => turns.map((turn, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(turn[field]).toFixed(1)}`).join("");
    const back = (field) => turns.map((turn, at) => `L${x(at).toFixed(1)} ${y(turn[field]).toFixed(1)}`).reverse().join("");
    const end = `L${x(turns.length - 1).toFixed(1)} ${y(0).toFixed(1)}L${x(0).toFixed(1)} ${y(0).toFixed(1)}Z`;
    const parts = [
      svg("path", { class: "saved-area", d: `${line("client")}${back("forwarded")}Z` }),
      svg("path", { class: "forwarded-area", d: `${line("forwarded")}${end}` }),
      svg("path", { class: "client-line", d: line("client") }),
      svg("path", { class: "forwarded-line", d: line("forwarded") }),
    ];
    if (turns.length === 1 && turns[0].client > turns[0].forwarded) {
      const [{ client, forwarded }] = turns;
      parts.push(
        svg("line", { class: "saved-line", x1: x(0), x2: x(0), y1: y(client), y2: y(forwarded) }),
        svg("circle", { class: "turn-dot client", cx: x(0), cy: y(client), r: 3 }),
      );
    }
    if (gap > 14 || turns.length === 1) {
      turns.forEach((turn, at) => {
        parts.push(svg("circle", { class: `turn-dot${turn.failed ? " failed" : ""}`, cx: x(at), cy: y(turn.forwarded), r: 3 }));
      });
    }
    return parts;
  }

  // T below its line and on the left, W above its own and on the right: they are often near.
  bounds({ trigger, window, most, y }, width) {
    const parts = [];
    let above = 0;
    const bound = (tokens, name, word, atEnd) => {
      if (tokens === null) return;
      if (tokens > most) {
        const x = width - EDGE.right - above;
        above += 80;
        parts.push(svg("text", { class: `bound-word ${name}`, x, y: EDGE.top - 20, "text-anchor": "end" }, `${word} ${short(tokens)} ↑`));
        return;
      }
      parts.push(
        svg("line", { class: `bound ${name}`, x1: EDGE.left, x2: width - EDGE.right, y1: y(tokens), y2: y(tokens) }),
        svg(
          "text",
          { class: `bound-word ${name}`, x: atEnd ? width - EDGE.right - 4 : EDGE.left + 6, y: y(tokens) + (atEnd ? -5 : 13), "text-anchor": atEnd ? "end" : "start" },
          `${word} ${short(tokens)}`,
        ),
      );
    };
    bound(trigger, "trigger", "T", false);
    bound(window, "window", "W", true);
    return parts;
  }

  marks({ x, y, gap }, width) {
    let free = -Infinity;
    return this.story.marks.map((mark) => {
      const at = Math.min(mark.turn, this.story.turns.length - 1);
      // A mark stands between the turn before it and the one that it made room for.
      const place = mark.turn === 0 || this.story.turns.length === 1 ? x(at) : mark.turn > at ? x(at) : x(at) - gap / 2;
      const group = svg("g", { class: `mark ${mark.kind}` });
      group.append(
        svg("line", { x1: place, x2: place, y1: EDGE.top - 6, y2: y(0) }),
        svg("path", { class: "mark-head", d: `M${place} ${EDGE.top + 2}l-5 -8h10z` }),
      );
      if (mark.saved > 0 && place - free > LABEL_ROOM) {
        free = place;
        const room = Math.min(Math.max(place, EDGE.left + 12), width - EDGE.right - 20);
        group.append(svg("text", { class: "mark-word", x: room, y: EDGE.top - 13, "text-anchor": "middle" }, `−${short(mark.saved)}`));
      }
      mark.place = place;
      return group;
    });
  }

  /** Shows one turn's figures; null is the last one, without the pointer. */
  move(at) {
    const { turns, marks } = this.story;
    if (!turns.length || !this.scale) return;
    this.at = at;
    const index = at ?? turns.length - 1;
    const turn = turns[index];
    const here = marks.filter((mark) => mark.turn === index || (index === turns.length - 1 && mark.turn > index));
    const text = this.words(turn, index, here);
    this.readout.textContent = text;
    this.cursor.setAttribute("aria-valuenow", index + 1);
    this.cursor.setAttribute("aria-valuetext", text);
    this.pointer.toggleAttribute("hidden", at === null);
    put(
      this.pointer,
      svg("line", { x1: this.scale.x(index), x2: this.scale.x(index), y1: EDGE.top, y2: this.scale.y(0) }),
      svg("circle", { class: "on-client", cx: this.scale.x(index), cy: this.scale.y(turn.client), r: 4 }),
      svg("circle", { class: "on-forwarded", cx: this.scale.x(index), cy: this.scale.y(turn.forwarded), r: 4 }),
    );
  }

  words(turn, index, marks) {
    const parts = [`Turn ${full(index + 1)}, ${timeOfDay(turn.time)}`];
    if (turn.client > turn.forwarded) {
      parts.push(`sent ${full(turn.client)}`, `forwarded ${full(turn.forwarded)} (${full(turn.client - turn.forwarded)} saved)`);
    } else parts.push(`${turn.bound ? "at most " : ""}${full(turn.forwarded)} tokens, forwarded as sent`);
    if (turn.failed) parts.push(`the answer was ${turn.status}`);
    for (const mark of marks) parts.push(MARK_WORDS[mark.kind] + (mark.saved ? ` saved ${full(mark.saved)}` : ""));
    if (turn.reason) parts.push(turn.reason.replaceAll("-", " "));
    return parts.join(" · ");
  }

  point(event) {
    if (!this.scale) return;
    const { gap } = this.scale;
    const x = event.clientX - this.cursor.getBoundingClientRect().left - EDGE.left;
    const last = this.story.turns.length - 1;
    this.move(gap ? Math.min(last, Math.max(0, Math.round(x / gap))) : last);
  }

  click(event) {
    const x = event.clientX - this.cursor.getBoundingClientRect().left;
    const near = this.story.marks.filter((mark) => mark.checkpoints.length && Math.abs(mark.place - x) < 10);
    if (near.length) this.onmark(near.at(-1));
  }

  key(event) {
    const last = this.story.turns.length - 1;
    const at = this.at ?? last;
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: last, PageUp: at + 10, PageDown: at - 10 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.move(Math.min(last, Math.max(0, to)));
    } else if (event.key === "Escape") this.move(null);
    else if (event.key === "Enter") {
      const mark = this.story.marks.findLast((each) => each.turn === at && each.checkpoints.length);
      if (mark) this.onmark(mark);
    }
  }
}
