"""Errors of the server itself; most are raised before the route runs."""

from collections.abc import Mapping
from typing import Final

from qguide.qnet.errors import InvalidRequestError, QGuideError


class UnauthorizedError(QGuideError):
    """No API key was sent, or an unknown one."""


class ForbiddenError(QGuideError):
    """The API key does not allow this."""


class UntrustedHostError(QGuideError):
    """The Host header names a host that is not trusted."""


class BodyTooLargeError(QGuideError):
    """The body is larger than `QGUIDE_MAX_BODY_BYTES`."""

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(
            f"the body is larger than {max_body_bytes:,} bytes; shorten the history or raise QGUIDE_MAX_BODY_BYTES"
        )


class BodyTimeoutError(QGuideError):
    """The head or the body of a request did not arrive in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"the body had not arrived after {timeout_s:g} s; send it faster or raise QGUIDE_BODY_TIMEOUT_S"
        )


class MalformedBodyError(QGuideError):
    """The body is not JSON in UTF-8, or does not fit the endpoint's schema."""


class DrainingError(QGuideError):
    """The server is shutting down and accepts no new requests."""


class BelowThresholdError(QGuideError):
    """No candidate of a step is good enough for the operator, who has chosen to stop there."""

    def __init__(self, message: str, *, details: Mapping[str, object]) -> None:
        super().__init__(message)
        self.details = details


class UnknownResponseError(QGuideError):
    """There is no stored response or conversation of that id, or it has expired."""


class PreviousResponseError(InvalidRequestError):
    """The response, conversation or item that a request continues is not stored."""

    def __init__(self, message: str, *, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class OverLimitError(QGuideError):
    """The key has used up its requests or tokens."""

    def __init__(self, message: str, *, code: str, limit: int, retry_after_s: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.headers = rate_limit_headers(limit, remaining=0, reset_s=retry_after_s)


RATE_LIMIT_HEADERS: Final = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def rate_limit_headers(limit: int, *, remaining: int, reset_s: int) -> Mapping[str, str]:
    """RateLimit headers of one limit: of the minute's requests, or of the one that was reached."""
    return dict(zip(RATE_LIMIT_HEADERS, map(str, (limit, remaining, reset_s)), strict=True))
