// Makes elements. Text becomes text and nothing else: no string is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element; `on...` properties are listeners, `text` its text, all else attributes. */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same in SVG. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export const byId = (id) => document.getElementById(id);

/** Replaces what an element holds. */
export function put(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

/**
 * Arrow keys move the focus between the items of a group, of which one takes the Tab key.
 * `onmove` hears of the item that got the focus.
 */
export function rove(group, selector, { horizontal = false, onmove = null } = {}) {
  const forward = horizontal ? "ArrowRight" : "ArrowDown";
  const back = horizontal ? "ArrowLeft" : "ArrowUp";
  group.addEventListener("keydown", (event) => {
    const items = [...group.querySelectorAll(selector)];
    const at = items.indexOf(document.activeElement);
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const to = { [forward]: at + 1, [back]: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined || !items[to]) return;
    event.preventDefault();
    items[to].focus();
    onmove?.(items[to]);
  });
  group.addEventListener("focusin", (event) => {
    if (event.target.matches(selector)) holdTab(group, selector, event.target);
  });
}

/** Lets one item of a roving group be reached by Tab: `wanted`, else the first. */
export function holdTab(group, selector, wanted = null) {
  const items = [...group.querySelectorAll(selector)];
  const holder = items.includes(wanted) ? wanted : (items.find((item) => item.tabIndex === 0) ?? items[0]);
  for (const item of items) item.tabIndex = item === holder ? 0 : -1;
}

/** Calls `work` at once, then at most every `milliseconds`; the last call is never lost. */
export function throttled(work, milliseconds) {
  let timer = null;
  let again = false;
  const run = async () => {
    again = false;
    timer = setTimeout(() => {
      timer = null;
      if (again) run();
    }, milliseconds);
    await work();
  };
  return () => {
    if (timer === null) run();
    else again = true;
  };
}
