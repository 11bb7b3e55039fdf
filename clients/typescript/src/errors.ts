/**
 * Every error that this client throws; `name` tells them apart, too.
 *
 * QGuideError
 * ├── NoAnswerError                nothing came back
 * │   ├── UnreachableError         no connection, or it broke
 * │   └── TimedOutError            not within `timeoutMs` or `deadlineMs`
 * ├── UnreadableAnswerError        what came back is none of QGuide's answers
 * ├── EpisodeError                 an episode was used in an order that makes no sense
 * └── RefusedError                 the server said no: status, code, request id
 *     ├── InvalidRequestError      400, 405, 408, 422, 431: send something else
 *     │   ├── HistoryTooLongError
 *     │   ├── InvalidCandidatesError
 *     │   ├── MalformedHistoryError
 *     │   ├── RenderingError
 *     │   ├── UpstreamRefusedError
 *     │   └── MalformedBodyError
 *     ├── UnauthorizedError        401: no key, or one that nobody has
 *     ├── ForbiddenError           403: a key that may not do this
 *     ├── NotFoundError            404
 *     │   ├── UnknownModelError
 *     │   └── UnknownEpisodeError
 *     ├── ConflictError            409
 *     │   └── EpisodeClosedError   it has its outcome already
 *     ├── BodyTooLargeError        413
 *     ├── OverLimitError           429: come back after `retryAfterMs`
 *     │   ├── RateLimitedError     too many requests in this minute
 *     │   ├── TooManyAtOnceError   too many requests at the same time
 *     │   └── TokensUsedUpError    no tokens are left for the day
 *     ├── UnavailableError         502, 503, 504: not now
 *     │   ├── ScorerUnavailableError
 *     │   ├── OverloadedError      too many requests wait already
 *     │   ├── UpstreamFailedError  the server behind the policy: broken, slow or gone
 *     │   └── DrainingError        this server is about to end; another may answer
 *     └── ServerFailedError        500
 *
 * What the caller aborted rejects with the signal's own reason, as `fetch` does.
 */

interface About {
  requestId?: string;
  cause?: unknown;
}

/** Whatever went wrong between the caller and the server. */
export class QGuideError extends Error {
  override readonly name: string = "QGuideError";
  /** What the server's log calls the request; "" where none was made. */
  readonly requestId: string;

  constructor(message: string, { requestId = "", cause }: About = {}) {
    super(
      requestId ? `${message} (request ${requestId})` : message,
      cause === undefined ? {} : { cause },
    );
    this.requestId = requestId;
  }
}

/** Nothing came back. */
export class NoAnswerError extends QGuideError {
  override readonly name: "NoAnswerError" | "UnreachableError" | "TimedOutError" = "NoAnswerError";
}

/** There is no connection, or it broke. */
export class UnreachableError extends NoAnswerError {
  override readonly name = "UnreachableError";
}

/** The answer took too long. */
export class TimedOutError extends NoAnswerError {
  override readonly name = "TimedOutError";
}

/** What came back is none of QGuide's answers: another server, or one too old. */
export class UnreadableAnswerError extends QGuideError {
  override readonly name = "UnreadableAnswerError";
}

/** An episode was used in an order that makes no sense. */
export class EpisodeError extends QGuideError {
  override readonly name = "EpisodeError";
}

export interface Refusal extends About {
  status: number;
  code?: string;
  retryAfterMs?: number;
}

