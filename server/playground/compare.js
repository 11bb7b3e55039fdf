/** A second Q model on the same candidates, beside the first. */

import { agreementOf } from "./candidates.js";
import { el } from "./dom.js";
import { textOf } from "./messages.js";
import { postScore } from "./server.js";

/**
 * @typedef {import("./candidates.js").Candidate} Candidate
 * @typedef {import("./episode.js").Second} Second
 * @typedef {import("./messages.js").Turn} Turn
 */

export class Compare {
  /** @param {HTMLFormElement} form with the field `compare` */
  constructor(form) {
    this.field = form.elements.namedItem("compare");
  }

  /**
   * Q of the candidates by the second model; null if none was picked.
   * @param {readonly Turn[]} messages
   * @param {readonly Turn[]} replies equal ones are asked about once
   * @param {AbortSignal} [signal]
   * @returns {Promise<Second | null>}
   */
  async scoreAlike(messages, replies, signal) {
    const qModel = this.field.value;
    if (!qModel) return null;
    const byText = new Map(replies.map((reply) => [textOf(reply), reply]));
    const body = { messages, candidates: [...byText.values()], q_model: qModel };
    const answer = await postScore(body, signal);
    const texts = [...byText.keys()];
    return {
      name: `${answer.q_model}@${answer.q_model_version}`,
      judge: Boolean(answer.judge),
      qs: answer.scores.map(({ index, q_value: q }) => [texts[index], q]),
    };
  }
}

/**
 * How far two models agree, in words; nothing without a second one.
 * @param {Candidate[]} candidates
 * @param {string} first name of the first model
 * @param {Second | null} second
 */
export function comparisonOf(candidates, first, second) {
  if (!second) return [];
  const found = agreementOf(candidates, new Map(second.qs));
  const named = el("p", {}, el("strong", { textContent: "A" }), ` ${first} · `, el("strong", { textContent: "B" }));
  named.append(` ${second.name}${second.judge ? " (a judge)" : ""}; each has a scale of its own.`);
  if (!found) return [named];
  const choice = found.sameBest ? "Both prefer the same candidate" : "They prefer different candidates";
  const order = found.pairs ? `, and they order ${found.agreed} of ${found.pairs} pairs alike.` : ".";
  return [named, el("p", { className: "note", textContent: choice + order })];
}
