/** One way to choose in a race: plays the games one after the other and counts. */

import { el } from "./dom.js";
import { Game, stepOf } from "./game.js";

/** @typedef {import("./methods.js").Method} Method */

export class Lane {
  /**
   * @param {Method} method
   * @param {import("./game.js").Options & { games: number, first: number }} options
   * @param {() => void} ended is told after each game
   */
  constructor(method, options, ended) {
    this.method = method;
    this.options = options;
    this.ended = ended;
    /** @type {boolean[]} whether each game was won, in their order */
    this.won = [];
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

  get wins() {
    return this.won.filter(Boolean).length;
  }

  /** @param {AbortSignal} signal */
  async run(signal) {
    const { games, first } = this.options;
    for (let number = first; number < first + games; number += 1) {
      await this.play(new Game(number, this.options, signal));
    }
  }

  /** @param {Game} game */
  async play(game) {
    const mark = el("button", { type: "button", textContent: "…", className: "running", disabled: true });
    this.games.append(el("li", {}, mark));
    await game.open();
    while (!game.isOver) {
      const { answer, reply } = await game.ask(this.method);
      this.tokens.drawn += answer.usage.completion_tokens;
      if (this.method.scores) this.tokens.scored += answer.usage.scored_tokens;
      await game.say(reply);
      this.steps += 1;
      this.showFigures();
      this.last.replaceChildren(...stepOf(game.steps.at(-1), game.steps.length));
    }
    this.won.push(game.state.won);
    mark.className = game.state.won ? "won" : "lost";
    mark.textContent = game.ending;
    mark.title = `Show game ${game.number}`;
    mark.disabled = false;
    mark.addEventListener("click", () => this.showWhole(game));
    this.showFigures();
    this.ended();
  }

  /**
   * A game that is over, from its first step.
   * @param {Game} game
   */
  showWhole(game) {
    const close = el("button", { type: "button", className: "quiet", textContent: "Close" });
    const title = el("h3", { textContent: `Game ${game.number}: ${game.ending}`, tabIndex: -1 });
    const steps = game.steps.map((step, index) => el("li", {}, ...stepOf(step, index + 1)));
    const task = el("p", { className: "note", textContent: game.task });
    const whole = el("div", { className: "whole-game" }, title, task, el("ol", { className: "steps" }, ...steps), close);
    close.addEventListener("click", () => whole.remove());
    this.place.querySelector(".whole-game")?.remove();
    this.last.before(whole);
    title.focus();
  }

  showFigures() {
    const { drawn, scored } = this.tokens;
    const count = (number) => number.toLocaleString("en");
    const figures = [
      ["wins", `${this.wins} of ${this.won.length}`],
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
}
