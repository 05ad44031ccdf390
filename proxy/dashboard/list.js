// The list of conversations, newest first, in pages. Rows are changed in place, so that whoever
// stands on one with the keyboard stays there while others move.

import { byId, el, holdTab, put, rove } from "./dom.js";
import * as api from "./api.js";
import { attempt } from "./dialogs.js";
import { bar, caption, figuresOf, stateOf } from "./gauge.js";
import { ago, count, full } from "./words.js";

const PAGE = 50;
const ROW = "a.row";
const NAME_CHARS = 12;

export const keyOf = (one) => `${one.tenant}/${one.id}`;

/** Where a conversation stands in this page's addresses. */
export function addressOf(one, ...rest) {
  return `#/c/${[one.tenant, one.id, ...rest].map((part) => encodeURIComponent(part)).join("/")}`;
}

/** What people call it: the beginning of its first message, else the client's label, else its id. */
export function nameOf(one) {
  if (one.title) return one.title;
  const label = Object.values(one.labels ?? {})[0];
  if (label) return label;
  return /^[0-9a-f]{32}$/.test(one.id) ? `Conversation ${one.id.slice(0, NAME_CHARS)}` : one.id;
}

function words(one) {
  const parts = [one.model, count(one.message_count, "message")];
  if (one.generation) parts.push(`generation ${full(one.generation)}`);
  return parts.join(" · ");
}

export class List {
  constructor() {
    this.shown = new Map(); // key -> { one, row }
    this.next = null;
    this.current = null;
    this.loaded = false;
    this.element = byId("conversations");
    this.more = byId("older");
    rove(this.element, ROW);
    this.more.addEventListener("click", () => attempt(() => this.older()));
  }

  /** Reads the newest page again; rows of older pages stay. */
  async refresh() {
    const page = await api.conversations(null, PAGE);
    const fresh = new Map(page.conversations.map((one) => [keyOf(one), one]));
    const paged = this.shown.size > PAGE && page.next !== null;
    const kept = paged ? [...this.shown.values()].map((entry) => entry.one).filter((one) => !fresh.has(keyOf(one))) : [];
    if (!paged) this.next = page.next;
    this.loaded = true;
    this.show([...fresh.values(), ...kept]);
  }

  async older() {
    this.more.disabled = true;
    try {
      const first = this.shown.size;
      const page = await api.conversations(this.next, PAGE);
      this.next = page.next;
      const old = [...this.shown.values()].map((entry) => entry.one);
      const known = new Set(page.conversations.map(keyOf));
      this.show([...old.filter((one) => !known.has(keyOf(one))), ...page.conversations]);
      this.element.querySelectorAll(ROW)[first]?.focus();
    } finally {
      this.more.disabled = false;
    }
  }

  show(ones) {
    ones.sort((a, b) => b.seen_at - a.seen_at);
    const before = this.shown;
    this.shown = new Map();
    for (const one of ones) {
      const key = keyOf(one);
      const entry = before.get(key) ?? { row: this.row() };
      entry.one = one;
      this.draw(entry);
      this.shown.set(key, entry);
    }
    this.order();
    byId("list-count").textContent = this.next === null ? full(this.shown.size) : `newest ${full(this.shown.size)}`;
    this.more.hidden = this.next === null;
    this.choose(this.current);
  }

  /** Puts the rows in order, moving only those that must move: a moved one loses its focus. */
  order() {
    const wanted = [...this.shown.values()].map((entry) => entry.row);
    const keep = new Set(wanted);
    for (const row of [...this.element.children]) if (!keep.has(row)) row.remove();
    const focused = document.activeElement;
    wanted.forEach((row, at) => {
      if (this.element.children[at] !== row) this.element.insertBefore(row, this.element.children[at] ?? null);
    });
    if (focused !== document.activeElement && this.element.contains(focused)) focused.focus({ preventScroll: true });
  }

  row() {
    return el("li", {}, el("a", { class: "row", tabindex: -1 }));
  }

  draw({ one, row }) {
    const link = row.firstElementChild;
    const figures = figuresOf(one);
    const said = JSON.stringify([one, ago(one.seen_at)]);
    if (link.said === said) return;
    link.said = said;
    link.setAttribute("href", addressOf(one));
    link.dataset.state = stateOf(figures);
    put(
      link,
      el(
        "span",
        { class: "row-head" },
        el("span", { class: "row-name", text: nameOf(one) }),
        one.in_flight
          ? el("span", { class: "running", text: "running" })
          : el("span", { class: "muted row-time", text: ago(one.seen_at) }),
      ),
      el("span", { class: "row-words muted", text: words(one) }),
      bar(figures),
      el("span", { class: "row-figures", text: caption(figures) }),
    );
  }

  /** Marks the conversation that is open. */
  choose(key) {
    this.current = key;
    let chosen = null;
    for (const [each, { row }] of this.shown) {
      const link = row.firstElementChild;
      if (each === key) {
        link.setAttribute("aria-current", "page");
        chosen = link;
      } else link.removeAttribute("aria-current");
    }
    holdTab(this.element, ROW, this.element.contains(document.activeElement) ? document.activeElement : chosen);
  }

  /** "2 min ago" grows old by itself. */
  tick() {
    for (const entry of this.shown.values()) this.draw(entry);
  }
}
