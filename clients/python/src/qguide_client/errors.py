"""Every error that this client raises.

QGuideError
├── NoAnswerError                nothing came back
│   ├── UnreachableError         no connection, or it broke
│   └── TimedOutError            not within `timeout_s`
├── UnreadableAnswerError        what came back is none of QGuide's answers
├── EpisodeError                 an episode was used in an order that makes no sense
└── RefusedError                 the server said no: status, code, request id
    ├── InvalidRequestError      400, 405, 408, 422, 431: send something else
    │   ├── HistoryTooLongError
    │   ├── InvalidCandidatesError
    │   ├── MalformedHistoryError
    │   ├── RenderingError
    │   ├── UpstreamRefusedError
    │   └── MalformedBodyError
    ├── UnauthorizedError        401: no key, or one that nobody has
    ├── ForbiddenError           403: a key that may not do this
    ├── NotFoundError            404
    │   ├── UnknownModelError
    │   └── UnknownEpisodeError
    ├── ConflictError            409
    │   └── EpisodeClosedError   it has its outcome already
    ├── BodyTooLargeError        413
    ├── OverLimitError           429: come back after `retry_after_s`
    │   ├── RateLimitedError     too many requests in this minute
    │   ├── TooManyAtOnceError   too many requests at the same time
    │   └── TokensUsedUpError    no tokens are left for the day
    ├── UnavailableError         502, 503, 504: not now
    │   ├── ScorerUnavailableError
    │   ├── OverloadedError      too many requests wait already
    │   ├── UpstreamFailedError  the server behind the policy: broken, slow or gone
    │   └── DrainingError        this server is about to end; another may answer
    └── ServerFailedError        500
"""

from typing import Final


class QGuideError(Exception):
    """Whatever went wrong between the caller and the server.

    Attributes:
        request_id: what the server's log calls the request; "" where none was made.
    """

    def __init__(self, message: str, *, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} (request {self.request_id})" if self.request_id else message


class NoAnswerError(QGuideError):
    """Nothing came back."""


class UnreachableError(NoAnswerError):
    """There is no connection, or it broke."""


class TimedOutError(NoAnswerError):
    """The answer took longer than `timeout_s`."""


class UnreadableAnswerError(QGuideError):
    """What came back is none of QGuide's answers: another server, or one too old."""


class EpisodeError(QGuideError):
    """An episode was used in an order that makes no sense."""


class RefusedError(QGuideError):
    """The server said no.

    Attributes:
        status: of HTTP.
        code: what went wrong, for programs; "" where something in front of QGuide answered.
        retry_after_s: when the server says that asking again makes sense; None: it does not say.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        request_id: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, request_id=request_id)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class InvalidRequestError(RefusedError):
    """Send something else."""


class HistoryTooLongError(InvalidRequestError):
    """The history and a reply exceed the model's context or the server's limit."""


class InvalidCandidatesError(InvalidRequestError):
    """None, too many, an empty or a repeated one."""


class MalformedHistoryError(InvalidRequestError):
    """The turns are in no order that a chat can have."""


class RenderingError(InvalidRequestError):
    """The model's chat template cannot say these messages."""


class UpstreamRefusedError(InvalidRequestError):
    """The server behind the policy does not take this request."""


class MalformedBodyError(InvalidRequestError):
    """A field is missing, unknown or of another type."""


class UnauthorizedError(RefusedError):
    """There is no key, or nobody has it."""


class ForbiddenError(RefusedError):
    """The key may not do this."""


class NotFoundError(RefusedError):
    """There is no such thing, or this server is too old to have it."""


class UnknownModelError(NotFoundError):
    """No model of this name is served."""


class UnknownEpisodeError(NotFoundError):
    """No step of this episode is known, or no longer."""


class ConflictError(RefusedError):
    """Not in the state that things are in."""


class EpisodeClosedError(ConflictError):
    """The episode has its outcome already."""


class BodyTooLargeError(RefusedError):
    """More bytes than the server takes."""


class OverLimitError(RefusedError):
    """The key's share is used up for now."""


class RateLimitedError(OverLimitError):
    """Too many requests in this minute."""


class TooManyAtOnceError(OverLimitError):
    """Too many requests at the same time."""


class TokensUsedUpError(OverLimitError):
    """No tokens are left for the day."""


class UnavailableError(RefusedError):
    """Not now."""


class ScorerUnavailableError(UnavailableError):
    """The Q model gives no answer, or none in time."""


class OverloadedError(UnavailableError):
    """Too many requests wait already."""


class UpstreamFailedError(UnavailableError):
    """The server behind the policy is broken, slow or gone; `code` says which."""


class DrainingError(UnavailableError):
    """The server is about to end and takes nothing new."""


class ServerFailedError(RefusedError):
    """The server failed; its log has the request's id."""


OF_CODE: Final[dict[str, type[RefusedError]]] = {
    "history_too_long": HistoryTooLongError,
    "invalid_candidates": InvalidCandidatesError,
    "malformed_history": MalformedHistoryError,
    "rendering_failed": RenderingError,
    "context_length_exceeded": HistoryTooLongError,
    "malformed_body": MalformedBodyError,
    "upstream_refused": UpstreamRefusedError,
    "unknown_model": UnknownModelError,
    "model_not_found": UnknownModelError,
    "unknown_episode": UnknownEpisodeError,
    "episode_closed": EpisodeClosedError,
    "rate_limited": RateLimitedError,
    "too_many_at_once": TooManyAtOnceError,
    "tokens_used_up": TokensUsedUpError,
    "scorer_unavailable": ScorerUnavailableError,
    "overloaded": OverloadedError,
    "upstream_failed": UpstreamFailedError,
    "upstream_timeout": UpstreamFailedError,
    "upstream_unavailable": UpstreamFailedError,
    "draining": DrainingError,
}
"""Codes that have a class of their own, OpenAI's words for them too; every other code has its
status's."""

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
    429: OverLimitError,
    431: InvalidRequestError,
    500: ServerFailedError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def class_of(status: int, code: str) -> type[RefusedError]:
    """The class of what a server refused."""
    return OF_CODE.get(code) or OF_STATUS.get(status, RefusedError)
