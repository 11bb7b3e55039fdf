"""Why a caller may not go on, or not now: what the door of the server raises.

QGuideError
├── UnauthorizedError       no key, or one that nobody has
├── ForbiddenError          a key that may not do this
├── DrainingError           the server is about to end
└── OverLimitError          this caller's requests or tokens are used up
"""

from qnet.errors import QGuideError


class UnauthorizedError(QGuideError):
    """There is no key, or nobody has it."""


class ForbiddenError(QGuideError):
    """The key may not do this."""


class DrainingError(QGuideError):
    """The server is about to end and takes nothing new."""


class OverLimitError(QGuideError):
    """This caller's requests or tokens are used up.

    Args:
        code: which limit, for programs.
        retry_after_s: when the next request can succeed, if nobody else uses the key.
    """

    def __init__(self, message: str, *, code: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
