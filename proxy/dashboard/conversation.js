// One conversation: its gauge, its timeline, what was replaced, the original beside the surface, and
// what happened. Figures follow the live events; what somebody reads or has focused is left alone.

import { el, holdTab, put, rove, throttled } from "./dom.js";
import * as api from "./api.js";
import { drawActivity } from "./activity.js";
import { Chart } from "./chart.js";
import { Compare } from "./compare.js";
import { confirmed, say, toast } from "./dialogs.js";
import { explained, figuresOf } from "./gauge.js";
import { addressOf, nameOf } from "./list.js";
import { drawReplacements } from "./replacements.js";
import { savingsOf, storyOf, totalsOf } from "./turns.js";
import { compactWords, count, dateAndTime, errorWords, full, KIND, messagesOf, short } from "./words.js";

const EVENTS = 1000;
const REFRESH_MS = 700;
const TABS = [["timeline", "Timeline"], ["compare", "Compare"], ["activity", "Activity"]];

export class ConversationView {
  constructor(place, { tenant, id }, { onchange }) {
    Object.assign(this, { place, onchange, key: { tenant, id } });
    this.events = [];
    this.working = false;
    this.closed = false;
    this.drawn = false;
    this.activity = {};
    this.refresh = throttled(() => this.load(), REFRESH_MS);
  }

  close() {
    this.closed = true;
    this.chart?.close();
  }

  /** `tab` and, of a comparison, the generation; null is the newest. */
  async open(tab, generation) {
    this.tab = TABS.some(([name]) => name === tab) ? tab : "timeline";
    this.generation = generation;
    if (this.drawn) return this.showTab();
    put(this.place, el("p", { class: "muted loading", text: "Reading …" }));
    return this.load();
  }

  async load() {
    try {
      const [one, page] = await Promise.all([api.conversation(this.key), api.events(this.key, { newest: true, limit: EVENTS })]);
      if (this.closed) return;
      this.one = one;
      this.key = { tenant: one.tenant, id: one.id };
      this.events = page.events;
      this.draw();
    } catch (error) {
      if (this.closed) return;
      if (error.wantsKey) this.onchange(error);
      else if (!this.drawn) {
        const title = error.code === "conversation_not_found" ? "No such conversation" : "This conversation cannot be shown";
        put(this.place, back(), el("div", { class: "empty" }, el("h1", { text: title }), el("p", { text: errorWords(error) })));
      }
    }
  }

