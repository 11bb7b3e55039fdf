"""Clocks that no machine's load changes."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from selectors import DefaultSelector, SelectorKey
from typing import Any, Final, ParamSpec

P = ParamSpec("P")
START_S: Final = 100.0


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s


class _Selector(DefaultSelector):
    """Sets a clock forward in place of waiting."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        self._clock.now_s += 0 if ready else timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while it waits."""

    def __init__(self) -> None:
        self._shown = Clock()
        super().__init__(_Selector(self._shown))

    def time(self) -> float:
        return self._shown()


def without_waiting(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The test on a loop of its own, where each sleep ends at its very time and takes none."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(test(*args, **kwargs))

    return run
