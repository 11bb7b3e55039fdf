/** Lists of texts that can be edited: the turns of a history, or candidates. */

import { el } from "./dom.js";

/** @typedef {import("./example.js").Turn} Turn */

const ROLES = { user: "Environment", assistant: "Agent", system: "System" };

/** The history as fields; they are where it lives. */
export class Turns {
  /** @param {HTMLOListElement} list */
  constructor(list) {
    this.list = list;
  }

  /** @returns {Turn[]} */
  get all() {
    return [...this.list.children].map((item) => ({
      role: item.querySelector("select").value,
      content: item.querySelector("textarea").value,
    }));
  }

  /** @param {readonly Turn[]} turns */
  set all(turns) {
    this.list.replaceChildren(...turns.map(turnOf));
  }

  /** @param {...Turn} turns */
  add(...turns) {
    this.list.append(...turns.map(turnOf));
    this.list.scrollTop = this.list.scrollHeight;
  }

  /** One more, for whoever's turn it is, with the cursor in it. */
  addEmpty() {
    const last = this.all.at(-1);
    this.add({ role: last?.role === "user" ? "assistant" : "user", content: "" });
    this.list.lastElementChild.querySelector("textarea").focus();
  }
}

/** Candidates of one's own, as fields. */
export class Texts {
  /** @param {HTMLOListElement} list */
  constructor(list) {
    this.list = list;
  }

  /** @returns {string[]} */
  get all() {
    return [...this.list.querySelectorAll("textarea")].map((field) => field.value);
  }

  /** @param {readonly string[]} texts */
  set all(texts) {
    this.list.replaceChildren(...texts.map(textOf));
  }

  addEmpty() {
    this.list.append(textOf(""));
    this.list.lastElementChild.querySelector("textarea").focus();
  }
}

/** @param {Turn} turn */
function turnOf({ role, content }) {
  const choices = Object.entries(ROLES).map(([value, textContent]) =>
    el("option", { value, textContent, selected: value === role }),
  );
  const speaker = el("select", { className: "speaker", "aria-label": "Who speaks" }, ...choices);
  const item = itemOf("turn", speaker, content, "What is said", "Remove this turn");
  const colour = () => (item.dataset.role = speaker.value);
  speaker.addEventListener("change", colour);
  colour();
  return item;
}

/** @param {string} text */
function textOf(text) {
  const name = el("span", { className: "speaker", textContent: "Candidate" });
  return itemOf("turn", name, text, "Candidate", "Remove this candidate");
}

/**
 * @param {string} className
 * @param {HTMLElement} head
 * @param {string} text
 * @param {string} label
 * @param {string} removing
 */
function itemOf(className, head, text, label, removing) {
  const remove = el("button", { type: "button", className: "remove", textContent: "×" });
  remove.setAttribute("aria-label", removing);
  const field = el("textarea", { value: text, rows: 2, spellcheck: false, "aria-label": label });
  const item = el("li", { className }, el("div", { className: "turn-head" }, head, remove), field);
  remove.addEventListener("click", () => item.remove());
  return item;
}