  frame() {
    this.title = el("h1", { class: "conversation-title" });
    this.about = el("p", { class: "muted about" });
    this.id = el("p", { class: "about" }, el("code", { text: this.key.id }));
    this.compactButton = el("button", { type: "button", class: "primary", id: "compact", onclick: () => this.compact() }, "Compact now");
    this.note = el("p", { class: "note", hidden: true });
    this.gauge = el("div", { class: "panel" });
    this.tiles = el("dl", { class: "tiles" });
    this.chart = new Chart({ onmark: (mark) => this.compareMark(mark) });
    this.noTurns = el("p", { class: "muted", text: "No request of this conversation is in the log." });
    this.earlier = el("p", { class: "hint", hidden: true, text: "Only the newest turns are shown." });
    this.steps = el("div");
    this.compare = new Compare(this.key, { onchoose: (generation) => this.go("compare", generation) });
    this.happened = el("div");
    this.panels = {
      timeline: el(
        "div",
        {},
        el("section", { class: "panel", "aria-label": "Tokens per turn" }, el("h2", { text: "Tokens per turn" }), this.tiles, this.chart.element, this.noTurns, this.earlier),
        el("section", { class: "panel", "aria-label": "What was replaced" }, el("h2", { text: "What was replaced" }), this.steps),
      ),
      compare: el("div", { class: "panel" }, this.compare.element),
      activity: el("div", { class: "panel" }, this.happened),
    };
    this.tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Views of this conversation" });
    for (const [name, words] of TABS) {
      this.tabs.append(
        el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, "data-tab": name, onclick: () => this.go(name) }, words),
      );
      const panel = this.panels[name];
      panel.id = `panel-${name}`;
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", `tab-${name}`);
    }
    rove(this.tabs, "[role=tab]", { horizontal: true, onmove: (tab) => tab.click() });
    put(
      this.place,
      back(),
      el("div", { class: "conversation-head" }, el("div", {}, this.title, this.about, this.id), el("div", { class: "head-actions" }, this.compactButton)),
      this.note,
      this.gauge,
      this.tabs,
      ...Object.values(this.panels),
    );
    this.drawn = true;
    this.showTab();
  }

  go(tab, generation = null) {
    const rest = tab === "timeline" ? [] : generation === null ? [tab] : [tab, generation];
    location.hash = addressOf(this.key, ...rest);
  }

  showTab() {
    for (const [name] of TABS) {
      this.panels[name].hidden = name !== this.tab;
      this.tabs.querySelector(`[data-tab=${name}]`).setAttribute("aria-selected", String(name === this.tab));
    }
    holdTab(this.tabs, "[role=tab]", this.tabs.querySelector(`[data-tab=${this.tab}]`));
    if (this.tab === "compare") this.showCompare();
    if (this.tab === "activity") drawActivity(this.happened, this.events, this.activity);
  }

  /** Reads the log only when another generation is looked at, or the newest one grew. */
  showCompare() {
    const newest = this.one.generations.length;
    const generation = Math.min(this.generation ?? newest, newest);
    const read = `${generation}/${this.one.message_count}`;
    if (this.comparedSteps !== newest) {
      this.compare.options(this.one.generations, generation);
      this.comparedSteps = newest;
    }
    if (this.compared === read) return;
    this.compared = read;
    this.compare.show(generation);
  }

  draw() {
    if (!this.drawn) this.frame();
    const { one } = this;
    const story = storyOf(this.events);
    document.title = `${nameOf(one)} · Tidegate`;
    this.title.textContent = nameOf(one);
    this.title.title = nameOf(one);
    put(
      this.about,
      el("span", { text: one.model }),
      ` on ${one.upstream} · ${count(one.message_count, "message")} · generation ${full(one.generation)} · last seen ${dateAndTime(one.seen_at)}`,
    );
    this.note.hidden = !one.scheduled;
    this.note.textContent = "A compaction is scheduled: it is made with this conversation's next chat.";
    put(this.gauge, explained(knownBetter(figuresOf(one), story.turns.at(-1))));
    this.drawTiles(totalsOf(story));
    this.chart.element.hidden = !story.turns.length;
    this.noTurns.hidden = story.turns.length > 0;
    this.earlier.hidden = this.events.length < EVENTS;
    this.chart.show(story);
    this.drawSteps(story);
    if (this.tab === "compare") this.showCompare();
    if (this.tab === "activity") drawActivity(this.happened, this.events, this.activity);
  }

  drawTiles({ client, forwarded, saved, compactions }) {
    const tile = (name, value, title) => el("div", {}, el("dt", { text: name }), el("dd", { text: value, title }));
    const share = client ? Math.round((saved / client) * 100) : 0;
    put(
      this.tiles,
      tile("Sent by the client", short(client), count(client, "token")),
      tile("Forwarded", short(forwarded), count(forwarded, "token")),
      tile("Saved", saved ? `${short(saved)} · ${share}%` : "0", count(saved, "token")),
      tile("Compactions", full(compactions)),
    );
  }

  drawSteps(story) {
    const drawn = JSON.stringify([this.one.generations, story.marks.length, this.working]);
    if (drawn === this.stepsDrawn) return; // focus on its buttons stays
    this.stepsDrawn = drawn;
    drawReplacements(this.steps, {
      steps: this.one.generations,
      savings: savingsOf(story),
      busy: this.working,
      oncompare: (generation) => this.go("compare", generation),
      onrevoke: (step) => this.revoke(step),
    });
  }

  compareMark(mark) {
    const step = this.one.generations.findLast((each) => mark.checkpoints.includes(each.checkpoint_id) && each.kind !== "revoke");
    if (step) this.go("compare", step.generation);
  }

  /** A live event of this conversation. */
  heard(event) {
    if (event.kind === "replacement") say(`Compaction: ${full(event.tokens_before - event.tokens_after)} tokens saved.`);
    this.refresh();
  }

  async work(doing, words) {
    this.working = true;
    this.compactButton.disabled = true;
    this.compactButton.setAttribute("aria-busy", "true");
    this.compactButton.textContent = words;
    try {
      await doing();
    } catch (error) {
      if (error.wantsKey) this.onchange(error);
      else toast(errorWords(error), "error");
    } finally {
      this.working = false;
      this.compactButton.disabled = false;
      this.compactButton.removeAttribute("aria-busy");
      this.compactButton.textContent = "Compact now";
      this.onchange(null);
      if (!this.closed) await this.load();
    }
  }

  async compact() {
    const yes = await confirmed({
      title: "Compact this conversation now?",
      lines: [
        "All but its newest messages become one summary, which a model writes. The originals stay in the log, and the summary can be revoked.",
      ],
      yes: "Compact",
    });
    if (!yes) return;
    await this.work(async () => {
      const result = await api.compact(this.key, {});
      toast(compactWords(result), result.compacted ? "done" : "plain");
    }, "Compacting …");
  }

  async revoke(step) {
    const what = `${(KIND[step.kind] ?? step.kind).toLowerCase()} of ${messagesOf(step.start, step.end)}`;
    const yes = await confirmed({
      title: "Revoke this replacement?",
      lines: [
        `From the next request on the model sees the originals again in place of the ${what}.`,
        "It cannot be brought back; a later compaction makes a new one.",
      ],
      yes: "Revoke",
      danger: true,
    });
    if (!yes) return;
    await this.work(async () => {
      const result = await api.revoke(this.key, step.checkpoint_id);
      toast(`Revoked. The conversation is at generation ${full(result.generation)}; the next request shows the originals.`);
    }, "Revoking …");
  }
}

/** A request that was not counted has the provider's own figure, once its reply has ended. */
function knownBetter(figures, turn) {
  if (figures.exact || !turn || turn.bound || figures.window === null) return figures;
  const percentage = Math.round((turn.forwarded / figures.window) * 1000) / 10;
  return { ...figures, tokens: turn.forwarded, percentage, exact: true };
}

function back() {
  return el("a", { class: "back", href: "#/", text: "‹ All conversations" });
}
