/** A game of the server's that answers the actions of the episode that began with it. */

import { byId } from "./dom.js";
import { sameTurns } from "./episode.js";
import { plainTurn, textOf } from "./messages.js";
import { postGame } from "./server.js";

/** @typedef {import("./messages.js").Turn} Turn */

export class OwnGame {
  /** @param {{ number: number, opening: Turn[] } | null} game that was begun before */
  constructor(game = null) {
    this.game = game;
    this.count = 0;
  }

  /** @param {{ count: number }} games that the server has */
  offer({ count }) {
    this.count = count;
    byId("new-game").hidden = false;
  }

  /** Another game; gives its opening. */
  async next() {
    const number = this.game ? (this.game.number + 1) % this.count : 0;
    const { opening } = await postGame({ game: number, replies: [] });
    this.game = { number, opening: opening.map(plainTurn) };
    return this.game.opening;
  }

  /**
   * The answer to a reply in a history that began with the game; null in others.
   * @param {readonly Turn[]} history
   * @param {Turn} reply
   * @returns {Promise<{ observation: string, ended: boolean, won: boolean } | null>}
   */
  async answerTo(history, reply) {
    const { opening = [], number = 0 } = this.game ?? {};
    if (!opening.length || !sameTurns(history.slice(0, opening.length), opening)) return null;
    const said = history.slice(opening.length).filter(({ role }) => role === "assistant");
    return await postGame({ game: number, replies: [...said, reply].map(textOf) });
  }
}
