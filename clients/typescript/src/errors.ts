/**
 * Every error that this client throws; each has its class's name as its `name`.
 *
 * QGuideError
 * ├── NoAnswerError                no answer arrived
 * │   ├── UnreachableError         the connection failed or broke
 * │   └── TimedOutError            no answer within `timeoutMs` or `deadlineMs`
 * ├── UnreadableAnswerError        an answer that is not QGuide's
 * ├── EpisodeError                 a step after the episode's end
 * └── RefusedError                 the server refused: status, code, request id
 *     ├── InvalidRequestError      400, 405, 408, 422, 426, 431: the request must change
 *     │   ├── HistoryTooLongError
 *     │   ├── InvalidCandidatesError
 *     │   ├── MalformedHistoryError
 *     │   ├── RenderingError
 *     │   ├── UpstreamRefusedError
 *     │   └── MalformedBodyError
 *     ├── UnauthorizedError        401: no key, or an unknown one
 *     ├── ForbiddenError           403: the key may not do this
 *     ├── NotFoundError            404
 *     │   ├── UnknownModelError
 *     │   └── UnknownEpisodeError
 *     ├── ConflictError            409
 *     │   └── EpisodeClosedError   the episode has its outcome already
 *     ├── BodyTooLargeError        413
 *     ├── OverLimitError           429: retry after `retryAfterMs`
 *     │   ├── RateLimitedError     too many requests in this minute
 *     │   ├── TooManyAtOnceError   too many requests at the same time
 *     │   └── TokensUsedUpError    no tokens are left for the day
 *     ├── UnavailableError         502, 503, 504: unavailable for now
 *     │   ├── ScorerUnavailableError
 *     │   ├── DeadlineExceededError  the server's time limit, or the request's, was up
 *     │   ├── OverloadedError      the server's queue is full
 *     │   ├── UpstreamFailedError  the server behind the policy failed, is slow or is gone
 *     │   └── DrainingError        the server is shutting down; another may answer
 *     └── ServerFailedError        500
 *
 * A call that the caller aborts rejects with the signal's reason, as `fetch` does.
 */

interface About {
  requestId?: string;
  cause?: unknown;
}

/** Base class of every error that this client throws. */
export class QGuideError extends Error {
  override readonly name: string = "QGuideError";
  /** Id of the request in the server's log; "" if no request was made. */
  readonly requestId: string;

  constructor(message: string, { requestId = "", cause }: About = {}) {
    super(
      requestId ? `${message} (request ${requestId})` : message,
      cause === undefined ? {} : { cause },
    );
    this.requestId = requestId;
  }
}

/** No answer arrived. */
export class NoAnswerError extends QGuideError {
  override readonly name: "NoAnswerError" | "UnreachableError" | "TimedOutError" = "NoAnswerError";
}

/** The connection could not be opened, or it broke. */
export class UnreachableError extends NoAnswerError {
  override readonly name = "UnreachableError";
}

/** No answer arrived within `timeoutMs` or `deadlineMs`. */
export class TimedOutError extends NoAnswerError {
  override readonly name = "TimedOutError";
}

/** An answer that is not QGuide's: another server's, or an incompatible version's. */
export class UnreadableAnswerError extends QGuideError {
  override readonly name = "UnreadableAnswerError";
}

/** A step of an episode that has ended. */
export class EpisodeError extends QGuideError {
  override readonly name = "EpisodeError";
}

export interface Refusal extends About {
  status: number;
  code?: string;
  retryAfterMs?: number;
}

