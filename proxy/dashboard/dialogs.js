// Questions, results and errors: dialogs that Esc closes, and messages that a screen reader hears.

import { byId, el } from "./dom.js";
import { errorWords } from "./words.js";

const SHOWN_MS = 9000;

/** Says how something went. An error stays until it is dismissed. */
export function toast(text, kind = "done") {
  const note = el("div", { class: `toast ${kind}` });
  const close = () => note.remove();
  note.append(
    el("p", { text }),
    el("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: close }, "×"),
  );
  const shown = byId("toasts");
  shown.append(note);
  while (shown.childElementCount > 4) shown.firstElementChild.remove();
  if (kind !== "error") setTimeout(close, SHOWN_MS);
}

/** Does something that somebody asked for; a failure is told, never thrown. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    toast(errorWords(error), "error");
    return undefined;
  }
}

/** Tells a screen reader what the eye sees move. */
export function say(text) {
  byId("said").textContent = text;
}

function open(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.showModal();
  return dialog;
}

function titled(title, ...rest) {
  const id = `dialog-${Math.random().toString(36).slice(2)}`;
  return el("dialog", { "aria-labelledby": id }, el("h2", { id, text: title }), ...rest);
}

/** Whether the question was answered with yes. */
export function confirmed({ title, lines, yes, danger = false }) {
  return new Promise((resolve) => {
    let answer = false;
    const finish = (value) => {
      answer = value;
      dialog.close();
    };
    const dialog = titled(
      title,
      ...lines.map((text) => el("p", { text })),
      el(
        "div",
        { class: "actions" },
        el("button", { type: "button", class: "quiet", autofocus: true, onclick: () => finish(false) }, "Cancel"),
        el("button", { type: "button", class: danger ? "danger" : "primary", onclick: () => finish(true) }, yes),
      ),
    );
    dialog.addEventListener("close", () => resolve(answer));
    open(dialog);
  });
}

/** The key that was entered, "" to go on without one, or null. */
export function askedForKey(present) {
  return new Promise((resolve) => {
    let answer = null;
    const field = el("input", {
      type: "password",
      id: "key-field",
      autocomplete: "off",
      spellcheck: "false",
      placeholder: present ? "A key is in use" : "",
      autofocus: true,
    });
    const finish = (value) => {
      answer = value;
      dialog.close();
    };
    const dialog = titled(
      "Key",
      el("p", {
        text:
          "From this machine no key is needed. From elsewhere, enter the admin key (server.admin_key) to see " +
          "everything, or your own client key to see your conversations.",
      }),
      el(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            if (field.value.trim()) finish(field.value.trim());
          },
        },
        el("label", { for: "key-field", text: "Key" }),
        field,
        el("p", { class: "hint", text: "Kept in this tab until it is closed, and sent to this address only." }),
        el(
          "div",
          { class: "actions" },
          present ? el("button", { type: "button", class: "quiet", onclick: () => finish("") }, "Forget the key") : null,
          el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
          el("button", { type: "submit", class: "primary" }, "Use this key"),
        ),
      ),
    );
    dialog.addEventListener("close", () => resolve(answer));
    open(dialog);
  });
}
