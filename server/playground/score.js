/** Q of one's own candidates, in the state that is shown. */

import { showError } from "./alert.js";
import { barsOf, gapOf } from "./bars.js";
import { byId, show } from "./dom.js";
import { postScore } from "./server.js";
import { Texts } from "./turns.js";
import { stagesOfScore, usageOf } from "./usage.js";

export class Score {
  /**
   * @param {import("./turns.js").Turns} turns the history
   * @param {readonly string[]} candidates to begin with
   */
  constructor(turns, candidates) {
    this.turns = turns;
    this.texts = new Texts(byId("candidates"));
    this.texts.all = candidates;
    this.form = byId("score-form");
    byId("add-candidate").addEventListener("click", () => this.texts.addEmpty());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.score();
    });
  }

  async score() {
    // No episode_id: to try a candidate is no step of an episode.
    const request = {
      messages: this.turns.all,
      candidates: this.texts.all,
      q_model: this.form.elements.q_model.value || null,
    };
    const button = byId("score-button");
    button.disabled = true;
    show(byId("score-error"));
    byId("score-status").textContent = "Scoring …";
    try {
      this.showAnswer(await postScore(request), request.candidates);
    } catch (error) {
      showError(byId("score-error"), error);
    } finally {
      byId("score-status").textContent = "";
      button.disabled = false;
    }
  }

  /** @param {string[]} texts */
  showAnswer(answer, texts) {
    const candidates = answer.scores.map(({ index, q_value: q }) => ({ text: texts[index], q }));
    const model = `${answer.q_model}@${answer.q_model_version}`;
    byId("scored-facts").textContent = `${gapOf(candidates)} · ${model}`;
    byId("scored-bars").replaceChildren(barsOf(candidates, { chosen: texts[answer.chosen] }));
    byId("scored-usage").replaceChildren(usageOf(stagesOfScore(answer)));
    byId("scored").hidden = false;
    byId("scored-title").focus();
  }
}
