// Small helpers to build and update elements. Text is always set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name === "className" ? "class" : name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** An HTML element: h("p", {class: "soft"}, "text", child, ...). */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Set the text of an element if it has changed. */
export function text(element, value) {
  const wanted = String(value ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Make the children of a container those of the items, in their order. An element stays with its key, and with the focus. */
export function keyed(container, items, keyOf, create, update) {
  const known = (container.known ??= new Map());
  const wanted = new Set();
  let place = container.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    wanted.add(key);
    let element = known.get(key);
    if (!element) {
      element = create(item);
      known.set(key, element);
    }
    update?.(element, item);
    if (element === place) place = place.nextElementSibling;
    else container.insertBefore(element, place);
  }
  for (const [key, element] of known) {
    if (!wanted.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
}

/** Show a message at the corner for a while. */
export function note(message, kind = "") {
  const element = h("div", { class: `note ${kind}` }, message);
  document.getElementById("notes").append(element);
  setTimeout(() => element.remove(), kind === "bad" ? 9000 : 4000);
}
