/** The answer of /v1/act in words. */

import { counted, el } from "./dom.js";
import { textOf } from "./messages.js";

/** @typedef {import("./candidates.js").Candidate} Candidate */

const REASONS = {
  highest_q: "it has the highest Q",
  tied_highest_q: "it came first among those of the highest Q",
  highest_posterior: "it has the highest posterior, by its Q and the policy's own preference",
  rules: "the rules before the Q model left no other",
  likeliest: "its Q is that of all others, and it was drawn most often",
  only_candidate: "there was no other",
  unanimous: "all candidates are the same",
  explored: "it was taken at random, so that its outcome is seen",
  fallback: "no Q could be given and it was drawn most often",
};

/** @returns {Candidate[]} */
export function candidatesOf(answer) {
  return answer.candidates.map(({ message, q_value: q, prior, posterior }) => ({
    text: textOf(message),
    q,
    shares: posterior === null ? null : { prior, posterior },
  }));
}

/** @returns {HTMLElement[]} */
export function notesOf(answer) {
  const model = `${answer.q_model}@${answer.q_model_version}`;
  const guided = answer.guided
    ? el("p", {}, el("strong", { className: "good", textContent: "Guided" }), ` by ${model}`)
    : el("p", {}, el("strong", { className: answer.reason === "fallback" ? "bad" : "", textContent: "Not guided" }));
  guided.append(`: chosen because ${REASONS[answer.reason] ?? answer.reason}.`);
  const more = [
    isUnanimous(answer) ? unanimity(answer.candidates.length) : null,
    answer.unguided_reason,
    distanceOf(answer),
    answer.draws_saved ? `Adaptive M did without ${counted(answer.draws_saved, "draw")}.` : null,
    answer.perturbed ? `Drawn under a paraphrase: ${counted(answer.perturbed, "candidate")}.` : null,
    ...answer.warnings,
  ];
  const lines = more.filter(Boolean).map((textContent) => el("p", { className: "note", textContent }));
  return [guided, ...lines];
}

/** How far the state is from what the Q model was trained on, where it is not the reason. */
function distanceOf({ guided, domain_distance: distance, q_model: model }) {
  if (!guided || distance === undefined) return null;
  return `The state is like those that ${model} was trained on: distance ${distance.toFixed(2)}, limit 1.`;
}

/** Whether there was nothing to choose between. */
export function isUnanimous(answer) {
  return answer.reason === "unanimous";
}

/** @param {number} draws */
function unanimity(draws) {
  return `All ${draws} draws are the same reply, so there is nothing to choose.`;
}
