/** The client: it sends a call, waits, and asks again where that is safe. */

import * as calls from "./calls.js";
import type { Call } from "./calls.js";
import { ChatStream } from "./chat-stream.js";
import { DEFAULT_RETRY, refusalOf, type Retry, waitMs } from "./conversation.js";
import { withDefaults } from "./defaults.js";
import { Episode, type EpisodeOptions } from "./episode.js";
import { QGuideError } from "./errors.js";
import { Exchange, type Fetch } from "./exchange.js";
import type {
  ActOptions,
  Candidate,
  ChatChunk,
  ChatCompletion,
  ChatOptions,
  ChatTurn,
  Decision,
  Messages,
  ModelList,
  ModelOptions,
  Outcome,
  OutcomeOptions,
  Ranking,
  Readiness,
  RerankOptions,
  ScoreBatch,
  ScoreItem,
  Scores,
} from "./types.js";

export const DEFAULT_URL = "http://127.0.0.1:8000";
const DEFAULT_TIMEOUT_MS = 90_000;
/** After a deadline, for the server to say that it has passed. */
const GRACE_MS = 1_000;
const SHORTEST_MS = 1;
const REQUEST_ID_BYTES = 16;

/** How a client asks. */
export interface ClientOptions {
  /** As the operator gave it; undefined where the server asks for none. */
  apiKey?: string | undefined;
  /**
   * The longest that an attempt may go without a byte; the server has a limit of its own, which
   * should come first. 90,000, if not said.
   */
  timeoutMs?: number | undefined;
  /** How often and how soon to ask again, where that is safe. */
  retry?: Partial<Retry> | undefined;
  /** How requests travel, in place of the global `fetch`. */
  fetch?: Fetch | undefined;
}

/** How one call is waited for; nothing of it is in the body. */
export interface RequestOptions {
  /** Gives the call up, the server's work too; it rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /**
   * Retries included, after which the answer is of no use; the server stops its work then. It may
   * have a shorter limit of its own.
   */
  deadlineMs?: number | undefined;
}

interface Answered {
  exchange: Exchange;
  response: Response;
  text: string;
}

/** A QGuide server, asked from a browser or from Node. */
export class QGuide {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #timeoutMs: number;
  readonly #retry: Retry;
  readonly #fetch: Fetch;

  /** Throws TypeError where no request could be made of the address or the key. */
  constructor(baseUrl: string = DEFAULT_URL, options: ClientOptions = {}) {
    this.#url = addressOf(baseUrl);
    this.#headers = options.apiKey === undefined ? {} : { Authorization: bearer(options.apiKey) };
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.#retry = withDefaults(DEFAULT_RETRY, options.retry);
    this.#fetch = options.fetch ?? ((url, init) => fetch(url, init));
  }

  /** Let the server draw candidates and choose the one with the highest Q. */
  act(
    messages: Messages,
    options: ActOptions = {},
    request: RequestOptions = {},
  ): Promise<Decision> {
    return this.#ask(calls.act(messages, options), request);
  }

  /** Q of your own candidates, texts or tool calls, which must differ. */
  score(
    messages: Messages,
    candidates: readonly Candidate[],
    options: ModelOptions = {},
    request: RequestOptions = {},
  ): Promise<Scores> {
    return this.#ask(calls.score(messages, candidates, options), request);
  }

  /** Q of the candidates of several histories, of all or of none. */
  scoreBatch(
    items: readonly ScoreItem[],
    options: ModelOptions = {},
    request: RequestOptions = {},
  ): Promise<ScoreBatch> {
    return this.#ask(calls.scoreBatch(items, options), request);
  }

  /** Sort documents by Q; they may repeat. The query is the history, or its one user message. */
  rerank(
    query: string | Messages,
    documents: readonly string[],
    options: RerankOptions = {},
    request: RequestOptions = {},
  ): Promise<Ranking> {
    return this.#ask(calls.rerank(query, documents, options), request);
  }

  /**
   * Tell how an episode ended; where the operator records episodes it is learnt from.
   *
   * Rejects with UnknownEpisodeError where none of its steps named this id, or too long ago, and
   * with EpisodeClosedError where it has another outcome already.
   */
  outcome(
    episodeId: string,
    reward: number,
    options: OutcomeOptions = {},
    request: RequestOptions = {},
  ): Promise<Outcome> {
    return this.#ask(calls.outcome(episodeId, reward, options), request);
  }

  /** The best of M as a chat completion; OpenAI's own SDK may ask the same. */
  chat(
    messages: readonly ChatTurn[],
    options: ChatOptions = {},
    request: RequestOptions = {},
  ): Promise<ChatCompletion> {
    return this.#ask(calls.chat(messages, options), request);
  }

