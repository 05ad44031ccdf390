// What was replaced, newest first: what each saved as a small picture, and buttons to look and revoke.

import { el, put, svg } from "./dom.js";
import { full, KIND, messagesOf, short } from "./words.js";

function savingPicture(saved, most) {
  const width = most > 0 ? Math.max((saved / most) * 100, 2) : 0;
  return svg(
    "svg",
    { class: "saving", width: "100%", height: 8, role: "img", "aria-label": `saved ${full(saved)} tokens` },
    svg("rect", { class: "track", width: "100%", height: 8, rx: 4 }),
    svg("rect", { class: "fill", width: `${width}%`, height: 8, rx: 4 }),
  );
}

/** Fills `place`; `oncompare(generation)` and `onrevoke(step)` for the buttons. */
export function drawReplacements(place, { steps, savings, busy, oncompare, onrevoke }) {
  if (!steps.length) {
    put(place, el("p", { class: "muted", text: "Nothing was replaced so far: the model sees every message as the client sent it." }));
    return;
  }
  const most = Math.max(0, ...steps.map((step) => savings.get(step.checkpoint_id)?.saved ?? 0));
  const items = [...steps].reverse().map((step) => {
    const saved = savings.get(step.checkpoint_id)?.saved;
    const revoking = step.kind === "revoke";
    const what = `${KIND[step.kind] ?? step.kind} of ${messagesOf(step.start, step.end)}`;
    const shown = !revoking && saved !== undefined;
    return el(
      "li",
      { class: `step ${step.kind}${step.revoked_by ? " revoked" : ""}`, "data-generation": step.generation },
      el("span", { class: "step-number", title: `Generation ${step.generation}`, text: full(step.generation) }),
      el(
        "div",
        { class: "step-words" },
        el("strong", { text: what }),
        step.revoked_by ? el("span", { class: "tag", text: `revoked in generation ${full(step.revoked_by)}` }) : null,
        shown ? el("span", { class: "step-saving" }, savingPicture(saved, most), el("span", { text: `saved ${short(saved)}` })) : null,
      ),
      el(
        "div",
        { class: "step-actions" },
        el("button", { type: "button", onclick: () => oncompare(step.generation), "aria-label": `Compare generation ${step.generation} with the original` }, "Compare"),
        revoking || step.revoked_by
          ? null
          : el(
              "button",
              { type: "button", class: "quiet danger-text", disabled: busy, onclick: () => onrevoke(step), "aria-label": `Revoke generation ${step.generation}` },
              "Revoke",
            ),
      ),
    );
  });
  put(place, el("ol", { class: "steps", reversed: true }, ...items));
}
