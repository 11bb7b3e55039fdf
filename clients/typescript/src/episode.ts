/** One episode of an agent: it carries the history, so that a step is one call. */

import type { QGuide, RequestOptions } from "./client.js";
import { withDefaults } from "./defaults.js";
import { EpisodeError } from "./errors.js";
import type {
  ActOptions,
  Candidate,
  Decision,
  Message,
  Messages,
  ModelOptions,
  Outcome,
  OutcomeOptions,
  Scores,
} from "./types.js";

/** What an action brought: a user's turn, or turns as they are (a tool's results). */
export type Observation = string | Messages;

/** What holds for every step that does not say otherwise. */
export interface EpisodeOptions extends ActOptions {
  /** The system message, if there is one; the rest is sent with each step. */
  system?: string;
}

/**
 * Steps of one episode, one after the other; after `finish` there are no more.
 *
 * A step that failed has changed nothing and can be taken again.
 */
export class Episode {
  /** What ties the steps together, at the server too. */
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

  /** All that the server said of the last step. */
  get last(): Decision | Scores | undefined {
    return this.#last;
  }

  /** What to do after this observation; the first one includes the task. */
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

  /** The best of what your own agent might do after this observation. */
  choose<C extends Candidate>(
    observation: Observation,
    candidates: readonly C[],
    options: ModelOptions = {},
    request: RequestOptions = {},
  ): Promise<C> {
    return this.#step(async () => {
      const { q_model } = this.#options;
      const asked = {
        ...withDefaults<ModelOptions>({ q_model }, options),
        episode_id: this.episodeId,
      };
      const history = this.#after(observation);
      const waiting = withDefaults(this.#request, request);
      const scores = await this.#client.score(history, candidates, asked, waiting);
      const chosen = candidates[scores.chosen];
      if (chosen === undefined)
        throw new EpisodeError(`the server chose candidate ${scores.chosen}, which is none`);
      return this.#add(history, chosen, scores);
    });
  }

  /**
   * Tell the server how it ended; there are no more steps.
   *
   * Rejects with UnknownEpisodeError where there was no step.
   */
  finish(
    reward: number,
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
    if (this.#ended) throw new EpisodeError(`episode ${this.episodeId} has ended; begin another`);
    if (this.#busy)
      throw new EpisodeError(`a step of episode ${this.episodeId} is under way; await it first`);
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
