// The page: which part is shown, by the address after #, and what live events set in motion.

import { byId, el, put, throttled } from "./dom.js";
import { key } from "./api.js";
import { ConversationView } from "./conversation.js";
import { askedForKey, toast } from "./dialogs.js";
import { List, keyOf } from "./list.js";
import { Live } from "./live.js";
import { ModelsView } from "./models.js";
import { errorWords } from "./words.js";

const LIST_MS = 900;
const TICK_MS = 30_000;
const STATE_WORDS = { live: "Live", connecting: "Connecting", offline: "Offline", locked: "Key needed" };

const main = byId("main");
const panes = byId("panes");
const list = new List();
let view = null;
let asking = false;
let failed = false;

const refresh = throttled(async () => {
  try {
    await list.refresh();
    failed = false;
    if (view === null) rest();
  } catch (error) {
    failed = true;
    trouble(error);
  }
}, LIST_MS);

async function trouble(error) {
  if (!error.wantsKey) {
    if (!list.loaded && view === null) {
      put(main, el("div", { class: "empty" }, el("h1", { text: "Nothing to show" }), el("p", { text: errorWords(error) })));
    }
    return;
  }
  shown("locked");
  if (!asking) await enterKey();
}

async function enterKey() {
  asking = true;
  const entered = await askedForKey(Boolean(key.get()));
  asking = false;
  if (entered === null) return;
  key.set(entered);
  byId("key-button").dataset.held = String(Boolean(entered));
  live.restart();
  refresh();
  route(true);
}

/** What stands beside the list when nothing is open: how to begin, or what to choose. */
function rest() {
  document.title = "Tidegate";
  panes.dataset.empty = String(list.loaded && !list.shown.size);
  if (list.shown.size) {
    put(main, el("div", { class: "empty" }, el("h1", { text: "Choose a conversation" }), el("p", { text: "Its window, its timeline and what was replaced in it appear here, live." })));
  } else if (list.loaded) put(main, firstSteps());
}

function firstSteps() {
  const base = `${new URL("../v1", location.href).href.replace(/\/$/, "")}`;
  const curl = `curl ${base}/chat/completions -H 'content-type: application/json' \\\n  -d '{"model": "practice", "messages": [{"role": "user", "content": "Which tide is it?"}]}'`;
  return el(
    "div",
    { class: "empty start" },
    el("h1", { text: "No conversation yet" }),
    el("p", { text: "Send a chat through Tidegate, and it appears here within a second." }),
    el(
      "ol",
      {},
      el("li", {}, el("p", { text: "Set the base URL of your client to" }), snippet(base)),
      el("li", {}, el("p", { text: "or ask from a shell, with a model that your provider has:" }), snippet(curl)),
      el("li", {}, el("p", { text: "Keep chatting. When a conversation comes near its window, older messages are replaced, and you see it here." })),
    ),
  );
}

function snippet(text) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch {
      toast("The browser did not allow copying; select the text instead.", "plain");
    }
  };
  return el("div", { class: "snippet" }, el("pre", { tabindex: 0 }, el("code", { text })), el("button", { type: "button", onclick: copy }, "Copy"));
}

function shown(state) {
  byId("live").dataset.state = state;
  byId("live-words").textContent = STATE_WORDS[state];
  const notice = byId("notice");
  notice.hidden = state !== "offline";
  notice.textContent = state === "offline" ? "Tidegate does not answer. What you see may be out of date; trying again by itself." : "";
}

/** `force` draws the place anew, also when it is the one that is open. */
async function route(force = false) {
  const left = view instanceof ConversationView;
  const [place, ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const models = place === "models";
  for (const [id, here] of [["to-conversations", !models], ["to-models", models]]) {
    if (here) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  const onchange = (error) => (error ? trouble(error) : refresh());
  if (place === "c" && parts[1]) {
    const [tenant, id, tab, generation] = parts;
    const one = { tenant, id };
    panes.dataset.view = "conversation";
    panes.dataset.empty = "false";
    list.choose(keyOf(one));
    if (force || !(view instanceof ConversationView) || keyOf(view.key) !== keyOf(one)) {
      leave();
      view = new ConversationView(main, one, { onchange });
      scrollTo(0, 0);
      main.scrollTop = 0;
    }
    // On a phone the list has gone, and the focus with it.
    if (!byId("list-pane").offsetParent && !main.contains(document.activeElement)) main.focus({ preventScroll: true });
    await view.open(tab, /^\d{1,9}$/.test(generation ?? "") ? Number(generation) : null);
    if (view instanceof ConversationView) list.choose(keyOf(view.key));
  } else {
    leave();
    panes.dataset.view = models ? "models" : "list";
    if (left && !models) list.element.querySelector("[aria-current]")?.focus();
    list.choose(null);
    if (models) await (view = new ModelsView(main, { onchange })).open();
    else rest();
  }
}

function leave() {
  view?.close();
  view = null;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const live = new Live({
  onstate: shown,
  onopen: (again) => {
    // What came between the first look and now is not told by the stream.
    if (again || failed || !list.loaded) refresh();
    else setTimeout(refresh, 0);
    if (again) view?.refresh?.();
  },
  onevent: (event) => {
    refresh();
    if (view instanceof ConversationView && view.key.id === event.conversation_id) view.heard(event);
  },
});

addEventListener("hashchange", () => route());
byId("key-button").addEventListener("click", enterKey);
byId("key-button").dataset.held = String(Boolean(key.get()));
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("keydown", (event) => {
  const open = document.querySelector("dialog[open]");
  if (event.key !== "Escape" || open || event.defaultPrevented || !(view instanceof ConversationView)) return;
  if (document.activeElement?.getAttribute("role") === "slider") return;
  location.hash = "#/";
});
setInterval(() => list.tick(), TICK_MS);
refresh();
route();
live.run();
