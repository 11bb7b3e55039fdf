/** Retries, and the errors of refusals; nothing here waits or touches the network. */

import { type Call, parsed, said } from "./calls.js";
import { type QGuideError, refused, RefusedError, UnreachableError } from "./errors.js";

const TURNED_AWAY: ReadonlySet<number> = new Set([429, 503]);
const PERHAPS_DONE = 502;
/** Node's codes for a request that never reached the server; browsers give none. */
const NOT_SENT: ReadonlySet<unknown> = new Set([
  "EAI_AGAIN",
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);
/** HTTP dates begin with the day; `Date.parse` alone would take "-3" for a year. */
const HTTP_DATE = /^[A-Z][a-z]+, /;

/** Number and timing of attempts; only requests that are safe to repeat are retried. */
export interface Retry {
  /** Attempts in all; 1 never retries. The default is 3. */
  attempts: number;
  /**
   * Upper bound of the first wait, doubled for each further one; each wait is drawn at random
   * between 0 and its bound. The default is 250.
   */
  firstWaitMs: number;
  /**
   * Longest wait; if the server asks for a longer one, its refusal is thrown at once. The default
   * is 10,000.
   */
  maxWaitMs: number;
}

export const DEFAULT_RETRY: Retry = { attempts: 3, firstWaitMs: 250, maxWaitMs: 10_000 };

/**
 * Time to wait before the next attempt; undefined to give up.
 *
 * `attempt` counts from 1; `chance` is a random number in [0, 1), so that many clients do not retry
 * at once.
 */
export function waitMs(
  error: QGuideError,
  call: Pick<Call<unknown>, "repeatable">,
  retry: Retry,
  attempt: number,
  chance: number,
): number | undefined {
  if (attempt >= retry.attempts || !safeToRepeat(error, call.repeatable)) return undefined;
  const askedMs = error instanceof RefusedError ? error.retryAfterMs : undefined;
  if (askedMs === undefined)
    return chance * Math.min(retry.maxWaitMs, retry.firstWaitMs * 2 ** (attempt - 1));
  return askedMs <= retry.maxWaitMs ? askedMs + chance * retry.firstWaitMs : undefined;
}

function safeToRepeat(error: QGuideError, repeatable: boolean): boolean {
  if (error instanceof RefusedError) {
    return TURNED_AWAY.has(error.status) || (repeatable && error.status === PERHAPS_DONE);
  }
  // Not after a timeout: the server may still be at work on the first request.
  return error instanceof UnreachableError && (repeatable || NOT_SENT.has(codeOf(error.cause)));
}

/** Node's code of a failed connection; an error that `fetch` throws has it in its cause. */
export function codeOf(error: unknown): string {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: unknown };
  if (typeof code === "string") return code;
  return cause === undefined ? "" : codeOf(cause);
}

/** The error of a refusal; a proxy may have answered in the server's place. */
export function refusalOf(
  response: Response,
  text: string,
  path: string,
  requestId: string,
): RefusedError {
  const { status, statusText, headers } = response;
  const { code, message } = said((parsed(text) as { error?: unknown }).error);
  const retryAfter = retryAfterMs(headers.get("retry-after"), Date.now());
  return refused(message || `HTTP ${status} ${statusText} from ${path}`, {
    status,
    code,
    requestId: headers.get("x-request-id") ?? requestId,
    ...(retryAfter === undefined ? {} : { retryAfterMs: retryAfter }),
  });
}

/** Milliseconds of a Retry-After header in seconds or as a date; undefined if it is neither. */
export function retryAfterMs(header: string | null, nowMs: number): number | undefined {
  const given = header?.trim() ?? "";
  if (/^[0-9]+$/.test(given)) return Number(given) * 1000;
  const atMs = HTTP_DATE.test(given) ? Date.parse(given) : NaN;
  return Number.isNaN(atMs) ? undefined : Math.max(0, atMs - nowMs);
}
