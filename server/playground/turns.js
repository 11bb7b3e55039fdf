/** Lists of messages that can be edited: the turns of a history, or candidates. */

import { Calls } from "./calls.js";
import { el } from "./dom.js";

/** @typedef {import("./messages.js").Turn} Turn */

const ROLES = {
  user: "Environment",
  assistant: "Agent",
  system: "System",
  developer: "Developer",
  tool: "Tool result",
};

/** The history as fields; they are where it lives. */
export class Turns {
  /** @param {HTMLOListElement} list */
  constructor(list) {
    this.list = list;
    /** @type {WeakMap<Element, () => Turn>} */
    this.read = new WeakMap();
  }

  /** @returns {Turn[]} */
  get all() {
    return [...this.list.children].map((item) => this.read.get(item)());
  }

  /** @param {readonly Turn[]} turns */
  set all(turns) {
    this.list.replaceChildren(...turns.map((turn) => this.itemOf(turn)));
  }

  /** @param {...Turn} turns */
  add(...turns) {
    this.list.append(...turns.map((turn) => this.itemOf(turn)));
    this.list.scrollTop = this.list.scrollHeight;
  }

  /** One more, for whoever's turn it is, with the cursor in it. */
  addEmpty() {
    const last = this.all.at(-1);
    const call = last?.tool_calls?.[0];
    const next = last?.role === "assistant" ? "user" : "assistant";
    this.add(call ? { role: "tool", content: "", tool_call_id: call.id } : { role: next, content: "" });
    this.list.lastElementChild.querySelector("textarea").focus();
  }

  /** @param {Turn} turn */
  itemOf(turn) {
    const choices = Object.entries(ROLES).map(([value, textContent]) =>
      el("option", { value, textContent, selected: value === turn.role }),
    );
    const speaker = el("select", { className: "speaker", "aria-label": "Who speaks" }, ...choices);
    const callId = el("input", { value: turn.tool_call_id ?? "", spellcheck: false, className: "mono" });
    const answers = el("label", { className: "answers" }, "answers call ", callId);
    const { item, calls, field } = itemOf(speaker, turn, "What is said", "Remove this turn");
    item.append(answers);
    const settle = () => {
      item.dataset.role = speaker.value;
      answers.hidden = speaker.value !== "tool";
      calls.place.hidden = speaker.value !== "assistant";
    };
    speaker.addEventListener("change", settle);
    settle();
    this.read.set(item, () => {
      if (speaker.value === "assistant") return replyOf(field, calls);
      const said = { role: speaker.value, content: field.value };
      return speaker.value === "tool" && callId.value ? { ...said, tool_call_id: callId.value } : said;
    });
    return item;
  }
}

/** Candidates of one's own, as fields. */
export class Replies {
  /** @param {HTMLOListElement} list */
  constructor(list) {
    this.list = list;
    /** @type {WeakMap<Element, () => Turn>} */
    this.read = new WeakMap();
  }

  /** @returns {Turn[]} */
  get all() {
    return [...this.list.children].map((item) => this.read.get(item)());
  }

  /** @param {readonly string[]} texts */
  set texts(texts) {
    this.list.replaceChildren();
    texts.forEach((text) => this.add(text));
  }

  addEmpty() {
    this.add("");
    this.list.lastElementChild.querySelector("textarea").focus();
  }

  /** @param {string} text */
  add(text) {
    const name = el("span", { className: "speaker", textContent: "Candidate" });
    const turn = { role: "assistant", content: text };
    const { item, calls, field } = itemOf(name, turn, "Candidate", "Remove this candidate");
    this.read.set(item, () => replyOf(field, calls));
    this.list.append(item);
  }
}

/**
 * @param {HTMLTextAreaElement} field
 * @param {Calls} calls
 * @returns {Turn}
 */
function replyOf(field, calls) {
  const { all } = calls;
  if (!all.length) return { role: "assistant", content: field.value };
  return { role: "assistant", content: field.value || null, tool_calls: all };
}

/**
 * @param {HTMLElement} head
 * @param {Turn} turn
 * @param {string} label
 * @param {string} removing
 */
function itemOf(head, turn, label, removing) {
  const remove = el("button", { type: "button", className: "remove", textContent: "×" });
  remove.setAttribute("aria-label", removing);
  const field = el("textarea", { value: turn.content ?? "", rows: 2, spellcheck: false, "aria-label": label });
  const calls = new Calls(turn.tool_calls ?? []);
  const top = el("div", { className: "turn-head" }, head, remove);
  const item = el("li", { className: "turn" }, top, field, calls.place);
  remove.addEventListener("click", () => {
    const list = item.parentElement;
    item.remove();
    list?.dispatchEvent(new Event("input", { bubbles: true }));
  });
  return { item, calls, field };
}
