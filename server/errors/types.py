"""Errors of the server itself, raised before a request reaches its route.

QGuideError
├── UntrustedHostError      the request names a host that this server is not
├── UnauthorizedError       no API key, or one that does not exist
├── ForbiddenError          a key that does not allow this
├── BodyTooLargeError       more bytes than the server takes
├── BodyTimeoutError        the body did not come in time
├── MalformedBodyError      a body that cannot be stored or passed on
├── DrainingError           the server is about to end
└── OverLimitError          the requests or tokens of this key are used up
"""

from qnet.errors import QGuideError


class UnauthorizedError(QGuideError):
    """No API key was sent, or one that does not exist."""


class ForbiddenError(QGuideError):
    """The API key does not allow this."""


class UntrustedHostError(QGuideError):
    """The request is for a host that this server does not answer to."""


class BodyTooLargeError(QGuideError):
    """The body is larger than `QGUIDE_MAX_BODY_BYTES`."""

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(
            f"the body has more than {max_body_bytes:,} bytes; shorten the history or raise "
            "QGUIDE_MAX_BODY_BYTES"
        )


class BodyTimeoutError(QGuideError):
    """The head or the body of a request did not come in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"the body had not come after {timeout_s:g} s; send it faster or raise "
            "QGUIDE_BODY_TIMEOUT_S"
        )


class MalformedBodyError(QGuideError):
    """The body is not JSON in UTF-8, or not of the endpoint's shape."""


class DrainingError(QGuideError):
    """The server is about to end and takes no new requests."""


class OverLimitError(QGuideError):
    """The requests or tokens of this key are used up.

    Args:
        code: which limit, for programs.
        retry_after_s: when the next request can succeed, if nobody else uses the key.
    """

    def __init__(self, message: str, *, code: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
