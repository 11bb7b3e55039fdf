/**
 * One game, guided. Where Q first overrules the policy's greedy reply the game forks, and both go on
 * beside each other to the end.
 */

import { showError } from "./alert.js";
import { candidatesOf } from "./answer.js";
import { barsOf } from "./bars.js";
import { splitReply } from "./candidates.js";
import { byId, counted, el, show } from "./dom.js";
import { Game, stepOf } from "./game.js";
import { METHODS } from "./methods.js";

const [GREEDY, , GUIDED] = METHODS;

export class Play {
  constructor() {
    this.form = byId("play-form");
    /** @type {AbortController | null} */
    this.running = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("play-stop").addEventListener("click", () => this.running?.abort());
    byId("play-next").addEventListener("click", () => this.next());
  }

  /** @param {{ name: string, count: number, most_replies: number }} games that the server has */
  offer({ name, count, most_replies: mostReplies }) {
    byId("play-none").hidden = true;
    byId("play-games").textContent = `${counted(count, "game")} of ${name}`;
    const { game, steps } = this.form.elements;
    game.max = String(count - 1);
    if (game.valueAsNumber >= count) game.value = "0";
    steps.max = String(mostReplies);
    this.form.hidden = false;
  }

  next() {
    const { game } = this.form.elements;
    game.value = String((game.valueAsNumber + 1) % (Number(game.max) + 1));
    this.run();
  }

  async run() {
    if (!this.form.reportValidity()) return;
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.settle();
    show(byId("play-error"));
    byId("played").hidden = false;
    for (const id of ["trunk", "fork", "branches-played"]) byId(id).replaceChildren();
    byId("fork").hidden = true;
    byId("play-status").textContent = "Playing …";
    try {
      const ending = await this.play(running.signal);
      byId("play-status").textContent = ending;
    } catch (error) {
      if (this.running !== running) return; // another game was begun meanwhile
      byId("play-status").textContent = running.signal.aborted ? "Stopped." : "";
      if (!running.signal.aborted) showError(byId("play-error"), error);
      running.abort(); // a branch that failed stops the other
    } finally {
      if (this.running === running) this.running = null;
      this.settle();
    }
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<string>} who won
   */
  async play(signal) {
    const { game: number, candidates, temperature, steps, seed } = this.form.elements;
    const options = {
      candidates: candidates.valueAsNumber,
      temperature: temperature.valueAsNumber,
      seed: seed.valueAsNumber,
      steps: steps.valueAsNumber,
      qModel: null,
    };
    const guided = await new Game(number.valueAsNumber, options, signal).open();
    byId("play-task").textContent = guided.task;
    while (!guided.isOver) {
      const [taken, greedy] = await Promise.all([guided.ask(GUIDED), guided.ask(GREEDY)]);
      if (taken.answer.guided && !actAlike(taken.reply, greedy.reply)) {
        const other = guided.fork();
        this.showFork(taken, greedy.reply, guided.steps.length + 1);
        await Promise.all([goOn(guided, GUIDED, taken.reply), goOn(other, GREEDY, greedy.reply)]);
        return comparison(guided, other);
      }
      await guided.say(taken.reply);
      byId("trunk").append(itemOf(guided));
    }
    return `Q chose the greedy reply at every step: ${guided.ending} steps, both.`;
  }

  /**
   * @param {{ answer: any, reply: string }} taken
   * @param {string} greedy
   * @param {number} step
   */
  showFork({ answer, reply }, greedy, step) {
    const candidates = candidatesOf(answer).map((candidate) => ({
      ...candidate,
      note: actAlike(candidate.text, greedy) ? "greedy" : "",
    }));
    const action = el("code", { textContent: splitReply(greedy).action });
    byId("fork").replaceChildren(
      el("h2", { textContent: `Step ${step}: Q overrules the greedy reply` }),
      el("p", {}, "Greedy would have said ", action, "."),
      barsOf(candidates, { chosen: reply }),
    );
    byId("fork").hidden = false;
  }

  /** Buttons as they make sense now. */
  settle() {
    byId("play-button").disabled = this.running !== null;
    byId("play-stop").hidden = this.running === null;
  }
}

/**
 * Plays to the end in a column of its own.
 * @param {Game} game
 * @param {import("./methods.js").Method} method
 * @param {string} first the reply by which it begins
 */
async function goOn(game, method, first) {
  const list = el("ol", { className: "steps" });
  const ending = el("p", { className: "ending", textContent: "…" });
  const title = el("h2", { textContent: method.title });
  const column = el("section", { className: "card lane" }, el("div", { className: "head" }, title, ending), list);
  column.dataset.method = method.id;
  column.setAttribute("aria-label", method.title);
  byId("branches-played").append(column);
  let reply = first;
  while (true) {
    await game.say(reply);
    list.append(itemOf(game));
    if (game.isOver) break;
    ({ reply } = await game.ask(method));
  }
  ending.textContent = game.ending;
  ending.classList.add(game.state.won ? "good" : "bad");
}

/** @param {Game} game whose last step is shown */
function itemOf(game) {
  return el("li", {}, ...stepOf(game.steps.at(-1), game.steps.length));
}

/**
 * Whether two replies do the same, whatever was thought before.
 * @param {string} first
 * @param {string} second
 */
function actAlike(first, second) {
  return splitReply(first).action === splitReply(second).action;
}

/**
 * @param {Game} guided
 * @param {Game} greedy
 */
function comparison(guided, greedy) {
  const both = `Guided ${guided.ending} steps, greedy ${greedy.ending}.`;
  const [won, rival] = [guided.state.won, greedy.state.won];
  if (won && rival) return `Both win. ${both}`;
  if (!won && !rival) return `Neither wins. ${both}`;
  return won ? `Guidance wins this game. ${both}` : `Greedy wins this game, Q chose worse. ${both}`;
}
