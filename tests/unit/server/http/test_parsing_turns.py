"""Connections whose data is many small pieces take turns, and leave the loop to others between."""

import asyncio

import pytest

from qguide.server.http.connection_limits import ParsingTurns


async def test_connections_take_turns_and_each_waits_for_its_next() -> None:
    turns, order = ParsingTurns(), []
    done = asyncio.Event()

    def turn(name: str, left: int) -> None:
        order.append(name)
        if left:
            turns.add(lambda: turn(name, left - 1))
        elif len(order) == 9:
            done.set()

    for name in "abc":
        turns.add(lambda name=name: turn(name, 2))  # type: ignore[misc]
    async with asyncio.timeout(30):
        await done.wait()
    assert "".join(order) == "abcabcabc"


async def test_the_loop_is_left_to_others_for_three_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, pauses = 0.0, []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(pause_s: float, call: object, *arguments: object) -> object:
        pauses.append(pause_s)
        return call_later(0, call, *arguments)  # type: ignore[arg-type]

    def turn() -> None:
        nonlocal now_s
        now_s += 0.002

    turns = ParsingTurns(clock=lambda: now_s)
    monkeypatch.setattr(loop, "call_later", noted)
    for _ in range(3):
        turns.add(turn)
    for _ in range(100):
        await asyncio.sleep(0)
    assert pauses == pytest.approx([0.006] * 3)


async def test_a_turn_that_fails_ends_no_other() -> None:
    turns, done = ParsingTurns(), asyncio.Event()
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def fail() -> None:
        raise ValueError("broken")

    turns.add(fail)
    turns.add(done.set)
    async with asyncio.timeout(30):
        await done.wait()
    assert len(told) == 1
