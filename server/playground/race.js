/** A race: three ways to choose play the same games, each in a lane of its own. */

import { showError } from "./alert.js";
import { differenceOf, differenceText } from "./difference.js";
import { byId, counted, show } from "./dom.js";
import { Lane } from "./lane.js";
import { METHODS } from "./methods.js";

export class Race {
  constructor() {
    this.form = byId("race-form");
    /** @type {AbortController | null} */
    this.running = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("race-stop").addEventListener("click", () => this.running?.abort());
  }

  /** @param {{ name: string, count: number, most_replies: number }} games that the server has */
  offer({ name, count, most_replies: mostReplies }) {
    byId("race-none").hidden = true;
    byId("race-games").textContent = `${counted(count, "game")} of ${name}`;
    const { games } = this.form.elements;
    games.max = String(count);
    games.value = String(Math.min(games.valueAsNumber, count));
    this.form.elements.steps.max = String(mostReplies);
    this.form.hidden = false;
  }

  async run() {
    const options = this.options();
    if (!options) return;
    const running = new AbortController();
    this.running = running;
    this.settle();
    show(byId("race-error"));
    byId("race-status").textContent = "Racing …";
    byId("race-difference").textContent = "";
    const lanes = METHODS.map((method) => new Lane(method, options, () => showDifference(lanes)));
    byId("lanes").replaceChildren(...lanes.map(({ place }) => place));
    try {
      await Promise.all(lanes.map((lane) => lane.run(running.signal)));
      const won = lanes.map(({ method, wins }) => `${method.title} ${wins}`).join(", ");
      byId("race-status").textContent = `Done. Wins of ${options.games}: ${won}.`;
    } catch (error) {
      byId("race-status").textContent = running.signal.aborted ? "Stopped." : "";
      if (!running.signal.aborted) showError(byId("race-error"), error);
      running.abort(); // a lane that failed stops the others
    } finally {
      this.running = null;
      this.settle();
    }
  }

  /** The numbers of the form; null if one is wrong, which the browser then says. */
  options() {
    if (!this.form.reportValidity()) return null;
    const { games, first, candidates, temperature, steps, seed, q_model: qModel } = this.form.elements;
    return {
      games: Math.min(games.valueAsNumber, Number(games.max) - first.valueAsNumber),
      first: first.valueAsNumber,
      candidates: candidates.valueAsNumber,
      temperature: temperature.valueAsNumber,
      steps: steps.valueAsNumber,
      seed: seed.valueAsNumber,
      qModel: qModel.value || null,
    };
  }

  /** Buttons as they make sense now. */
  settle() {
    byId("race-button").disabled = this.running !== null;
    byId("race-stop").hidden = this.running === null;
  }
}

/** @param {Lane[]} lanes */
function showDifference([greedy, , guided]) {
  const difference = differenceOf(guided.won, greedy.won);
  byId("race-difference").textContent = differenceText(guided.method.title, greedy.method.title, difference);
}
