"""Long bodies are read one at a time in a thread, each key's in turn; short ones wait for none."""

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from qguide.qnet.turns import Pace
from qguide.server.app import create_app
from qguide.server.http import long_bodies
from qguide.server.http.bodies import is_long
from qguide.server.http.long_bodies import LONG_BYTES, LONG_VALUES, LongBodies
from tests.unit.server.conftest import FAKES

READING_S = 0.001


def ticking() -> Iterator[float]:
    """A clock by which every turn takes as long as any other."""
    return (READING_S * tick for tick in count())


class Readers:
    """Bodies that are read in their turns, in the order in which they got them."""

    def __init__(self) -> None:
        self.bodies = LongBodies(clock=ticking().__next__)
        self.order: list[str] = []

    async def read(self, caller: str, work: Callable[[], object] = lambda: None) -> None:
        """Wait for a turn, and take note of it."""

        def noted() -> None:
            self.order.append(caller)
            work()

        await self.bodies.work(caller, noted)


@pytest.fixture
def readers() -> Iterator[Readers]:
    one = Readers()
    yield one
    one.bodies.close()


async def test_another_keys_body_is_next_however_many_a_key_has_waiting(readers: Readers) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(*(readers.read(caller) for caller in [*["crowd"] * 6, "victim"]))
    assert readers.order == ["crowd", "victim", *["crowd"] * 5]


async def test_who_gives_up_waiting_hands_the_turn_on(readers: Readers) -> None:
    first, second, third = (asyncio.create_task(readers.read(name)) for name in "abc")
    await asyncio.sleep(0)  # the first has its turn, and the others wait
    second.cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(first, third)
    assert readers.order == ["a", "c"]


async def test_who_gives_up_just_as_it_is_called_hands_the_turn_on(readers: Readers) -> None:
    release = threading.Event()
    first = asyncio.create_task(readers.read("a", release.wait))
    second, third = (asyncio.create_task(readers.read(name)) for name in "bc")
    await asyncio.sleep(0)
    readers.bodies._call_next()
    second.cancel()  # called, and not yet running
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    async with asyncio.timeout(30):
        await asyncio.gather(first, third)
    assert readers.order == ["a", "c"]


async def test_who_hangs_up_keeps_its_turn_until_its_work_is_done(readers: Readers) -> None:
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        release.wait()

    first = asyncio.create_task(readers.read("a", hold))
    second = asyncio.create_task(readers.read("b"))
    await asyncio.to_thread(begun.wait)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    for _ in range(20):
        await asyncio.sleep(0)
    assert readers.order == ["a"]
    release.set()
    async with asyncio.timeout(30):
        await second
    assert readers.order == ["a", "b"]


async def test_an_error_of_the_work_is_its_callers_and_ends_its_turn(readers: Readers) -> None:
    def fail() -> None:
        raise ValueError("no JSON")

    async with asyncio.timeout(30):
        with pytest.raises(ValueError, match="no JSON"):
            await readers.read("a", fail)
        await readers.read("b")
    assert readers.order == ["a", "b"]


class Node:
    """An object that can be part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


async def test_objects_of_a_long_body_are_walked_by_no_collection_and_frozen_ones_stay_so(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_bodies, "_FEW_OBJECTS_S", 0)
    new: list[list[object]] = []
    gc.freeze()
    await readers.read("a", lambda: new.append([]))
    walked = {id(one) for one in gc.get_objects()}
    assert id(new[0]) not in walked
    assert id(Node) not in walked


@pytest.mark.parametrize("limit", ["_FULL_COLLECTION_S", "_MOST_FREEZES"])
async def test_cycles_that_were_frozen_end_after_much_work(
    readers: Readers, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(long_bodies, "_FEW_OBJECTS_S", 0)
    node = Node()
    left = weakref.ref(node)
    await readers.read("a")
    del node
    gc.collect()
    assert left() is not None
    monkeypatch.setattr(long_bodies, limit, 0)
    await readers.read("a")
    assert left() is None


@pytest.mark.parametrize(
    ("body", "long"),
    [
        (b"x" * LONG_BYTES, False),
        (b"x" * (LONG_BYTES + 1), True),
        (b"[" + b"1," * LONG_VALUES, True),
        (b"[" + b"1," * (LONG_VALUES - 1), False),
    ],
)
def test_a_body_is_long_by_its_bytes_or_its_values(body: bytes, long: bool) -> None:
    assert is_long(body) is long


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"candidates": ["go"]}),
        ("/v1/act", {}),
        ("/v1/chat/completions", {}),
        ("/v1/messages", {"max_tokens": 9}),
    ],
)
async def test_a_short_body_waits_for_no_long_one(path: str, body: dict[str, Any]) -> None:
    app = create_app(FAKES)
    short = body | {"messages": [{"role": "user", "content": "look"}]}
    long = body | {"messages": [{"role": "user", "content": "look " * LONG_BYTES}]}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http,
        asyncio.timeout(30),
    ):
        bodies: LongBodies = app.state.long_bodies
        bodies._taken = True  # a turn that does not end
        waiting = asyncio.create_task(http.post(path, json=long))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await http.post(path, json=short)).status_code == 200
        assert not waiting.done()
        bodies._call_next()
        assert (await waiting).status_code == 200


def test_long_work_rests_between_its_parts() -> None:
    now_s, rests = 0.0, []

    def rest(seconds: float) -> None:
        nonlocal now_s
        rests.append(now_s)
        now_s += seconds

    pace = Pace(clock=lambda: now_s, rest=rest)
    for part in range(100):
        assert pace.keep(part) == part
        now_s += 0.0003
    assert len(rests) == pytest.approx(100 * 0.0003 / 0.001, rel=0.3)


@pytest.mark.parametrize(
    ("path", "more", "rests"),
    [
        ("/v1/score", {"candidates": ["go"]}, 2),  # when it is parsed, and when it is validated
        ("/v1/chat/completions", {}, 6),  # and when it is translated and checked
        ("/v1/messages", {"max_tokens": 9}, 6),
    ],
)
async def test_a_long_body_is_read_beside_the_event_loop_and_rests_between_its_messages(
    path: str, more: dict[str, Any], rests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    parts = 0

    def keep(_: Pace, part: object) -> object:
        nonlocal parts
        threads.add(threading.current_thread().name)
        parts += 1
        return part

    monkeypatch.setattr(Pace, "keep", keep)
    messages = [{"role": role, "content": "look"} for _ in range(500) for role in ("user", "assistant")]
    body = json.dumps({"messages": messages[:-1]} | more)
    app = create_app(FAKES)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http,
    ):
        headers = {"content-type": "application/json"}
        answer = await http.post(path, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert parts >= rests * 999
    [thread] = threads
    assert thread.startswith("long-body")
