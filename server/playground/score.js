/** Q of one's own candidates, in the state that is shown. */

import { showError } from "./alert.js";
import { barsOf, gapOf } from "./bars.js";
import { Compare, comparisonOf } from "./compare.js";
import { Copy } from "./copy.js";
import { byId, show } from "./dom.js";
import { textOf } from "./messages.js";
import { postScore } from "./server.js";
import { Replies } from "./turns.js";
import { stagesOfScore, usageOf } from "./usage.js";

export class Score {
  /**
   * @param {import("./turns.js").Turns} turns the history
   * @param {readonly string[]} candidates to begin with
   */
  constructor(turns, candidates) {
    this.turns = turns;
    this.replies = new Replies(byId("candidates"));
    this.replies.texts = candidates;
    this.form = byId("score-form");
    this.compare = new Compare(this.form);
    new Copy("score", "v1/score", () => this.request());
    byId("add-candidate").addEventListener("click", () => this.replies.addEmpty());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.score();
    });
  }

  request() {
    // No episode_id: to try a candidate is no step of an episode.
    const request = {
      messages: this.turns.all,
      candidates: this.replies.all.map((reply) => (reply.tool_calls ? reply : reply.content)),
      q_model: this.form.elements.q_model.value || null,
    };
    return request;
  }

  async score() {
    const request = this.request();
    const replies = this.replies.all;
    const button = byId("score-button");
    button.disabled = true;
    show(byId("score-error"));
    byId("score-status").textContent = "Scoring …";
    try {
      const answer = await postScore(request);
      this.showAnswer(answer, replies, await this.compare.scoreAlike(request.messages, replies));
    } catch (error) {
      showError(byId("score-error"), error);
    } finally {
      byId("score-status").textContent = "";
      button.disabled = false;
    }
  }

  /**
   * @param {import("./messages.js").Turn[]} replies
   * @param {import("./episode.js").Second | null} second
   */
  showAnswer(answer, replies, second) {
    const candidates = answer.scores.map(({ index, q_value: q }) => ({ text: textOf(replies[index]), q }));
    const model = `${answer.q_model}@${answer.q_model_version}`;
    const chosen = candidates[answer.chosen].text;
    byId("scored-facts").textContent = `${gapOf(candidates)} · ${model}`;
    byId("scored-compared").replaceChildren(...comparisonOf(candidates, model, second));
    byId("scored-bars").replaceChildren(barsOf(candidates, { chosen, second }));
    byId("scored-usage").replaceChildren(usageOf(stagesOfScore(answer)));
    byId("scored").hidden = false;
    byId("scored-title").focus();
  }
}
