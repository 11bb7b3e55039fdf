/** An episode of an agent, which keeps the history, so that a step is one call. */

import type { QGuide, RequestOptions } from "./client.js";
import { withDefaults } from "./defaults.js";
import { EpisodeError } from "./errors.js";
import type {
  ActOptions,
  Candidate,
  Decision,
  Message,
  Messages,
  ScoreOptions,
  Outcome,
  OutcomeOptions,
  Scores,
} from "./types.js";

/** Result of an action: the text of a user's turn, or whole turns (results of tool calls). */
export type Observation = string | Messages;

/** Defaults for every step of an episode. */
export interface EpisodeOptions extends ActOptions {
  /** The system message, if there is one. */
  system?: string;
}

/**
 * One episode, whose steps follow each other; no step can follow `finish`.
 *
 * A step that failed has changed nothing and can be repeated.
 */
export class Episode {
  /** Id of the episode, sent with every step. */
  readonly episodeId: string;
  readonly #client: QGuide;
  readonly #options: ActOptions;
  readonly #request: RequestOptions;
  #messages: Messages;
  #last: Decision | Scores | undefined;
  #busy = false;
  #ended = false;

  constructor(
    client: QGuide,
    { system, ...options }: EpisodeOptions & { episode_id: string },
    request: RequestOptions,
  ) {
    this.episodeId = options.episode_id;
    this.#client = client;
    this.#options = options;
    this.#request = request;
    this.#messages = system === undefined ? [] : [{ role: "system", content: system }];
  }

  /** The history so far; a copy. */
  get messages(): Message[] {
    return structuredClone([...this.#messages]);
  }

  /** The server's whole answer to the last step; undefined before the first. */
  get last(): Decision | Scores | undefined {
    return this.#last;
  }

  /** Choose an action after an observation; the first observation includes the task. */
  act(
    observation: Observation,
    options: ActOptions = {},
    request: RequestOptions = {},
  ): Promise<string> {
    return this.#step(async () => {
      const asked = { ...withDefaults(this.#options, options), episode_id: this.episodeId };
      const history = this.#after(observation);
      const waiting = withDefaults(this.#request, request);
      const decision = await this.#client.act(history, asked, waiting);
      return this.#add(history, decision.action, decision);
    });
  }

  /** Choose the best of your own agent's candidates after an observation. */
  choose<C extends Candidate>(
    observation: Observation,
    candidates: readonly C[],
    options: ScoreOptions = {},
    request: RequestOptions = {},
  ): Promise<C> {
    return this.#step(async () => {
      const { q_model, long_history } = this.#options;
      const scoring: ScoreOptions = { q_model };
      if (long_history === "window") scoring.long_history = long_history;
      const asked = {
        ...withDefaults(scoring, options),
        episode_id: this.episodeId,
      };
      const history = this.#after(observation);
      const waiting = withDefaults(this.#request, request);
      const scores = await this.#client.score(history, candidates, asked, waiting);
      const chosen = candidates[scores.chosen];
      if (chosen === undefined)
        throw new EpisodeError(
          `the server chose candidate ${scores.chosen} of ${candidates.length}; check its version`,
        );
      return this.#add(history, chosen, scores);
    });
  }

  /**
   * Report the outcome and end the episode.
   *
   * Rejects with UnknownEpisodeError if the episode has no step yet.
   */
  finish(
    reward: number | boolean,
    options: OutcomeOptions = {},
    request: RequestOptions = {},
  ): Promise<Outcome> {
    return this.#step(async () => {
      const waiting = withDefaults(this.#request, request);
      const closed = await this.#client.outcome(this.episodeId, reward, options, waiting);
      this.#ended = true;
      return closed;
    });
  }

  async #step<T>(take: () => Promise<T>): Promise<T> {
    if (this.#ended)
      throw new EpisodeError(`episode ${this.episodeId} has ended; begin another one`);
    if (this.#busy)
      throw new EpisodeError(
        `a step of episode ${this.episodeId} is still running; await it first`,
      );
    this.#busy = true;
    try {
      return await take();
    } finally {
      this.#busy = false;
    }
  }

  #after(observation: Observation): Messages {
    const turns: Messages =
      typeof observation === "string" ? [{ role: "user", content: observation }] : observation;
    return [...this.#messages, ...turns];
  }

  #add<C extends Candidate>(history: Messages, reply: C, answer: Decision | Scores): C {
    const turn: Message = typeof reply === "string" ? { role: "assistant", content: reply } : reply;
    this.#messages = structuredClone([...history, turn]);
    this.#last = answer;
    return reply;
  }
}
