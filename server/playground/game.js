/** One game of the server's: what was said in it so far, and how it stands. */

import { el } from "./dom.js";
import { splitReply } from "./candidates.js";
import { plainTurn, textOf } from "./messages.js";
import { randomOf, seedOf } from "./methods.js";
import { postAct, postGame } from "./server.js";

/**
 * @typedef {import("./methods.js").Method} Method
 * @typedef {import("./methods.js").Options & { steps: number }} Options `steps` is the most of a game
 * @typedef {{ reply: string, observation: string }} Step
 */

export class Game {
  /**
   * @param {number} number
   * @param {Options} options
   * @param {AbortSignal} signal
   */
  constructor(number, options, signal) {
    this.number = number;
    this.options = options;
    this.signal = signal;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {import("./messages.js").Turn[]} */
    this.messages = [];
    this.state = { ended: false, won: false };
  }

  async open() {
    const state = await this.replay();
    this.messages = state.opening.map(plainTurn);
    return this;
  }

  /** The same game in the same state, which goes its own way from here on. */
  fork() {
    const other = new Game(this.number, this.options, this.signal);
    return Object.assign(other, { steps: [...this.steps], messages: [...this.messages], state: this.state });
  }

  get isOver() {
    return this.state.ended || this.steps.length >= this.options.steps;
  }

  get task() {
    return this.messages[0].content.trim().split("\n").at(-1) ?? "";
  }

  /** "won in 12", or "lost in 40". */
  get ending() {
    return `${this.state.won ? "won" : "lost"} in ${this.steps.length}`;
  }

  /**
   * What a way to choose says next here.
   * @param {Method} method
   */
  async ask(method) {
    const seed = seedOf(this.options.seed, this.number, this.steps.length);
    const body = { messages: this.messages, ...method.body(this.options, seed) };
    const answer = await postAct(body, this.signal);
    const { message } = answer.candidates[method.pick(answer, randomOf(seed))];
    return { answer, reply: textOf(message) };
  }

  /** @param {string} reply */
  async say(reply) {
    const { observation } = await this.replay(reply);
    this.messages.push({ role: "assistant", content: reply }, { role: "user", content: observation });
    this.steps.push({ reply, observation });
  }

  /** @param {...string} next */
  async replay(...next) {
    const replies = [...this.steps.map(({ reply }) => reply), ...next];
    this.state = await postGame({ game: this.number, replies }, this.signal);
    return this.state;
  }
}

/**
 * A step in words.
 * @param {Step} step
 * @param {number} number from 1
 */
export function stepOf({ reply, observation }, number) {
  return [
    el("p", {}, `${number}. `, el("code", { textContent: splitReply(reply).action })),
    el("p", { className: "seen", textContent: observation }),
  ];
}
