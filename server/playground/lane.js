/** One way to choose in a race: plays the games one after the other and counts. */

import { splitReply } from "./candidates.js";
import { el } from "./dom.js";
import { plainTurn, textOf } from "./messages.js";
import { randomOf, seedOf } from "./methods.js";
import { postAct, postGame } from "./server.js";

/** @typedef {import("./methods.js").Method} Method */

export class Lane {
  /**
   * @param {Method} method
   * @param {import("./methods.js").Options & { games: number, first: number, steps: number }} options
   */
  constructor(method, options) {
    this.method = method;
    this.options = options;
    this.wins = 0;
    this.over = 0;
    this.steps = 0;
    this.tokens = { drawn: 0, scored: 0 };
    this.figures = el("dl", { className: "figures" });
    this.games = el("ol", { className: "games", "aria-label": `Games of ${method.title}` });
    this.last = el("div", { className: "last" });
    const title = el("h2", { textContent: method.title });
    const about = el("p", { className: "note", textContent: method.about });
    this.place = el("section", { className: "card lane" }, title, about, this.figures, this.games, this.last);
    this.place.dataset.method = method.id;
    this.place.setAttribute("aria-label", method.title);
    this.showFigures();
  }

  /** @param {AbortSignal} signal */
  async run(signal) {
    const { games, first } = this.options;
    for (let game = first; game < first + games; game += 1) await this.play(game, signal);
  }

  /**
   * @param {number} game
   * @param {AbortSignal} signal
   */
  async play(game, signal) {
    const mark = el("li", { textContent: "…", className: "running" });
    this.games.append(mark);
    /** @type {string[]} */
    const replies = [];
    let state = await postGame({ game, replies }, signal);
    const messages = state.opening.map(plainTurn);
    while (!state.ended && replies.length < this.options.steps) {
      const reply = await this.choose(messages, game, replies.length, signal);
      replies.push(reply);
      state = await postGame({ game, replies }, signal);
      messages.push({ role: "assistant", content: reply }, { role: "user", content: state.observation });
      this.steps += 1;
      this.showLast(replies.length, reply, state.observation);
    }
    this.over += 1;
    if (state.won) this.wins += 1;
    mark.className = state.won ? "won" : "lost";
    mark.textContent = `${state.won ? "won" : "lost"} in ${replies.length}`;
    this.showFigures();
  }

  /**
   * @param {import("./messages.js").Turn[]} messages
   * @param {number} game
   * @param {number} step
   * @param {AbortSignal} signal
   */
  async choose(messages, game, step, signal) {
    const seed = seedOf(this.options.seed, game, step);
    const answer = await postAct({ messages, ...this.method.body(this.options, seed) }, signal);
    const { usage } = answer;
    this.tokens.drawn += usage.completion_tokens;
    if (this.method.scores) this.tokens.scored += usage.scored_tokens;
    this.showFigures();
    const picked = this.method.pick(answer, randomOf(seed));
    return textOf(answer.candidates[picked].message);
  }

  showFigures() {
    const { drawn, scored } = this.tokens;
    const count = (number) => number.toLocaleString("en");
    const figures = [
      ["wins", `${this.wins} of ${this.over}`],
      ["steps", count(this.steps)],
      ["tokens drawn", count(drawn)],
      ["tokens scored", this.method.scores ? count(scored) : "none"],
    ];
    this.figures.replaceChildren(
      ...figures.map(([name, value]) =>
        el("div", {}, el("dt", { textContent: name }), el("dd", { className: name.replace(" ", "-"), textContent: value })),
      ),
    );
  }

  /**
   * @param {number} step
   * @param {string} reply
   * @param {string} observation
   */
  showLast(step, reply, observation) {
    this.last.replaceChildren(
      el("p", {}, `${step}. `, el("code", { textContent: splitReply(reply).action })),
      el("p", { className: "seen", textContent: observation }),
    );
  }
}
