/** When to ask again, and what a refusal says; nothing here waits or touches the network. */

import { type Call, parsed, said } from "./calls.js";
import { type QGuideError, refused, RefusedError, UnreachableError } from "./errors.js";

const TURNED_AWAY: ReadonlySet<number> = new Set([429, 503]);
const PERHAPS_DONE = 502;
/** Node's words for what never reached the server; browsers do not say. */
const NOT_SENT: ReadonlySet<unknown> = new Set([
  "EAI_AGAIN",
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);
/** HTTP's dates begin with the day; `Date.parse` alone would take "-3" for a year. */
const HTTP_DATE = /^[A-Z][a-z]+, /;

/** How often and how soon to ask again, where that is safe. */
export interface Retry {
  /** In all; 1 never asks again. Three, if not said. */
  attempts: number;
  /**
   * Upper end of the first wait, which is drawn from 0 up; it doubles each time. 250, if not said.
   */
  firstWaitMs: number;
  /**
   * No wait is longer; where the server asks for a longer one, its refusal is thrown at once.
   * 10,000, if not said.
   */
  maxWaitMs: number;
}

export const DEFAULT_RETRY: Retry = { attempts: 3, firstWaitMs: 250, maxWaitMs: 10_000 };

/**
 * How long to wait before asking again; undefined: do not.
 *
 * `attempt` counts from 1; `chance` is drawn from [0, 1), so that many clients do not come back
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
  // A server that needed too long once would be asked for the same work while still at it.
  return error instanceof UnreachableError && (repeatable || NOT_SENT.has(codeOf(error.cause)));
}

/** The code that Node gives a failed connection; what `fetch` throws has it in its cause. */
export function codeOf(error: unknown): string {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: unknown };
  if (typeof code === "string") return code;
  return cause === undefined ? "" : codeOf(cause);
}

/** The error that a refusal is; something in front of the server may have answered in its place. */
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

/** Milliseconds, given as seconds or as a date; undefined where there are none to read. */
export function retryAfterMs(header: string | null, nowMs: number): number | undefined {
  const given = header?.trim() ?? "";
  if (/^[0-9]+$/.test(given)) return Number(given) * 1000;
  const atMs = HTTP_DATE.test(given) ? Date.parse(given) : NaN;
  return Number.isNaN(atMs) ? undefined : Math.max(0, atMs - nowMs);
}
