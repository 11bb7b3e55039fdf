"""How long a request may take: the operator's limit, or a shorter one of the caller's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, Header

from qnet.errors import ScorerUnavailableError
from server.dependencies import SettingsDep

TIMEOUT_HEADER = "X-QGuide-Timeout-S"


class Deadline:
    """A point in time after which nobody wants the answer any more.

    Args:
        timeout_s: from now.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at = asyncio.get_running_loop().time() + timeout_s

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Give up what runs within when the time is up; what still waits for the device is dropped.

        Raises:
            ScorerUnavailableError: the time is up.
        """
        try:
            async with asyncio.timeout_at(self._at):
                yield
        except TimeoutError as error:
            raise ScorerUnavailableError(
                f"no answer within {self._timeout_s:g} s; ask for less, allow more "
                f"({TIMEOUT_HEADER}, QGUIDE_TIMEOUT_S) or try again later"
            ) from error


async def _deadline(
    settings: SettingsDep,
    wanted_s: Annotated[
        float | None,
        Header(
            alias=TIMEOUT_HEADER,
            gt=0,
            allow_inf_nan=False,
            description="seconds after which the caller wants no answer; the server's limit holds",
        ),
    ] = None,
) -> Deadline:
    return Deadline(min(settings.timeout_s, wanted_s or settings.timeout_s))


DeadlineDep = Annotated[Deadline, Depends(_deadline)]
