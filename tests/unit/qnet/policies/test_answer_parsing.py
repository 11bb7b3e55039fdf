"""Parsing of upstream answers beside the event loop."""

import asyncio
import gc
import threading
from threading import Barrier

from qguide.qnet.policies.answer_parsing import parse

LARGE = bytes(1024**2)


async def test_a_small_answer_is_parsed_where_it_arrived() -> None:
    assert await parse(lambda _: threading.get_ident(), b"{}") == threading.get_ident()
    assert await parse(lambda _: threading.get_ident(), LARGE) != threading.get_ident()


async def test_no_garbage_is_collected_while_a_large_answer_is_parsed_and_all_of_it_after() -> None:
    both = Barrier(2, timeout=30)

    def read(_: bytes) -> bool:
        both.wait()
        return gc.isenabled()

    def fail(_: bytes) -> None:
        both.wait()
        raise ValueError

    first, second = await asyncio.gather(parse(read, LARGE), parse(fail, LARGE), return_exceptions=True)
    assert first is False
    assert isinstance(second, ValueError)
    assert gc.isenabled()
