// What holds for each model: its window as a picture of its budget, and who said so.

import { el, put, svg } from "./dom.js";
import * as api from "./api.js";
import { attempt, confirmed, toast } from "./dialogs.js";
import { count, errorWords, full, short, sourceWords } from "./words.js";

/** W cut into what is kept, what may fill up, what is over the trigger, and what is reserved. */
function partsOf(model) {
  const { window, trigger, retain, output_reserve: output, headroom } = model;
  if (window === null || !model.valid || trigger === null) return [];
  const reserved = Math.min(output ?? 0, window);
  const kept = Math.min(retain ?? 0, trigger);
  const free = Math.min(headroom ?? 0, Math.max(0, window - reserved - trigger));
  return [
    ["retain", "R, kept word for word", kept],
    ["room", "room until compaction", trigger - kept],
    ["over", "over the trigger", Math.max(0, window - reserved - trigger - free)],
    ["headroom", "B, headroom", free],
    ["output", "O, output reserve", reserved],
  ].filter(([, , tokens]) => tokens > 0);
}

function picture(model, parts) {
  const { window, trigger } = model;
  const words = parts.map(([, word, tokens]) => `${word} ${full(tokens)}`).join(", ");
  const drawn = svg("svg", { class: "budget", width: "100%", height: 22, role: "img", "aria-label": `Window of ${full(window)} tokens: ${words}` });
  let x = 0;
  for (const [name, , tokens] of parts) {
    const width = (tokens / window) * 100;
    drawn.append(svg("rect", { class: `part ${name}`, x: `${x}%`, y: 4, width: `${width}%`, height: 14 }));
    x += width;
  }
  drawn.append(svg("rect", { class: "trigger", x: `${(trigger / window) * 100}%`, y: 0, width: 2, height: 22 }));
  return drawn;
}

function fact(term, value, from) {
  return el("div", {}, el("dt", { text: term }), el("dd", {}, value, from ? el("span", { class: "muted", text: ` from ${from}` }) : null));
}

function learnedOf(model, reload) {
  if (!model.learned.length) return null;
  const forget = async () => {
    const yes = await confirmed({
      title: `Forget what was learned of ${model.model}?`,
      lines: ["The limits that the provider's refusals stated are dropped, on every upstream. The next refusal teaches them again."],
      yes: "Forget",
      danger: true,
    });
    if (!yes) return;
    await attempt(async () => {
      const { forgotten } = await api.forgetLearned(model.model);
      toast(`Forgot ${count(forgotten, "fact")} about ${model.model}.`);
      await reload();
    });
  };
  return el(
    "p",
    { class: "learned" },
    `Learned from refusals: ${model.learned.map((each) => `${String(each.kind).replaceAll("_", " ")} ${JSON.stringify(each.value)}`).join(", ")}. `,
    el("button", { type: "button", class: "link", onclick: forget }, "Forget"),
  );
}

function modelCard(model, reload) {
  const parts = partsOf(model);
  const known = model.window !== null;
  return el(
    "article",
    { class: "panel model" },
    el(
      "header",
      { class: "model-head" },
      el("h2", { text: model.model }),
      el("span", { class: "muted", text: `${model.pattern ? "rule of the settings, " : ""}on ${model.upstream}` }),
      el("span", { class: `tag ${model.valid ? "good" : "bad"}`, text: model.valid ? "compacts by itself" : known ? "no valid budget" : "window unknown" }),
    ),
    parts.length ? picture(model, parts) : null,
    parts.length
      ? el("p", { class: "budget-legend" }, ...parts.map(([name, word, tokens]) => el("span", { class: `key part-${name}`, text: `${word} ${short(tokens)}` })))
      : null,
    el(
      "dl",
      { class: "facts" },
      fact("Window W", known ? full(model.window) : "unknown", known ? sourceWords(model.window_source) : null),
      model.input_limit === null ? null : fact("Prompt limit I", full(model.input_limit), sourceWords(model.input_limit_source)),
      fact("Trigger T", model.trigger === null ? "none" : full(model.trigger)),
      fact("Retention R", model.retain === null ? "none" : full(model.retain)),
      fact("Most output", model.max_output === null ? "unknown" : full(model.max_output), model.max_output === null ? null : sourceWords(model.max_output_source)),
    ),
    model.problem ? el("p", { class: "problem", text: `Not compacted under pressure: ${model.problem}` }) : null,
    learnedOf(model, reload),
  );
}

export class ModelsView {
  constructor(place, { onchange }) {
    Object.assign(this, { place, onchange, closed: false });
  }

  close() {
    this.closed = true;
  }

  async open() {
    document.title = "Models · Tidegate";
    try {
      const { models, truncated } = await api.models();
      if (this.closed) return;
      put(
        this.place,
        el("div", { class: "pane-head" }, el("h1", { text: "Models" }), el("p", { class: "muted", text: full(models.length) })),
        el("p", { class: "muted lead", text: "The windows and budgets that hold now: rules of the settings first, then every model that was asked for." }),
        ...(models.length
          ? models.map((model) => modelCard(model, () => this.open()))
          : [el("p", { class: "muted", text: "No model was asked for yet, and the settings name none." })]),
        truncated ? el("p", { class: "hint", text: "There are more; only the first are shown." }) : null,
      );
    } catch (error) {
      if (this.closed) return;
      if (error.wantsKey) this.onchange(error);
      else put(this.place, el("div", { class: "empty" }, el("h1", { text: "The models cannot be shown" }), el("p", { text: errorWords(error) })));
    }
  }

  heard() {}
}
