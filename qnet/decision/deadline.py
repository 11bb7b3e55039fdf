"""A shared deadline for all work done for one request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

from qguide.qnet.errors import DeadlineExceededError


@dataclass(frozen=True, slots=True)
class Deadline:
    """A shared deadline for all work done for one request.

    Attributes:
        at: by the running loop's clock; None never comes.
        timeout_s: how far off it was.
        remedy: what the caller may do about it.
    """

    at: float | None = None
    timeout_s: float = 0.0
    remedy: str = "ask for less or try again later"

    @classmethod
    def after(cls, timeout_s: float, *, remedy: str = remedy) -> Self:
        """A deadline that many seconds from now."""
        return cls(asyncio.get_running_loop().time() + timeout_s, timeout_s, remedy)

    @asynccontextmanager
    async def enforce(self, doing: str) -> AsyncIterator[None]:
        """Cancel the block when the time is up, and with it what still waits for the device.

        Args:
            doing: work of the block, for the error: "candidates were being drawn".

        Raises:
            DeadlineExceededError: the time is up.
        """
        try:
            async with asyncio.timeout_at(self.at):
                yield
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"no answer within {self.timeout_s:g} s, {doing}; {self.remedy}"
            ) from error


NO_DEADLINE: Final = Deadline()

DRAWING: Final = "candidates were still being drawn"
SCORING: Final = "candidates were still being scored"
REWORDING: Final = "the task was still being reworded"
"""Work that a deadline can end."""
