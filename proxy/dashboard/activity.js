// The log of a conversation in sentences, newest first.

import { el, put } from "./dom.js";
import { CAUSE, count, dateAndTime, full, KIND, messagesOf } from "./words.js";

const FIRST = 60;

const SENTENCES = {
  request: (event) => {
    const size = event.tokens_exact ? `${full(event.tokens)} tokens` : `at most ${full(event.tokens ?? 0)} tokens`;
    const before = event.tokens_before !== null && event.tokens_before !== event.tokens ? ` of ${full(event.tokens_before)} sent` : "";
    const how = event.broke ? "broke" : event.completed === false ? "did not end" : event.status >= 400 ? `was refused (${event.status})` : "was answered";
    return `A chat with ${count(event.messages, "message")} ${how}: ${size}${before}`;
  },
  compaction_start: (event) => `Compaction of ${messagesOf(event.start, event.end)} began: ${CAUSE[event.cause] ?? event.cause}`,
  summary: (event) => {
    const calls = event.calls ?? [];
    const seconds = calls.reduce((sum, call) => sum + call.seconds, 0).toFixed(1);
    const by = [...new Set(calls.map((call) => call.model))].join(", ");
    if (event.accepted) return `${by} wrote a summary in ${seconds} s`;
    return `No usable summary after ${count(calls.length, "call")}${event.reason ? `: ${event.reason.replaceAll("-", " ")}` : ""}`;
  },
  replacement: (event) => replaced(event),
  prune: (event) => replaced(event),
  offload: (event) => replaced(event),
  compaction_end: (event) =>
    event.error ? `Compaction ended without a result: ${event.error.replaceAll("_", " ")}` : `Compaction of ${messagesOf(event.start, event.end)} ended`,
  overflow: (event) => `The provider said that the prompt does not fit (${event.refusal.replaceAll("_", " ")})`,
  replay: () => "The request was sent again after room was made",
  revoke: (event) => `${KIND[event.replacement] ?? event.replacement} of ${messagesOf(event.start, event.end)} was revoked`,
  warning: (event) => `Warning: ${event.what.replaceAll("_", " ")}`,
};

function replaced(event) {
  const saved = event.tokens_before - event.tokens_after;
  const what = `${KIND[event.replacement] ?? event.replacement} of ${messagesOf(event.start, event.end)}`;
  return `${what}: ${full(event.tokens_before)} tokens became ${full(event.tokens_after)}, ${full(saved)} saved`;
}

/** One event in words; whatever is not known yet keeps its own name. */
export function sentenceOf(event) {
  try {
    return SENTENCES[event.kind]?.(event) ?? event.kind.replaceAll("_", " ");
  } catch {
    return event.kind.replaceAll("_", " ");
  }
}

/** Fills `place`; `state.shown` says how many are looked at. */
export function drawActivity(place, events, state) {
  const shown = (state.shown ??= FIRST);
  const newest = events.slice(-shown).reverse();
  const items = newest.map((event) =>
    el(
      "li",
      { class: `event ${event.kind}${event.error || event.status >= 400 ? " bad" : ""}` },
      el("time", { class: "muted", datetime: new Date(event.time * 1000).toISOString(), text: dateAndTime(event.time) }),
      el("span", { text: sentenceOf(event) }),
    ),
  );
  const rest = events.length - newest.length;
  put(
    place,
    events.length ? el("ol", { class: "events" }, ...items) : el("p", { class: "muted", text: "Nothing is in the log for this conversation." }),
    rest > 0
      ? el("button", {
          type: "button",
          class: "more",
          text: `Show ${full(Math.min(rest, FIRST * 3))} earlier`,
          onclick: () => {
            state.shown += FIRST * 3;
            drawActivity(place, events, state);
          },
        })
      : null,
  );
}
