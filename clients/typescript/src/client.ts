/** The client: sends a call, waits for the answer, and retries where that is safe. */

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
  Attempt,
  AttemptsOptions,
  BatchOptions,
  Candidate,
  ChatChunk,
  ChatCompletion,
  ChatOptions,
  ChatTurn,
  Decision,
  Messages,
  ModelList,
  ScoreOptions,
  Outcome,
  OutcomeOptions,
  Ranking,
  Readiness,
  RerankOptions,
  ScoreBatch,
  ScoreItem,
  Scores,
  Verdicts,
} from "./types.js";

export const DEFAULT_URL = "http://127.0.0.1:8000";
const DEFAULT_TIMEOUT_MS = 90_000;
/** Waited after a deadline, so that the server can answer that it has passed. */
const GRACE_MS = 1_000;
const SHORTEST_MS = 1;
const REQUEST_ID_BYTES = 16;

/** Options of a client. */
export interface ClientOptions {
  /** The key that the operator gave out; undefined for a server without keys. */
  apiKey?: string | undefined;
  /**
   * Longest time in which an attempt may receive no byte; should be longer than the server's own
   * limit. The default is 90,000.
   */
  timeoutMs?: number | undefined;
  /** Number and timing of retries; only requests that are safe to repeat are retried. */
  retry?: Partial<Retry> | undefined;
  /** Replaces the global `fetch`, for example in tests. */
  fetch?: Fetch | undefined;
}

/** Options of waiting for one call; none of them is part of the body. */
export interface RequestOptions {
  /** Cancels the call and the server's work for it; the call rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /**
   * Time, retries included, after which the answer is of no use; the server stops its work then and
   * may have a shorter limit of its own.
   */
  deadlineMs?: number | undefined;
}

interface Answered {
  exchange: Exchange;
  response: Response;
  text: string;
}

/** A client of one QGuide server, for browsers and Node. */
export class QGuide {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #timeoutMs: number;
  readonly #retry: Retry;
  readonly #fetch: Fetch;

  /** Throws TypeError if the address or the key cannot be part of a request. */
  constructor(baseUrl: string = DEFAULT_URL, options: ClientOptions = {}) {
    this.#url = addressOf(baseUrl);
    this.#headers = options.apiKey === undefined ? {} : { Authorization: bearer(options.apiKey) };
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.#retry = withDefaults(DEFAULT_RETRY, options.retry);
    this.#fetch = options.fetch ?? ((url, init) => fetch(url, init));
  }

  /** Draw candidates on the server and choose one by Q. */
  act(
    messages: Messages,
    options: ActOptions = {},
    request: RequestOptions = {},
  ): Promise<Decision> {
    return this.#ask(calls.act(messages, options), request);
  }

  /** Score your own candidates, texts or tool calls; no two may be equal. */
  score(
    messages: Messages,
    candidates: readonly Candidate[],
    options: ScoreOptions = {},
    request: RequestOptions = {},
  ): Promise<Scores> {
    return this.#ask(calls.score(messages, candidates, options), request);
  }

  /** Score the candidates of several histories; if one item fails, all do. */
  scoreBatch(
    items: readonly ScoreItem[],
    options: BatchOptions = {},
    request: RequestOptions = {},
  ): Promise<ScoreBatch> {
    return this.#ask(calls.scoreBatch(items, options), request);
  }

  /** Sort documents by Q; documents may repeat. The query is a history or a single user message. */
  rerank(
    query: string | Messages,
    documents: readonly string[],
    options: RerankOptions = {},
    request: RequestOptions = {},
  ): Promise<Ranking> {
    return this.#ask(calls.rerank(query, documents, options), request);
  }

  /**
   * Report an episode's outcome; a recording server keeps it as training data.
   *
   * Rejects with UnknownEpisodeError if the server knows no step with this id or has forgotten it,
   * and with EpisodeClosedError if the episode has its outcome already.
   */
  outcome(
    episodeId: string,
    reward: number | boolean,
    options: OutcomeOptions = {},
    request: RequestOptions = {},
  ): Promise<Outcome> {
    return this.#ask(calls.outcome(episodeId, reward, options), request);
  }

  /** Compare running attempts of one task, each an episode, and tell which go on. */
  attempts(
    given: readonly Attempt[],
    options: AttemptsOptions = {},
    request: RequestOptions = {},
  ): Promise<Verdicts> {
    return this.#ask(calls.attempts(given, options), request);
  }

  /** The best of M candidates as a chat completion; OpenAI's SDK can be used for this, too. */
  chat(
    messages: readonly ChatTurn[],
    options: ChatOptions = {},
    request: RequestOptions = {},
  ): Promise<ChatCompletion> {
    return this.#ask(calls.chat(messages, options), request);
  }

  /**
   * The same, streamed. The request is sent when the first chunk is asked for; leaving the loop
   * cancels the rest.
   *
   * May throw QGuideError after the first chunk, because a stream that has begun is not retried.
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

  /** List the models that are served. */
  models(request: RequestOptions = {}): Promise<ModelList> {
    return this.#ask(calls.models(), request);
  }

  /** Check that the server can serve requests; rejects with NoAnswerError if it is unreachable. */
  ready(request: RequestOptions = {}): Promise<Readiness> {
    return this.#ask(calls.ready(), request);
  }

  /**
   * Begin an episode, which keeps its own history.
   *
   * The options are defaults for every step; without `episode_id` a random one is taken.
   */
  episode(options: EpisodeOptions = {}, request: RequestOptions = {}): Episode {
    return new Episode(this, { ...options, episode_id: options.episode_id ?? newId() }, request);
  }

  async #ask<T>(call: Call<T>, request: RequestOptions): Promise<T> {
    const requestId = newId();
    const { text } = await this.#answer(call, requestId, request, { whole: true });
    return calls.read(call, text, requestId);
  }

  /** Retry a call until it is answered or a further attempt is pointless. */
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

  /** Send one attempt. An answer that is not read whole stays open; the caller closes it. */
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
    // No redirects, cookies or caches: the key goes to the given address and nowhere else.
    const init: RequestInit = {
      headers,
      redirect: "manual",
      credentials: "omit",
      cache: "no-store",
    };
    if (call.body === undefined) return init;
    const { episode_id: episode }: { episode_id?: unknown } = call.body;
    // For routers, which read no bodies.
    if (typeof episode === "string") headers["X-Session-ID"] = encodeURIComponent(episode);
    headers["Content-Type"] = "application/json";
    return { ...init, body: JSON.stringify(call.body) };
  }
}

/** The address without trailing slashes; errors do not repeat it, since it may hold a password. */
function addressOf(baseUrl: string): string {
  let url: URL;
  try {
    url = new URL(baseUrl);
  } catch {
    throw new TypeError(`baseUrl is not a URL; give one such as ${DEFAULT_URL}`);
  }
  if (!/^https?:$/.test(url.protocol)) {
    throw new TypeError(`baseUrl has the protocol ${url.protocol}; it must be http: or https:`);
  }
  if (url.username || url.password || url.search || url.hash) {
    throw new TypeError(
      "baseUrl has a user, a query or a fragment; leave it out, and pass a key as apiKey",
    );
  }
  return url.origin + url.pathname.replace(/\/+$/, "");
}

/** The header with the key; checked here, because `fetch` would show a bad key in its error. */
function bearer(apiKey: string): string {
  if (/^[\x21-\x7e]+$/.test(apiKey)) return `Bearer ${apiKey}`;
  throw new TypeError(
    "apiKey is empty or has characters that no key has, such as a line end; check how it was read",
  );
}

/** A random id; `crypto.randomUUID` is missing on pages without https. */
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
