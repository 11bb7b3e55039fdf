/** A client for QGuide servers, for browsers and Node, without dependencies. */

export { type ClientOptions, DEFAULT_URL, QGuide, type RequestOptions } from "./client.js";
export type { Retry } from "./conversation.js";
export { Episode, type EpisodeOptions, type Observation } from "./episode.js";
export {
  BodyTooLargeError,
  ConflictError,
  DeadlineExceededError,
  DrainingError,
  EpisodeClosedError,
  EpisodeError,
  ForbiddenError,
  HistoryTooLongError,
  InvalidCandidatesError,
  InvalidRequestError,
  MalformedBodyError,
  MalformedHistoryError,
  NoAnswerError,
  NotFoundError,
  OverLimitError,
  OverloadedError,
  QGuideError,
  RateLimitedError,
  RefusedError,
  RenderingError,
  ScorerUnavailableError,
  ServerFailedError,
  TimedOutError,
  TokensUsedUpError,
  TooManyAtOnceError,
  UnauthorizedError,
  UnavailableError,
  UnknownEpisodeError,
  UnknownModelError,
  UnreachableError,
  UnreadableAnswerError,
  UpstreamFailedError,
  UpstreamRefusedError,
} from "./errors.js";
export type { Fetch } from "./exchange.js";
export type * from "./types.js";
