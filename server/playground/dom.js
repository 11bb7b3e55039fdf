/**
 * Elements out of values. Strings become text, never markup: what a model says may be anything.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * The element of an id that index.html has.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html has no #${id}`);
  return found;
}

/** Puts a template's content wherever the page names it, so that parts share what they say. */
export function fillFromTemplates() {
  for (const place of document.querySelectorAll("[data-template]")) {
    place.replaceWith(byId(place.dataset.template).content.cloneNode(true));
  }
}

/**
 * A new element. Properties are those of the DOM (`className`, `htmlFor`), or attributes where
 * they have a hyphen (`aria-label`); children that are null are left out.
 * @param {string} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string | null)} children
 * @returns {any}
 */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) made.setAttribute(name, String(value));
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/**
 * A new element of a drawing.
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Node | string)} children
 */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/**
 * Shows an element with other content, or hides it where there is none.
 * @param {HTMLElement} element
 * @param {...(Node | string)} content
 */
export function show(element, ...content) {
  element.replaceChildren(...content);
  element.hidden = content.length === 0;
}

/**
 * Puts other choices into a select and keeps what was chosen, if it is still there.
 * @param {HTMLSelectElement} select
 * @param {[value: string, label: string][]} choices
 */
export function offer(select, choices) {
  const before = select.value;
  select.replaceChildren(...choices.map(([value, textContent]) => el("option", { value, textContent })));
  if (choices.some(([value]) => value === before)) select.value = before;
}

/**
 * "1 step", "2 steps".
 * @param {number} count
 * @param {string} what
 */
export function counted(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}
