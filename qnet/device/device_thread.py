"""The thread that owns the device, and two more that tokenize for it.

A tokenizer takes a second for a megabyte, and the device must not wait for that. Short and long
texts have a thread each, so that no short one waits for a long one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from qguide.qnet.device.fair_thread import DEFAULT_MAX_WAITING, FairThread
from qguide.qnet.tenant import current_tenant

Result = TypeVar("Result")

LONG_CHARACTERS = 32_768
"""A text of more, which takes a tokenizer some 50 ms, is a long one."""


class DeviceThread(FairThread):
    """One thread that runs everything that needs the device, so that nothing fights for it."""

    def __init__(
        self,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        is_lost: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        self._tokenizers: dict[bool, FairThread] = {}
        super().__init__("qguide-device", max_waiting=max_waiting, is_lost=is_lost)

    async def tokenize(self, work: Callable[[], Result], *, characters: int) -> Result:
        """Tokenize a text of so many characters on another thread, in its caller's turn."""
        return await asyncio.wrap_future(self.tokenizing(work, characters=characters))

    def tokenizing(self, work: Callable[[], Result], *, characters: int) -> "Future[Result]":
        """The same as `tokenize`, as a future."""
        long = characters > LONG_CHARACTERS
        if long not in self._tokenizers:
            name = "qguide-tokenizer-long" if long else "qguide-tokenizer"
            self._tokenizers[long] = FairThread(name)
        return self._tokenizers[long].call(work, caller=current_tenant().name)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Stop all three; see `FairThread.close`."""
        super().close(timeout_s=timeout_s)
        for thread in self._tokenizers.values():
            thread.close(timeout_s=timeout_s)
