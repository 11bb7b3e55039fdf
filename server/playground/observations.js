/** What the environment answers to the picked action: one field, or one for each tool call. */

import { el } from "./dom.js";
import { callText } from "./messages.js";

/** @typedef {import("./messages.js").Turn} Turn */

const HINT = "nothing yet; for example: You take the apple 1.";

export class Observations {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    /** @type {Turn | null} */
    this.reply = null;
  }

  /**
   * Asks for the answer to another reply; what was typed stays where the number of fields is the same.
   * @param {Turn} reply
   */
  show(reply) {
    const texts = this.fields.map(({ value }) => value);
    this.reply = reply;
    const calls = reply.tool_calls ?? [];
    const labels = calls.length ? calls.map((call) => `Result of ${callText(call)}`) : ["What the environment answers"];
    const fields = labels.map((label, index) =>
      el("textarea", {
        id: index ? `observation-${index + 1}` : "observation",
        rows: 2,
        required: true,
        placeholder: HINT,
        value: texts.length === labels.length ? texts[index] : "",
      }),
    );
    this.place.replaceChildren(
      ...fields.map((field, index) => el("label", { className: "block" }, labels[index], field)),
    );
  }

  /** @returns {HTMLTextAreaElement[]} */
  get fields() {
    return [...this.place.querySelectorAll("textarea")];
  }

  /** @param {string} text that answers, if there is one field */
  fill(text) {
    if (this.fields.length === 1) this.fields[0].value = text;
  }

  clear() {
    for (const field of this.fields) field.value = "";
  }

  /** The answers as turns; those to tool calls name them. */
  get turns() {
    const calls = this.reply?.tool_calls ?? [];
    return this.fields.map(({ value: content }, index) =>
      calls.length ? { role: "tool", content, tool_call_id: calls[index].id } : { role: "user", content },
    );
  }
}
