// The original beside the surface of one generation: what the client sent on the left, what the
// model saw instead on the right, what was replaced marked in both.

import { el, put } from "./dom.js";
import * as api from "./api.js";
import { attempt } from "./dialogs.js";
import { card, editedPair } from "./messages.js";
import { count, errorWords, full, KIND, messagesOf, short } from "./words.js";

const ITEMS = 60;
const LOG_PAGE = 200;
const FIRST_REPLACED = 6;
const MORE_REPLACED = 30;
const KIND_WORDS = { prune: "shortened", offload: "images taken out", kept: "kept word for word", merged: "joined" };

/** The logged messages, read a page at a time, each page once. */
class Originals {
  constructor(one) {
    this.one = one;
    this.pages = new Map();
  }

  page(number) {
    if (!this.pages.has(number)) this.pages.set(number, api.log(this.one, { after: number * LOG_PAGE, limit: LOG_PAGE }));
    return this.pages.get(number);
  }

  async range(start, end) {
    const found = [];
    for (let page = Math.floor(start / LOG_PAGE); page * LOG_PAGE < end; page += 1) {
      found.push(...(await this.page(page)).messages.filter((each) => each.position >= start && each.position < end));
    }
    return found;
  }
}

/** Surface items that stand for the same stretch belong together. */
function rowsOf(items) {
  const rows = [];
  for (const item of items) {
    const replaced = item.position === null || item.kind === "kept";
    const last = rows.at(-1);
    if (replaced && last?.replaced && last.start === item.start && last.end === item.end) last.items.push(item);
    else rows.push({ replaced, start: replaced ? item.start : item.position, end: replaced ? item.end : item.position + 1, items: [item] });
  }
  return rows;
}

export class Compare {
  constructor(one, { onchoose }) {
    this.one = one;
    this.originals = new Originals(one);
    this.choice = el("select", { id: "generation", onchange: () => onchoose(Number(this.choice.value)) });
    this.onlyReplaced = el("input", { type: "checkbox", id: "only-replaced", onchange: () => this.filter() });
    this.figures = el("p", { class: "muted compare-figures" });
    this.body = el("div", { class: "compare-body" });
    this.element = el(
      "div",
      { class: "compare" },
      el(
        "div",
        { class: "compare-tools" },
        el("label", { for: "generation", text: "Generation" }),
        this.choice,
        el("label", { class: "check" }, this.onlyReplaced, el("span", { text: "Only what was replaced" })),
      ),
      this.figures,
      el("div", { class: "compare-heads", "aria-hidden": "true" }, el("span", { text: "Original" }), el("span", { text: "What the model sees" })),
      this.body,
    );
  }

  filter() {
    this.element.classList.toggle("only-replaced", this.onlyReplaced.checked);
  }

  /** What can be chosen; the choice stays. */
  options(steps, generation) {
    this.steps = steps;
    const said = (step) => `${full(step.generation)} · ${KIND[step.kind] ?? step.kind}, ${messagesOf(step.start, step.end)}`;
    put(
      this.choice,
      ...[...steps].reverse().map((step) => el("option", { value: step.generation, text: said(step) })),
      el("option", { value: 0, text: "0 · as the client sent it" }),
    );
    this.choice.value = generation;
  }

  async show(generation) {
    this.generation = generation;
    this.choice.value = generation;
    put(this.body, el("p", { class: "muted loading", text: "Reading the log …" }));
    try {
      const page = await api.surface(this.one, { generation, limit: ITEMS });
      if (this.generation !== generation) return;
      this.figures.textContent =
        `${count(page.message_count, "message")} of the client stand as ${count(page.item_count, "message")} in generation ${full(generation)}.` +
        (page.head.length ? ` ${count(page.head.length, "system message")} before them always ${page.head.length === 1 ? "stays" : "stay"}.` : "");
      put(this.body);
      await this.add(page, generation);
    } catch (error) {
      if (error.name !== "AbortError") put(this.body, el("p", { class: "problem", text: errorWords(error) }));
    }
  }

  async add(page, generation) {
    const rows = await Promise.all(rowsOf(page.items).map((row) => this.row(row)));
    if (this.generation !== generation) return;
    this.body.append(...rows);
    if (page.next === null) return;
    const more = el("button", { type: "button", class: "more" }, `Show the next ${ITEMS}`);
    more.addEventListener("click", async () => {
      more.disabled = true;
      const next = await attempt(() => api.surface(this.one, { generation, limit: ITEMS, after: page.next }));
      more.disabled = false;
      if (!next || this.generation !== generation) return;
      more.remove();
      await attempt(() => this.add(next, generation));
    });
    this.body.append(more);
  }

  async row(row) {
    return row.replaced ? this.replacedRow(row) : this.messageRow(row);
  }

  async messageRow({ start, end, items }) {
    const [item] = items;
    const [original] = await this.originals.range(start, end);
    if (item.kind === "sent" || !original) {
      const same = card(item.message, { position: item.position, tokens: item.tokens });
      return el("div", { class: "pair same" }, same);
    }
    const [left, right] = editedPair(
      original.message,
      item.message,
      { position: original.position, tokens: original.tokens },
      { position: item.position, tokens: item.tokens, tag: KIND_WORDS[item.kind] ?? item.kind },
    );
    return el("div", { class: "pair changed" }, el("div", { class: "side" }, left), el("div", { class: "side" }, right));
  }

  async replacedRow({ start, end, items }) {
    const kept = new Set(items.filter((item) => item.kind === "kept").map((item) => item.position));
    const left = el("div", { class: "side" });
    const kind = items.find((item) => item.position === null)?.kind ?? "summary";
    const tokens = items.reduce((sum, item) => sum + item.tokens, 0);
    let shown = start;
    const more = el("button", { type: "button", class: "more" });
    const grow = async (by) => {
      const upTo = Math.min(end, shown + by);
      const found = await this.originals.range(shown, upTo);
      for (const each of found) {
        const stays = kept.has(each.position);
        more.before(card(each.message, { position: each.position, tokens: each.tokens, state: stays ? "" : "gone", tag: stays ? "kept" : null }));
      }
      shown = upTo;
      more.textContent = `Show ${full(Math.min(MORE_REPLACED, end - shown))} more of ${full(end - shown)}`;
      more.hidden = shown >= end;
    };
    more.addEventListener("click", () => attempt(() => grow(MORE_REPLACED)));
    left.append(
      el("p", { class: "side-head gone-head", text: `${count(end - start - kept.size, "message")} replaced` }),
      more,
    );
    await grow(end - start <= FIRST_REPLACED + 2 ? end - start : FIRST_REPLACED);
    const right = el(
      "div",
      { class: "side stands" },
      el("p", { class: "side-head new-head", text: `${KIND[kind] ?? kind}: ${short(tokens)} tokens stand for ${messagesOf(start, end)}` }),
      ...items.map((item) =>
        card(item.message, {
          position: item.position,
          tokens: item.tokens,
          state: item.position === null ? "fresh" : "",
          tag: item.position === null ? kind : KIND_WORDS.kept,
        }),
      ),
    );
    return el("div", { class: "pair changed replaced" }, left, right);
  }
}
