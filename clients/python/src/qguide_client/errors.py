"""Every error that this client raises.

QGuideError
├── NoAnswerError                no answer arrived
│   ├── UnreachableError         the connection failed or broke
│   └── TimedOutError            no answer within `timeout_s` or `deadline_s`
├── UnreadableAnswerError        an answer that is not QGuide's
├── EpisodeError                 a step after the episode's end
└── RefusedError                 the server refused: status, code, request id
    ├── InvalidRequestError      400, 405, 408, 422, 426, 431: the request must change
    │   ├── HistoryTooLongError
    │   ├── InvalidCandidatesError
    │   ├── MalformedHistoryError
    │   ├── RenderingError
    │   ├── UpstreamRefusedError
    │   └── MalformedBodyError
    ├── UnauthorizedError        401: no key, or an unknown one
    ├── ForbiddenError           403: the key may not do this
    ├── NotFoundError            404
    │   ├── UnknownModelError
    │   └── UnknownEpisodeError
    ├── ConflictError            409
    │   └── EpisodeClosedError   the episode has its outcome already
    ├── BodyTooLargeError        413
    ├── OverLimitError           429: retry after `retry_after_s`
    │   ├── RateLimitedError     too many requests in this minute
    │   ├── TooManyAtOnceError   too many requests at the same time
    │   └── TokensUsedUpError    no tokens are left for the day
    ├── UnavailableError         502, 503, 504: unavailable for now
    │   ├── ScorerUnavailableError
    │   ├── DeadlineExceededError  the server's time limit, or the request's, was up
    │   ├── OverloadedError      the server's queue is full
    │   ├── UpstreamFailedError  the server behind the policy failed, is slow or is gone
    │   └── DrainingError        the server is shutting down; another may answer
    └── ServerFailedError        500
"""

from typing import Final


class QGuideError(Exception):
    """Base class of every error that this client raises.

    Attributes:
        request_id: id of the request in the server's log; "" if no request was made.
    """

    def __init__(self, message: str, *, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} (request {self.request_id})" if self.request_id else message


class NoAnswerError(QGuideError):
    """No answer arrived."""


class UnreachableError(NoAnswerError):
    """The connection could not be opened, or it broke."""


class TimedOutError(NoAnswerError):
    """No answer arrived within `timeout_s` or `deadline_s`."""


class UnreadableAnswerError(QGuideError):
    """An answer that is not QGuide's: another server's, or an incompatible version's."""


class EpisodeError(QGuideError):
    """A step of an episode that has ended."""


class RefusedError(QGuideError):
    """The server refused the request.

    Attributes:
        status: the HTTP status; 200 if the error came inside a stream.
        code: the error's code, for programs; "" if a proxy in front of QGuide answered.
        retry_after_s: seconds after which to ask again, as the server says; None if it does not.
    """

    def __init__(
        self, message: str, *, status: int, code: str = "", request_id: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, request_id=request_id)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class InvalidRequestError(RefusedError):
    """The request is invalid and must be changed."""


class HistoryTooLongError(InvalidRequestError):
    """The history and a reply together exceed the model's context or the server's limit."""


class InvalidCandidatesError(InvalidRequestError):
    """There are no candidates, too many, an empty one or a repeated one."""


class MalformedHistoryError(InvalidRequestError):
    """The messages are not in an order that a chat can have."""


class RenderingError(InvalidRequestError):
    """The model's chat template cannot render these messages."""


class UpstreamRefusedError(InvalidRequestError):
    """The server behind the policy refused the request."""


class MalformedBodyError(InvalidRequestError):
    """A field is missing, unknown or of the wrong type."""


class UnauthorizedError(RefusedError):
    """The request has no key, or an unknown one."""


class ForbiddenError(RefusedError):
    """The key may not do this."""


class NotFoundError(RefusedError):
    """The resource does not exist, or the server is too old to have it."""


class UnknownModelError(NotFoundError):
    """No model of this name is served."""


class UnknownEpisodeError(NotFoundError):
    """The server knows no step of this episode, or no longer does."""


class ConflictError(RefusedError):
    """The request conflicts with the current state."""


class EpisodeClosedError(ConflictError):
    """The episode has its outcome already."""


class BodyTooLargeError(RefusedError):
    """The body has more bytes than the server takes."""


class OverLimitError(RefusedError):
    """The key has reached one of its limits, or the upstream takes no more requests now."""


class RateLimitedError(OverLimitError):
    """The key has sent too many requests in this minute."""


class TooManyAtOnceError(OverLimitError):
    """The key has too many requests in flight."""


class TokensUsedUpError(OverLimitError):
    """The key has used up its tokens of the day, or the operator's its quota at the upstream."""


class UnavailableError(RefusedError):
    """The server cannot answer at the moment."""


class ScorerUnavailableError(UnavailableError):
    """The Q model gave no answer."""


class DeadlineExceededError(UnavailableError):
    """The server's time limit, or the request's, was up; the message says during which work."""


class OverloadedError(UnavailableError):
    """The server's queue is full."""


class UpstreamFailedError(UnavailableError):
    """The server behind the policy failed, is slow or is gone; `code` says which."""


class DrainingError(UnavailableError):
    """The server is shutting down and takes no new requests."""


class ServerFailedError(RefusedError):
    """The server failed; its log names the request by its id."""


OF_CODE: Final[dict[str, type[RefusedError]]] = {
    "history_too_long": HistoryTooLongError,
    "invalid_candidates": InvalidCandidatesError,
    "malformed_history": MalformedHistoryError,
    "rendering_failed": RenderingError,
    "context_length_exceeded": HistoryTooLongError,
    "malformed_body": MalformedBodyError,
    "upstream_refused": UpstreamRefusedError,
    "content_policy_violation": UpstreamRefusedError,
    "content_filter": UpstreamRefusedError,
    "unknown_model": UnknownModelError,
    "model_not_found": UnknownModelError,
    "unknown_episode": UnknownEpisodeError,
    "episode_closed": EpisodeClosedError,
    "rate_limited": RateLimitedError,
    "too_many_at_once": TooManyAtOnceError,
    "tokens_used_up": TokensUsedUpError,
    "insufficient_quota": TokensUsedUpError,
    "scorer_unavailable": ScorerUnavailableError,
    "deadline_exceeded": DeadlineExceededError,
    "overloaded": OverloadedError,
    "upstream_failed": UpstreamFailedError,
    "upstream_timeout": UpstreamFailedError,
    "upstream_unavailable": UpstreamFailedError,
    "upstream_busy": UpstreamFailedError,
    "draining": DrainingError,
}
"""Class by code, OpenAI's codes included; any other code leaves the choice to the status."""

OF_STATUS: Final[dict[int, type[RefusedError]]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    405: InvalidRequestError,
    408: InvalidRequestError,
    409: ConflictError,
    413: BodyTooLargeError,
    422: InvalidRequestError,
    426: InvalidRequestError,
    429: OverLimitError,
    431: InvalidRequestError,
    500: ServerFailedError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def class_of(status: int, code: str) -> type[RefusedError]:
    """Find the class of a refusal."""
    return OF_CODE.get(code) or OF_STATUS.get(status, RefusedError)
