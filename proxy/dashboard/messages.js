// One message of a conversation, as a card. Its words are hostile until proven otherwise: they are
// text nodes, cut to what can be read, and never anything else.

import { el } from "./dom.js";
import { count, full, short } from "./words.js";

const SHOWN_CHARS = 900;
const SHOWN_LINES = 12;
const PICTURES = /^data:image\/(png|jpeg|gif|webp);base64,/;

/** A message as pieces of text and pictures: [{ text } | { chip } | { picture }]. */
export function piecesOf(message) {
  const pieces = [];
  const content = message.content;
  if (typeof content === "string") pieces.push({ text: content });
  else if (Array.isArray(content)) for (const part of content) pieces.push(pieceOf(part));
  else if (content !== null && content !== undefined) pieces.push({ text: JSON.stringify(content) });
  for (const name of ["reasoning_content", "reasoning"]) {
    if (typeof message[name] === "string" && message[name]) pieces.push({ chip: "reasoning" }, { text: message[name] });
  }
  for (const call of message.tool_calls ?? []) pieces.push(...callPieces(call?.function ?? call?.custom ?? {}));
  if (message.function_call) pieces.push(...callPieces(message.function_call));
  return pieces;
}

function callPieces(called) {
  return [{ chip: `calls ${called.name ?? "a tool"}` }, { text: String(called.arguments ?? called.input ?? "") }];
}

function pieceOf(part) {
  if (typeof part === "string") return { text: part };
  if (typeof part?.text === "string") return { text: part.text };
  const url = part?.image_url?.url ?? part?.image_url;
  if (typeof url === "string" && PICTURES.test(url)) return { picture: url };
  return { chip: `${part?.type ?? "part"}`.replaceAll("_", " ") };
}

/** All its text in one. */
export const textOf = (message) => piecesOf(message).map((piece) => piece.text ?? piece.chip ?? "image").join("\n");

/**
 * What two texts do not have in common: where it starts, and where it ends in each.
 * Never between the halves of a pair.
 */
export function difference(a, b) {
  const least = Math.min(a.length, b.length);
  let start = 0;
  while (start < least && a[start] === b[start]) start += 1;
  if (start && /[\ud800-\udbff]/.test(a[start - 1])) start -= 1;
  let same = 0;
  while (same < least - start && a[a.length - 1 - same] === b[b.length - 1 - same]) same += 1;
  if (same && /[\udc00-\udfff]/.test(a[a.length - same])) same -= 1;
  return { start, endA: a.length - same, endB: b.length - same };
}

/** At most so much of a text, in characters and lines, from its start or its end. */
function cut(text, chars, fromEnd) {
  if (text.length <= chars * 1.2 && text.split("\n", SHOWN_LINES * 2).length <= SHOWN_LINES * 1.5) return text;
  const room = fromEnd ? text.slice(-chars) : text.slice(0, chars);
  const lines = room.split("\n");
  return (fromEnd ? lines.slice(-SHOWN_LINES) : lines.slice(0, SHOWN_LINES)).join("\n");
}

/** Text with `[from, to)` marked; long stretches are cut until somebody asks for all. */
function textBlock(text, marked, kind) {
  const block = el("div", { class: "words", dir: "auto" });
  const parts = marked
    ? [[text.slice(0, marked[0]), false, "end"], [text.slice(...marked), true, "start"], [text.slice(marked[1]), false, "start"]]
    : [[text, false, "start"]];
  const draw = (all) => {
    block.replaceChildren();
    let hidden = 0;
    for (const [part, isMarked, keep] of parts) {
      if (!part) continue;
      const fromEnd = keep === "end";
      let shown = all ? part : cut(part, marked ? SHOWN_CHARS / 2 : SHOWN_CHARS, fromEnd);
      if (shown.length < part.length) {
        hidden += part.length - shown.length;
        shown = fromEnd ? `… ${shown}` : `${shown} …`;
      }
      block.append(isMarked ? el(kind === "gone" ? "del" : "mark", { text: shown }) : shown);
    }
    if (hidden > 0) {
      block.append(el("button", { type: "button", class: "link", onclick: () => draw(true), text: `Show ${short(hidden)} more characters` }));
    }
  };
  draw(false);
  return block;
}

/** `marks`: where text piece n is marked; `kind` "gone" (on the left) or "new" (on the right). */
export function card(message, { position = null, tokens = null, tag = null, state = "", marks = null, kind = "new" } = {}) {
  const role = typeof message.role === "string" ? message.role : "message";
  const body = el("div", { class: "card-body" });
  let index = 0;
  for (const piece of piecesOf(message)) {
    if (piece.text !== undefined) {
      if (piece.text) body.append(textBlock(piece.text, marks?.get(index), kind));
      index += 1;
    } else if (piece.picture) body.append(el("img", { class: "picture", src: piece.picture, alt: "Image of this message", loading: "lazy" }));
    else body.append(el("span", { class: "chip", text: piece.chip }));
  }
  if (!body.childNodes.length) body.append(el("span", { class: "muted", text: "no text" }));
  return el(
    "article",
    { class: `card ${state}`, "data-role": role },
    el(
      "header",
      {},
      el("span", { class: `role role-${/^[a-z]+$/.test(role) ? role : "other"}`, text: role }),
      position === null ? null : el("span", { class: "muted", text: `message ${full(position + 1)}` }),
      tag ? el("span", { class: "tag", text: tag }) : null,
      tokens === null ? null : el("span", { class: "muted card-tokens", title: count(tokens, "token"), text: `${short(tokens)} tok` }),
    ),
    body,
  );
}

/** Cards of one message before and after an edit, with what differs marked in both. */
export function editedPair(before, after, left, right) {
  const texts = (message) => piecesOf(message).filter((piece) => piece.text !== undefined).map((piece) => piece.text);
  const [was, is] = [texts(before), texts(after)];
  const [gone, fresh] = [new Map(), new Map()];
  for (let n = 0; n < Math.max(was.length, is.length); n += 1) {
    const cut = difference(was[n] ?? "", is[n] ?? "");
    if (cut.endA > cut.start) gone.set(n, [cut.start, cut.endA]);
    if (cut.endB > cut.start) fresh.set(n, [cut.start, cut.endB]);
  }
  return [
    card(before, { ...left, marks: gone, kind: "gone", state: "edited" }),
    card(after, { ...right, marks: fresh, kind: "new", state: "edited" }),
  ];
}