/** The server said no. */
export class RefusedError extends QGuideError {
  override readonly name: string = "RefusedError";
  /** Of HTTP; 200 where a stream had begun. */
  readonly status: number;
  /** What went wrong, for programs; "" where something in front of QGuide answered. */
  readonly code: string;
  /** When the server says that asking again makes sense; undefined: it does not say. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, refusal: Refusal) {
    super(message, refusal);
    this.status = refusal.status;
    this.code = refusal.code ?? "";
    this.retryAfterMs = refusal.retryAfterMs;
  }
}

/** Send something else. */
export class InvalidRequestError extends RefusedError {
  override readonly name:
    | "InvalidRequestError"
    | "HistoryTooLongError"
    | "InvalidCandidatesError"
    | "MalformedHistoryError"
    | "RenderingError"
    | "UpstreamRefusedError"
    | "MalformedBodyError" = "InvalidRequestError";
}

/** The history and a reply exceed the model's context or the server's limit. */
export class HistoryTooLongError extends InvalidRequestError {
  override readonly name = "HistoryTooLongError";
}

/** None, too many, an empty or a repeated one. */
export class InvalidCandidatesError extends InvalidRequestError {
  override readonly name = "InvalidCandidatesError";
}

/** The turns are in no order that a chat can have. */
export class MalformedHistoryError extends InvalidRequestError {
  override readonly name = "MalformedHistoryError";
}

/** The model's chat template cannot say these messages. */
export class RenderingError extends InvalidRequestError {
  override readonly name = "RenderingError";
}

/** The server behind the policy does not take this request. */
export class UpstreamRefusedError extends InvalidRequestError {
  override readonly name = "UpstreamRefusedError";
}

/** A field is missing, unknown or of another type. */
export class MalformedBodyError extends InvalidRequestError {
  override readonly name = "MalformedBodyError";
}

/** There is no key, or nobody has it. */
export class UnauthorizedError extends RefusedError {
  override readonly name = "UnauthorizedError";
}

/** The key may not do this. */
export class ForbiddenError extends RefusedError {
  override readonly name = "ForbiddenError";
}

/** There is no such thing, or this server is too old to have it. */
export class NotFoundError extends RefusedError {
  override readonly name: "NotFoundError" | "UnknownModelError" | "UnknownEpisodeError" =
    "NotFoundError";
}

/** No model of this name is served. */
export class UnknownModelError extends NotFoundError {
  override readonly name = "UnknownModelError";
}

/** No step of this episode is known, or no longer. */
export class UnknownEpisodeError extends NotFoundError {
  override readonly name = "UnknownEpisodeError";
}

/** Not in the state that things are in. */
export class ConflictError extends RefusedError {
  override readonly name: "ConflictError" | "EpisodeClosedError" = "ConflictError";
}

/** The episode has its outcome already. */
export class EpisodeClosedError extends ConflictError {
  override readonly name = "EpisodeClosedError";
}

/** More bytes than the server takes. */
export class BodyTooLargeError extends RefusedError {
  override readonly name = "BodyTooLargeError";
}

/** The key's share is used up for now. */
export class OverLimitError extends RefusedError {
  override readonly name:
    | "OverLimitError"
    | "RateLimitedError"
    | "TooManyAtOnceError"
    | "TokensUsedUpError" = "OverLimitError";
}

/** Too many requests in this minute. */
export class RateLimitedError extends OverLimitError {
  override readonly name = "RateLimitedError";
}

/** Too many requests at the same time. */
export class TooManyAtOnceError extends OverLimitError {
  override readonly name = "TooManyAtOnceError";
}

/** No tokens are left for the day. */
export class TokensUsedUpError extends OverLimitError {
  override readonly name = "TokensUsedUpError";
}

/** Not now. */
export class UnavailableError extends RefusedError {
  override readonly name:
    | "UnavailableError"
    | "ScorerUnavailableError"
    | "OverloadedError"
    | "UpstreamFailedError"
    | "DrainingError" = "UnavailableError";
}

/** The Q model gives no answer, or none in time. */
export class ScorerUnavailableError extends UnavailableError {
  override readonly name = "ScorerUnavailableError";
}

/** Too many requests wait already. */
export class OverloadedError extends UnavailableError {
  override readonly name = "OverloadedError";
}

/** The server behind the policy is broken, slow or gone; `code` says which. */
export class UpstreamFailedError extends UnavailableError {
  override readonly name = "UpstreamFailedError";
}

/** The server is about to end and takes nothing new. */
export class DrainingError extends UnavailableError {
  override readonly name = "DrainingError";
}

/** The server failed; its log has the request's id. */
export class ServerFailedError extends RefusedError {
  override readonly name = "ServerFailedError";
}

type RefusedClass = new (message: string, refusal: Refusal) => RefusedError;

/** Codes that have a class of their own, OpenAI's words too; every other has its status's. */
const OF_CODE: ReadonlyMap<string, RefusedClass> = new Map<string, RefusedClass>([
  ["history_too_long", HistoryTooLongError],
  ["context_length_exceeded", HistoryTooLongError],
  ["invalid_candidates", InvalidCandidatesError],
  ["malformed_history", MalformedHistoryError],
  ["rendering_failed", RenderingError],
  ["malformed_body", MalformedBodyError],
  ["upstream_refused", UpstreamRefusedError],
  ["unknown_model", UnknownModelError],
  ["model_not_found", UnknownModelError],
  ["unknown_episode", UnknownEpisodeError],
  ["episode_closed", EpisodeClosedError],
  ["rate_limited", RateLimitedError],
  ["too_many_at_once", TooManyAtOnceError],
  ["tokens_used_up", TokensUsedUpError],
  ["scorer_unavailable", ScorerUnavailableError],
  ["overloaded", OverloadedError],
  ["upstream_failed", UpstreamFailedError],
  ["upstream_timeout", UpstreamFailedError],
  ["upstream_unavailable", UpstreamFailedError],
  ["draining", DrainingError],
]);

const OF_STATUS: ReadonlyMap<number, RefusedClass> = new Map<number, RefusedClass>([
  [400, InvalidRequestError],
  [401, UnauthorizedError],
  [403, ForbiddenError],
  [404, NotFoundError],
  [405, InvalidRequestError],
  [408, InvalidRequestError],
  [409, ConflictError],
  [413, BodyTooLargeError],
  [422, InvalidRequestError],
  [429, OverLimitError],
  [431, InvalidRequestError],
  [500, ServerFailedError],
  [502, UnavailableError],
  [503, UnavailableError],
  [504, UnavailableError],
]);

/** What a server refused, as its class. */
export function refused(message: string, refusal: Refusal): RefusedError {
  const kind = OF_CODE.get(refusal.code ?? "") ?? OF_STATUS.get(refusal.status) ?? RefusedError;
  return new kind(message, refusal);
}
