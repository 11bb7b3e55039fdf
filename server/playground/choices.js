/** Recorded candidates of real LLMs: what each model said, what Q took, and what was right. */

import { written } from "./candidates.js";
import { byId, counted, el, offer } from "./dom.js";

/** @typedef {import("./records.js").Choice} Choice */

/** Filters by name; a choice is good where the best of its candidates was taken. */
const FILTERS = {
  all: ["all choices", () => true],
  gained: ["Q better than the rule", (choice) => earned(choice, "by_q") > earned(choice, "by_rule")],
  lost: ["Q worse than the rule", (choice) => earned(choice, "by_q") < earned(choice, "by_rule")],
  missed: ["a better one than Q's was there", (choice) => earned(choice, "by_q") < best(choice)],
};

export class Choices {
  constructor() {
    /** @type {Choice[]} */
    this.all = [];
    /** @type {Choice[]} those that the filter leaves */
    this.shown = [];
    byId("choice-filter").addEventListener("change", () => this.filter());
    byId("choice").addEventListener("change", () => this.draw());
    byId("choice-back").addEventListener("click", () => this.move(-1));
    byId("choice-on").addEventListener("click", () => this.move(1));
  }

  /** @param {Choice[]} choices */
  show(choices) {
    this.all = choices;
    byId("choices").hidden = choices.length === 0;
    if (!choices.length) return;
    const share = (of) => `${((100 * choices.reduce((sum, one) => sum + of(one), 0)) / choices.length).toFixed(1)} %`;
    byId("choices-facts").textContent = `reward over ${counted(choices.length, "choice")}: Q ${share((one) =>
      earned(one, "by_q"),
    )}, rule ${share((one) => earned(one, "by_rule"))}, random ${share(mean)}, the best ${share(best)}`;
    offer(
      byId("choice-filter"),
      Object.entries(FILTERS).map(([name, [label, fits]]) => [name, `${label} (${choices.filter(fits).length})`]),
    );
    this.filter();
  }

  filter() {
    this.shown = this.all.filter(FILTERS[byId("choice-filter").value][1]);
    byId("choice").replaceChildren();
    offer(byId("choice"), this.shown.map(({ task_id: task }, index) => [String(index), `${index + 1} · ${task}`]));
    this.draw();
  }

  /** @param {number} by */
  move(by) {
    byId("choice").selectedIndex += by;
    this.draw();
  }

  draw() {
    const index = byId("choice").selectedIndex;
    const choice = this.shown[index];
    byId("choice-back").disabled = index <= 0;
    byId("choice-on").disabled = index >= this.shown.length - 1;
    byId("choice-none").hidden = Boolean(choice);
    byId("choice-asked").hidden = !choice;
    byId("choice-asked").textContent = choice?.asked.trim() ?? "";
    byId("choice-asked").scrollTop = byId("choice-asked").scrollHeight; // the task is at the end
    byId("choice-above").hidden = byId("choice-asked").scrollTop === 0;
    const order = choice ? choice.candidates.map((_, place) => place) : [];
    order.sort((a, b) => choice.candidates[b].q_value - choice.candidates[a].q_value);
    byId("choice-candidates").replaceChildren(...order.map((place) => itemOf(choice, place)));
  }
}

/**
 * @param {Choice} choice
 * @param {number} place
 */
function itemOf(choice, place) {
  const { model, said, answer, q_value: q, valid, reward } = choice.candidates[place];
  const marks = [];
  if (choice.by_q.includes(place)) marks.push(el("b", { className: "mark", textContent: "Q takes this" }));
  if (choice.by_rule.includes(place)) {
    const alone = choice.by_rule.length === 1;
    marks.push(el("span", { className: "count", textContent: alone ? "the rule takes this" : "tied by the rule" }));
  }
  if (!valid) marks.push(el("span", { className: "count", textContent: "not valid" }));
  const outcome = reward >= 1 ? "right" : reward > 0 ? `reward ${written(reward)}` : "wrong";
  return el(
    "li",
    { className: choice.by_q.includes(place) ? "candidate chosen" : "candidate" },
    el(
      "p",
      { className: "choice-head" },
      el("b", { className: `outcome ${outcome}`, textContent: outcome }),
      el("span", { className: "model", textContent: model }),
      ...marks,
      el("span", { className: "q" }, el("meter", { min: 0, max: 1, value: q, "aria-label": "Q" }), ` Q ${written(q)}`),
    ),
    el("pre", { className: "said", textContent: said.trim() || "(nothing)", tabIndex: 0 }),
    answer === null ? null : folded("What followed", answer),
  );
}

/**
 * @param {string} label
 * @param {string} text
 */
function folded(label, text) {
  const seen = el("blockquote", { className: "seen", textContent: text.trim() || "(nothing)", tabIndex: 0 });
  return el("details", {}, el("summary", { textContent: label }), seen);
}

/**
 * Mean reward of the candidates that a chooser prefers alike.
 * @param {Choice} choice
 * @param {"by_q" | "by_rule"} by
 */
function earned(choice, by) {
  return choice[by].reduce((sum, place) => sum + choice.candidates[place].reward, 0) / choice[by].length;
}

/** @param {Choice} choice */
function mean({ candidates }) {
  return candidates.reduce((sum, { reward }) => sum + reward, 0) / candidates.length;
}

/** @param {Choice} choice */
function best({ candidates }) {
  return Math.max(...candidates.map(({ reward }) => reward));
}
