// How full a window is, as a picture: a bar as long as W, a mark at T, and the same in words.

import { el, svg } from "./dom.js";
import { full, short } from "./words.js";

const NEAR = 0.8; // of T: worth a look

/** "calm", "near", "over", or "unknown" where there is nothing to compare with. */
export function stateOf({ tokens, window, trigger, exact }) {
  const bound = trigger ?? window;
  if (tokens === null || bound === null) return "unknown";
  // What was not counted cannot reach the trigger: only that bound of it is known.
  if (!exact) return "calm";
  if (tokens >= bound) return "over";
  return tokens >= bound * NEAR ? "near" : "calm";
}

/** The figures of a listed conversation. */
export function figuresOf(one) {
  return {
    tokens: one.context.token_count ?? null,
    window: one.context.max_context_tokens ?? null,
    trigger: one.trigger_tokens ?? null,
    percentage: one.context.percentage,
    exact: one.tokens_exact,
  };
}

function sentence(figures) {
  const { tokens, window, trigger, percentage, exact } = figures;
  if (tokens === null) return "No request was counted yet";
  const at = `${exact ? "" : "at most "}${full(tokens)} tokens`;
  const of = window === null ? "; the window is not known" : ` of a window of ${full(window)}, ${percentage} percent`;
  return `${at}${of}${trigger === null ? "" : `; compaction starts at ${full(trigger)}`}`;
}

/** The bar alone; `large` for the head of a conversation. */
export function bar(figures, { large = false } = {}) {
  const { tokens, window, trigger, exact } = figures;
  const scale = window ?? Math.max(trigger ?? 0, tokens ?? 0) * 1.25;
  const part = (value) => (scale > 0 ? Math.min(100, (value / scale) * 100) : 0);
  const height = large ? 14 : 8;
  const picture = svg("svg", {
    class: `gauge ${stateOf(figures)}${exact ? "" : " bound"}${large ? " large" : ""}`,
    width: "100%",
    height: height + 6,
    role: "img",
    "aria-label": sentence(figures),
  });
  picture.append(svg("rect", { class: "track", x: 0, y: 3, width: "100%", height, rx: height / 2 }));
  if (trigger !== null && trigger < scale) {
    picture.append(
      svg("rect", { class: "beyond", x: `${part(trigger)}%`, y: 3, width: `${100 - part(trigger)}%`, height, rx: 2 }),
    );
  }
  if (tokens) {
    const width = `${Math.max(part(tokens), 1.5)}%`;
    picture.append(svg("rect", { class: "fill", x: 0, y: 3, width, height, rx: height / 2 }));
  }
  if (trigger !== null && trigger <= scale) {
    picture.append(svg("rect", { class: "trigger", x: `${part(trigger)}%`, y: 0, width: 2, height: height + 6 }));
  }
  return picture;
}

/** What stands beside the bar, short. */
export function caption(figures) {
  const { tokens, window, percentage, exact } = figures;
  if (tokens === null) return "not counted yet";
  const at = `${exact ? "" : "≤ "}${short(tokens)}`;
  return window === null ? `${at} of unknown` : `${at} of ${short(window)} · ${exact ? "" : "≤ "}${percentage}%`;
}

/** The large gauge with what its parts mean. */
export function explained(figures) {
  const { trigger, window } = figures;
  return el(
    "div",
    { class: "gauge-block", "data-tokens": figures.tokens ?? "" },
    el(
      "p",
      { class: "gauge-figure" },
      el("strong", { text: figures.tokens === null ? "–" : `${figures.exact ? "" : "≤ "}${full(figures.tokens)}` }),
      " tokens in the window",
      window === null ? null : el("span", { class: "muted", text: ` · ${figures.exact ? "" : "≤ "}${figures.percentage}%` }),
    ),
    bar(figures, { large: true }),
    el(
      "p",
      { class: "gauge-legend muted" },
      el("span", { class: "legend-trigger", text: trigger === null ? "no trigger: the budget is not known" : `compacts at ${full(trigger)}` }),
      el("span", { text: window === null ? "window unknown" : `window ${full(window)}` }),
    ),
  );
}
