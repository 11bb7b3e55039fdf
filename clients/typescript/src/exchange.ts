/** One request and its answer, given up when it takes too long or the caller aborts it. */

import { codeOf } from "./conversation.js";
import { NoAnswerError, TimedOutError, UnreachableError } from "./errors.js";

/** undici's own limits, which come first where ours are longer. */
const TIMED_OUT: ReadonlySet<string> = new Set(["UND_ERR_HEADERS_TIMEOUT", "UND_ERR_BODY_TIMEOUT"]);

/** The longest that `setTimeout` can wait; more would be none at all. */
const LONGEST_MS = 2 ** 31 - 1;

/** For a server to close a body whose last word it has said. */
const DRAIN_MS = 1_000;

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export interface Limits {
  /** The longest that the server may leave a reader without a byte. */
  silenceMs: number;
  /** The longest in all; Infinity for none. */
  wholeMs: number;
  /** The caller's. */
  signal: AbortSignal | undefined;
}

/** What throws throws NoAnswerError, or the reason of the caller's signal. */
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

  /** Send it; the answer's status and headers have come. To be closed whatever happens. */
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

  /** The answer's body as it comes. */
  async *bytes(response: Response): AsyncGenerator<Uint8Array, void, undefined> {
    const reader = response.body?.getReader(); // not every browser iterates over the stream itself
    if (!reader) return;
    const { signal } = this.#controller;
    for (;;) {
      // Node 20 leaves a read for ever where the body had come whole before the abort.
      if (signal.aborted) throw this.#failure(signal.reason);
      this.#listen();
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw this.#failure(error);
      });
      clearTimeout(this.#silence); // while the caller holds the bytes, the silence is its own
      if (done) return;
      yield value;
    }
  }

  /**
   * Read on to the body's end, for a while: only then can the connection serve again. The answer
   * is whole already, so nothing that fails here is thrown.
   */
  async drain(bytes: AsyncIterable<Uint8Array>): Promise<void> {
    const enough = setTimeout(this.#abort, DRAIN_MS);
    try {
      for await (const _ of bytes);
    } catch {
      // The connection is lost, as it would have been.
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

  /** Give up what has not come yet. */
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
    return this.#silenceOf(error);
  }

  #silenceOf(cause: unknown): NoAnswerError {
    const asked = `${this.#method} ${this.#url}`;
    const about = { requestId: this.#requestId, cause };
    if (this.#late || TIMED_OUT.has(codeOf(cause))) {
      const remedy = "ask for fewer candidates or give it more time (timeoutMs, deadlineMs)";
      return new TimedOutError(`${asked} gave no answer in time; ${remedy}`, about);
    }
    const remedy =
      "is the server up, its URL right and, for a web page, its origin allowed " +
      "(QGUIDE_CORS_ORIGINS)?";
    return new UnreachableError(
      `${asked} cannot be reached (${reasonOf(cause)}); ${remedy}`,
      about,
    );
  }
}

/** Why `fetch` failed: Node says it in the cause, browsers not at all. */
function reasonOf(error: unknown): string {
  const { message, cause } = error as { message?: string; cause?: { message?: string } };
  return cause?.message || codeOf(error) || message || String(error);
}
