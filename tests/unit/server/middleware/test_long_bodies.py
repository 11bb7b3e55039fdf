"""Long bodies are parsed one at a time, each key's in turn; short ones wait for none of them."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import httpx
from starlette.types import Receive, Scope, Send

from server.middleware.bodies import BodyReader
from server.middleware.long_bodies import LONG_BYTES, LongBodyTurns

PARSING_S = 0.001


def ticking() -> Iterator[float]:
    """A clock by which every turn takes as long as any other."""
    return (PARSING_S * tick for tick in count())


class Parsers:
    """Bodies that are parsed in their turns, in the order in which they got them."""

    def __init__(self) -> None:
        self.turns = LongBodyTurns(clock=ticking().__next__)
        self.order: list[str] = []

    async def parse(self, caller: str) -> None:
        """Wait for a turn, and take note of it."""
        await self.turns.take(caller)
        self.order.append(caller)


async def test_another_keys_body_is_next_however_many_a_key_has_waiting() -> None:
    parsers = Parsers()
    async with asyncio.timeout(30):
        await asyncio.gather(*(parsers.parse(caller) for caller in [*["crowd"] * 6, "victim"]))
    assert parsers.order == ["crowd", "victim", *["crowd"] * 5]


async def test_who_gives_up_waiting_hands_the_turn_on() -> None:
    parsers = Parsers()
    first, second, third = (asyncio.create_task(parsers.parse(name)) for name in "abc")
    await asyncio.sleep(0)  # the first has its turn, and the others wait
    second.cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(first, third)
    assert parsers.order == ["a", "c"]


async def test_who_gives_up_just_as_it_is_called_hands_the_turn_on() -> None:
    parsers = Parsers()
    first, second, third = (asyncio.create_task(parsers.parse(name)) for name in "abc")
    await asyncio.sleep(0)
    parsers.turns._call_next()
    second.cancel()  # called, and not yet running
    with suppress(asyncio.CancelledError):
        await second
    async with asyncio.timeout(30):
        await asyncio.gather(first, third)
    assert parsers.order == ["a", "c"]


async def test_a_short_body_waits_for_no_long_one() -> None:
    read: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        read.append(len(message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    reader = BodyReader(app, max_body_bytes=2 * LONG_BYTES, timeout_s=30)
    long, short = b"x" * (LONG_BYTES + 1), b"x" * LONG_BYTES
    transport = httpx.ASGITransport(reader)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        reader._turns._taken = True  # a turn that does not end
        waiting = asyncio.create_task(http.post("/", content=long))
        for _ in range(20):
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await http.post("/", content=short)
        assert read == [len(short)]
        reader._turns._call_next()
        async with asyncio.timeout(30):
            await waiting
        assert read == [len(short), len(long)]
