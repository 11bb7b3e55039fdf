"""Works of one caller run side by side, as many at once as they may."""

import asyncio
import inspect

import pytest

from qguide.qnet.work import all_of


class Works:
    """Works that wait for an event; remembers those that have begun, and how many ran at once."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: list[int] = []
        self.running = self.most = 0

    async def work(self, number: int) -> int:
        """Wait, then double the number; 13 fails."""
        self.begun.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
            if number == 13:
                raise ValueError("unlucky")
            return 2 * number
        finally:
            self.running -= 1


async def test_only_so_many_have_begun_at_once_and_results_are_in_order() -> None:
    works = Works()
    running = asyncio.create_task(all_of([works.work(n) for n in range(5)], at_once=2))
    while len(works.begun) < 2:
        await asyncio.sleep(0)
    assert works.begun == [0, 1]
    works.go.set()
    assert await running == [0, 2, 4, 6, 8]
    assert works.most == 2


async def test_without_a_limit_all_begin() -> None:
    works = Works()
    running = asyncio.create_task(all_of([works.work(n) for n in range(5)]))
    while len(works.begun) < 5:
        await asyncio.sleep(0)
    works.go.set()
    assert await running == [0, 2, 4, 6, 8]
    assert await all_of([]) == []


async def test_one_that_fails_takes_the_others_along() -> None:
    works = Works()
    works.go.set()
    with pytest.raises(ValueError, match="unlucky"):
        await all_of([works.work(n) for n in (13, 1, 2)], at_once=1)
    assert works.running == 0


async def test_works_without_a_turn_yet_end_with_their_caller() -> None:
    works = Works()
    waiting = [works.work(n) for n in range(3)]
    running = asyncio.create_task(all_of(waiting, at_once=1))
    while not works.begun:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (works.begun, works.running) == ([0], 0)
    assert {inspect.getcoroutinestate(work) for work in waiting} == {inspect.CORO_CLOSED}