/** The server refused the request. */
export class RefusedError extends QGuideError {
  override readonly name: string = "RefusedError";
  /** The HTTP status; 200 if the error came inside a stream. */
  readonly status: number;
  /** The error's code, for programs; "" if a proxy in front of QGuide answered. */
  readonly code: string;
  /** Time after which to ask again, as the server says; undefined if it does not. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, refusal: Refusal) {
    super(message, refusal);
    this.status = refusal.status;
    this.code = refusal.code ?? "";
    this.retryAfterMs = refusal.retryAfterMs;
  }
}

/** The request is invalid and must be changed. */
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

/** The history and a reply together exceed the model's context or the server's limit. */
export class HistoryTooLongError extends InvalidRequestError {
  override readonly name = "HistoryTooLongError";
}

/** There are no candidates, too many, an empty one or a repeated one. */
export class InvalidCandidatesError extends InvalidRequestError {
  override readonly name = "InvalidCandidatesError";
}

/** The messages are not in an order that a chat can have. */
export class MalformedHistoryError extends InvalidRequestError {
  override readonly name = "MalformedHistoryError";
}

/** The model's chat template cannot render these messages. */
export class RenderingError extends InvalidRequestError {
  override readonly name = "RenderingError";
}

/** The server behind the policy refused the request. */
export class UpstreamRefusedError extends InvalidRequestError {
  override readonly name = "UpstreamRefusedError";
}

/** A field is missing, unknown or of the wrong type. */
export class MalformedBodyError extends InvalidRequestError {
  override readonly name = "MalformedBodyError";
}

/** The request has no key, or an unknown one. */
export class UnauthorizedError extends RefusedError {
  override readonly name = "UnauthorizedError";
}

/** The key may not do this. */
export class ForbiddenError extends RefusedError {
  override readonly name = "ForbiddenError";
}

/** The resource does not exist, or the server is too old to have it. */
export class NotFoundError extends RefusedError {
  override readonly name: "NotFoundError" | "UnknownModelError" | "UnknownEpisodeError" =
    "NotFoundError";
}

/** No model of this name is served. */
export class UnknownModelError extends NotFoundError {
  override readonly name = "UnknownModelError";
}

/** The server knows no step of this episode, or no longer does. */
export class UnknownEpisodeError extends NotFoundError {
  override readonly name = "UnknownEpisodeError";
}

/** The request conflicts with the current state. */
export class ConflictError extends RefusedError {
  override readonly name: "ConflictError" | "EpisodeClosedError" = "ConflictError";
}

/** The episode has its outcome already. */
export class EpisodeClosedError extends ConflictError {
  override readonly name = "EpisodeClosedError";
}

/** The body has more bytes than the server takes. */
export class BodyTooLargeError extends RefusedError {
  override readonly name = "BodyTooLargeError";
}

/** The key has reached one of its limits, or the upstream takes no more requests now. */
export class OverLimitError extends RefusedError {
  override readonly name:
    | "OverLimitError"
    | "RateLimitedError"
    | "TooManyAtOnceError"
    | "TokensUsedUpError" = "OverLimitError";
}

/** The key has sent too many requests in this minute. */
export class RateLimitedError extends OverLimitError {
  override readonly name = "RateLimitedError";
}

/** The key has too many requests in flight. */
export class TooManyAtOnceError extends OverLimitError {
  override readonly name = "TooManyAtOnceError";
}

/** The key has used up its tokens of the day, or the operator's its quota at the upstream. */
export class TokensUsedUpError extends OverLimitError {
  override readonly name = "TokensUsedUpError";
}

/** The server cannot answer at the moment. */
export class UnavailableError extends RefusedError {
  override readonly name:
    | "UnavailableError"
    | "ScorerUnavailableError"
    | "DeadlineExceededError"
    | "OverloadedError"
    | "UpstreamFailedError"
    | "DrainingError" = "UnavailableError";
}

/** The Q model gave no answer. */
export class ScorerUnavailableError extends UnavailableError {
  override readonly name = "ScorerUnavailableError";
}

/** The server's time limit, or the request's, was up; the message says during which work. */
export class DeadlineExceededError extends UnavailableError {
  override readonly name = "DeadlineExceededError";
}

/** The server's queue is full. */
export class OverloadedError extends UnavailableError {
  override readonly name = "OverloadedError";
}

/** The server behind the policy failed, is slow or is gone; `code` says which. */
export class UpstreamFailedError extends UnavailableError {
  override readonly name = "UpstreamFailedError";
}

/** The server is shutting down and takes no new requests. */
export class DrainingError extends UnavailableError {
  override readonly name = "DrainingError";
}

/** The server failed; its log names the request by its id. */
export class ServerFailedError extends RefusedError {
  override readonly name = "ServerFailedError";
}

type RefusedClass = new (message: string, refusal: Refusal) => RefusedError;

/** Codes that have a class of their own, including OpenAI's codes; other codes map by status. */
const OF_CODE: ReadonlyMap<string, RefusedClass> = new Map<string, RefusedClass>([
  ["history_too_long", HistoryTooLongError],
  ["context_length_exceeded", HistoryTooLongError],
  ["invalid_candidates", InvalidCandidatesError],
  ["malformed_history", MalformedHistoryError],
  ["rendering_failed", RenderingError],
  ["malformed_body", MalformedBodyError],
  ["upstream_refused", UpstreamRefusedError],
  ["content_policy_violation", UpstreamRefusedError],
  ["content_filter", UpstreamRefusedError],
  ["unknown_model", UnknownModelError],
  ["model_not_found", UnknownModelError],
  ["unknown_episode", UnknownEpisodeError],
  ["episode_closed", EpisodeClosedError],
  ["rate_limited", RateLimitedError],
  ["too_many_at_once", TooManyAtOnceError],
  ["tokens_used_up", TokensUsedUpError],
  ["insufficient_quota", TokensUsedUpError],
  ["scorer_unavailable", ScorerUnavailableError],
  ["deadline_exceeded", DeadlineExceededError],
  ["overloaded", OverloadedError],
  ["upstream_failed", UpstreamFailedError],
  ["upstream_timeout", UpstreamFailedError],
  ["upstream_unavailable", UpstreamFailedError],
  ["upstream_busy", UpstreamFailedError],
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
  [426, InvalidRequestError],
  [429, OverLimitError],
  [431, InvalidRequestError],
  [500, ServerFailedError],
  [502, UnavailableError],
  [503, UnavailableError],
  [504, UnavailableError],
]);

/** Make the error of a refusal, of the class that its code or else its status has. */
export function refused(message: string, refusal: Refusal): RefusedError {
  const kind = OF_CODE.get(refusal.code ?? "") ?? OF_STATUS.get(refusal.status) ?? RefusedError;
  return new kind(message, refusal);
}
