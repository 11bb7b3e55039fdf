/** One request and its answer, cancelled when it takes too long or the caller aborts it. */

import { codeOf } from "./conversation.js";
import { NoAnswerError, TimedOutError, UnreachableError } from "./errors.js";

/** Codes of undici's own limits, which apply first if they are shorter than ours. */
const TIMED_OUT: ReadonlySet<string> = new Set(["UND_ERR_HEADERS_TIMEOUT", "UND_ERR_BODY_TIMEOUT"]);

/** Longest wait of `setTimeout`; a longer one would end at once. */
const LONGEST_MS = 2 ** 31 - 1;

/** How long to wait for the server to close a stream after its last event. */
const DRAIN_MS = 1_000;

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export interface Limits {
  /** Longest time without a byte from the server. */
  silenceMs: number;
  /** Longest time in all; Infinity for no limit. */
  wholeMs: number;
  /** The caller's signal. */
  signal: AbortSignal | undefined;
}

/** An exchange; its methods throw NoAnswerError, or the reason of the caller's signal. */
export class Exchange {
  readonly #url: string;
  readonly #method: string;
  readonly #requestId: string;
  readonly #limits: Limits;
  readonly #controller = new AbortController();
  readonly #abort = (): void => this.#controller.abort();
  #late = false;
  #silence: ReturnType<typeof setTimeout> | undefined;
  #whole: ReturnType<typeof setTimeout> | undefined;

  constructor(method: string, url: string, requestId: string, limits: Limits) {
    this.#method = method;
    this.#url = url;
    this.#requestId = requestId;
    this.#limits = limits;
  }

  /** Send the request and wait for status and headers; `close` has to follow in any case. */
  async begin(fetch: Fetch, init: RequestInit): Promise<Response> {
    const { signal, wholeMs } = this.#limits;
    signal?.throwIfAborted();
    signal?.addEventListener("abort", this.#abort);
    this.#whole = this.#giveUpAfter(wholeMs);
    this.#listen();
    try {
      return await fetch(this.#url, {
        ...init,
        method: this.#method,
        signal: this.#controller.signal,
      });
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** The answer's body, as it arrives. */
  async *bytes(response: Response): AsyncGenerator<Uint8Array, void, undefined> {
    const reader = response.body?.getReader(); // not every browser can iterate over a stream
    if (!reader) return;
    const { signal } = this.#controller;
    for (;;) {
      // In Node 20 a read never ends if the whole body had arrived before the abort.
      if (signal.aborted) throw this.#failure(signal.reason);
      this.#listen();
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw this.#failure(error);
      });
      clearTimeout(this.#silence); // the time in which the caller handles the bytes does not count
      if (done) return;
      yield value;
    }
  }

  /**
   * Read on to the body's end, for a limited time, so that the connection can be reused. The answer
   * is complete, so a failure here is not thrown.
   */
  async drain(bytes: AsyncIterable<Uint8Array>): Promise<void> {
    const enough = setTimeout(this.#abort, DRAIN_MS);
    try {
      for await (const _ of bytes);
    } catch {
      // The connection cannot be reused; nothing else is lost.
    } finally {
      clearTimeout(enough);
    }
  }

  /** The whole body. */
  async text(response: Response): Promise<string> {
    const decoder = new TextDecoder();
    let text = "";
    for await (const bytes of this.bytes(response)) text += decoder.decode(bytes, { stream: true });
    return text + decoder.decode();
  }

  /** Cancel what has not arrived yet. */
  close(): void {
    clearTimeout(this.#silence);
    clearTimeout(this.#whole);
    this.#limits.signal?.removeEventListener("abort", this.#abort);
    this.#controller.abort();
  }

  #listen(): void {
    clearTimeout(this.#silence);
    this.#silence = this.#giveUpAfter(this.#limits.silenceMs);
  }

  #giveUpAfter(ms: number): ReturnType<typeof setTimeout> {
    const giveUp = (): void => {
      this.#late = true;
      this.#controller.abort();
    };
    return setTimeout(giveUp, Math.min(ms, LONGEST_MS));
  }

  #failure(error: unknown): unknown {
    const { signal } = this.#limits;
    if (signal?.aborted) return signal.reason;
    return this.#noAnswerError(error);
  }

  #noAnswerError(cause: unknown): NoAnswerError {
    const asked = `${this.#method} ${this.#url}`;
    const about = { requestId: this.#requestId, cause };
    if (this.#late || TIMED_OUT.has(codeOf(cause))) {
      const remedy = "draw fewer candidates, or raise timeoutMs or deadlineMs";
      return new TimedOutError(`${asked} gave no answer in time; ${remedy}`, about);
    }
    const remedy =
      "check that the server runs, baseUrl is right and, for a web page, its origin is allowed " +
      "(QGUIDE_CORS_ORIGINS)";
    return new UnreachableError(
      `${asked} cannot be reached (${reasonOf(cause)}); ${remedy}`,
      about,
    );
  }
}

/** Why `fetch` failed; Node gives the reason in the cause, browsers give none. */
function reasonOf(error: unknown): string {
  const { message, cause } = error as { message?: string; cause?: { message?: string } };
  return cause?.message || codeOf(error) || message || String(error);
}