  /**
   * The same in pieces; it is asked when the first is, and leaving the loop gives up the rest.
   *
   * Throws QGuideError also when some pieces have come, for nothing is asked twice from then on.
   */
  async *chatStream(
    messages: readonly ChatTurn[],
    options: ChatOptions = {},
    request: RequestOptions = {},
  ): AsyncGenerator<ChatChunk, void, undefined> {
    const requestId = newId();
    const stream = new ChatStream(requestId);
    const call = calls.chatStream(messages, options);
    const { exchange, response } = await this.#answer(call, requestId, request, { whole: false });
    try {
      const pieces = exchange.bytes(response);
      for await (const bytes of pieces) {
        yield* stream.feed(bytes);
        if (stream.done) return await exchange.drain(pieces);
      }
      stream.end();
    } finally {
      exchange.close();
    }
  }

  /** What is served. */
  models(request: RequestOptions = {}): Promise<ModelList> {
    return this.#ask(calls.models(), request);
  }

  /** Whether requests can be served; rejects with NoAnswerError where nobody is there to say so. */
  ready(request: RequestOptions = {}): Promise<Readiness> {
    return this.#ask(calls.ready(), request);
  }

  /**
   * An episode that carries its own history.
   *
   * What is said here holds for every step that does not say otherwise; `episode_id` is made up
   * where it is not given.
   */
  episode(options: EpisodeOptions = {}, request: RequestOptions = {}): Episode {
    return new Episode(this, { ...options, episode_id: options.episode_id ?? newId() }, request);
  }

  async #ask<T>(call: Call<T>, request: RequestOptions): Promise<T> {
    const requestId = newId();
    const { text } = await this.#answer(call, requestId, request, { whole: true });
    return calls.read(call, text, requestId);
  }

  /** Ask until there is an answer or no hope of one. */
  async #answer<T>(
    call: Call<T>,
    requestId: string,
    request: RequestOptions,
    { whole }: { whole: boolean },
  ): Promise<Answered> {
    const endsMs = now() + (request.deadlineMs ?? Infinity);
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#attempt(call, requestId, endsMs - now(), request.signal, whole);
      } catch (error) {
        if (!(error instanceof QGuideError)) throw error;
        const pauseMs = waitMs(error, call, this.#retry, attempt, Math.random());
        if (pauseMs === undefined || now() + pauseMs >= endsMs) throw error;
        await sleep(pauseMs, request.signal);
      }
    }
  }

  /** What is not read whole is left open, to be read and closed by the caller. */
  async #attempt<T>(
    call: Call<T>,
    requestId: string,
    leftMs: number,
    signal: AbortSignal | undefined,
    whole: boolean,
  ): Promise<Answered> {
    const tellsMs = Math.max(SHORTEST_MS, leftMs);
    const limits = { silenceMs: this.#timeoutMs, wholeMs: tellsMs + GRACE_MS, signal };
    const exchange = new Exchange(call.method, this.#url + call.path, requestId, limits);
    let leaveOpen = false;
    try {
      const response = await exchange.begin(this.#fetch, this.#init(call, requestId, tellsMs));
      if (response.ok && !whole) {
        leaveOpen = true;
        return { exchange, response, text: "" };
      }
      const text = await exchange.text(response);
      if (!response.ok && response.status !== call.answering) {
        throw refusalOf(response, text, call.path, requestId);
      }
      return { exchange, response, text };
    } finally {
      if (!leaveOpen) exchange.close();
    }
  }

  #init<T>(call: Call<T>, requestId: string, leftMs: number): RequestInit {
    const headers: Record<string, string> = { ...this.#headers, "X-Request-ID": requestId };
    if (leftMs !== Infinity) headers["X-QGuide-Timeout-S"] = (leftMs / 1000).toFixed(3);
    // A key goes nowhere but to the address that was given.
    const init: RequestInit = {
      headers,
      redirect: "manual",
      credentials: "omit",
      cache: "no-store",
    };
    if (call.body === undefined) return init;
    headers["Content-Type"] = "application/json";
    return { ...init, body: JSON.stringify(call.body) };
  }
}

/** The address without a slash at its end; what is wrong with it is told without what it holds. */
function addressOf(baseUrl: string): string {
  let url: URL;
  try {
    url = new URL(baseUrl);
  } catch {
    throw new TypeError(`baseUrl is no URL; give one such as ${DEFAULT_URL}`);
  }
  if (!/^https?:$/.test(url.protocol)) {
    throw new TypeError(`baseUrl is of the protocol ${url.protocol} and has to be http: or https:`);
  }
  if (url.username || url.password || url.search || url.hash) {
    throw new TypeError(
      "baseUrl has a user, a query or a fragment; leave them out, a key goes into apiKey",
    );
  }
  return url.origin + url.pathname.replace(/\/+$/, "");
}

/** The header that a key makes; `fetch` would show the key where it takes none. */
function bearer(apiKey: string): string {
  if (/^[\x21-\x7e]+$/.test(apiKey)) return `Bearer ${apiKey}`;
  throw new TypeError(
    "apiKey is empty or has characters that no key has, such as a line's end; look how it was read",
  );
}

/** Also on pages without https, where `crypto.randomUUID` is missing. */
function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(REQUEST_ID_BYTES));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function now(): number {
  return performance.now();
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
