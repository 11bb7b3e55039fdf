/** The tool calls of one reply, as fields. */

import { el } from "./dom.js";
import { inputOf, isJson, nameOf } from "./messages.js";

/** @typedef {import("./messages.js").Call} Call */

export class Calls {
  /** @param {readonly Call[]} calls */
  constructor(calls) {
    this.list = el("ul", { className: "calls", "aria-label": "Tool calls" });
    const add = el("button", { type: "button", className: "quiet small", textContent: "Add a tool call" });
    this.place = el("div", { className: "calls-place" }, this.list, add);
    /** @type {WeakMap<Element, () => Call>} */
    this.read = new WeakMap();
    calls.forEach((call) => this.add(call));
    add.addEventListener("click", () => {
      const id = `call_${this.list.children.length + 1}`;
      this.add({ id, type: "function", function: { name: "", arguments: "{}" } });
      this.list.lastElementChild.querySelector("input").focus();
    });
    this.settle();
  }

  /** @returns {Call[]} */
  get all() {
    return [...this.list.children].map((item) => this.read.get(item)());
  }

  /** @param {Call} call */
  add(call) {
    const name = el("input", { value: nameOf(call), spellcheck: false, className: "mono" });
    const id = el("input", { value: call.id, spellcheck: false, className: "mono" });
    const input = el("textarea", { value: inputOf(call), rows: 1, spellcheck: false, className: "mono" });
    const problem = el("span", { className: "note bad", textContent: "is no JSON, which functions take", hidden: true });
    const remove = el("button", { type: "button", className: "remove", textContent: "×" });
    remove.setAttribute("aria-label", "Remove this tool call");
    const what = call.type === "custom" ? "Input" : "Arguments";
    const item = el(
      "li",
      { className: "call" },
      el("label", {}, "Tool ", name),
      el("label", {}, "id ", id),
      remove,
      el("label", { className: "whole" }, `${what} `, problem, input),
    );
    const check = () => {
      problem.hidden = call.type === "custom" || isJson(input.value);
      input.setAttribute("aria-invalid", String(!problem.hidden));
    };
    input.addEventListener("input", check);
    check();
    remove.addEventListener("click", () => {
      item.remove();
      this.settle();
      this.place.dispatchEvent(new Event("input", { bubbles: true }));
    });
    this.read.set(item, () =>
      call.type === "custom"
        ? { id: id.value, type: "custom", custom: { name: name.value, input: input.value } }
        : { id: id.value, type: "function", function: { name: name.value, arguments: input.value } },
    );
    this.list.append(item);
    this.settle();
  }

  /** A list without an entry is none. */
  settle() {
    this.list.hidden = !this.list.children.length;
  }
}
