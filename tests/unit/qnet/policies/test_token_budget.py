"""Backpressure by tokens: no replica's bound is passed, nobody starves, and nothing hangs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from fastapi import Request, Response
from hypothesis import given, settings
from hypothesis import strategies as st

from qguide.qnet.policies.token_budget import TokenBudget, tokens_of
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.rollouts.driver import run_rollouts
from qguide.training.rollouts.hosted import build_hosted_policy
from qguide.training.rollouts.rollout import RolloutTask
from tests.support.corridor_upstream import hosted, serving_corridors

HISTORY = (Message("user", "x" * 400),)


class Fleet(FakeUpstream):
    """An upstream of several replicas that counts the tokens in flight at each.

    A session stays at the replica that its name ends with, as behind a router that hashes.
    """

    def __init__(self, *, named: bool, **changes: Any) -> None:
        super().__init__(**changes)
        self.named = named
        self.tokens = Counter[str]()
        self.most = Counter[str]()

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        replica = request.headers["x-session-id"][-1]
        history = tuple(Message("user", message["content"]) for message in body["messages"])
        tokens = tokens_of(history, n=body.get("n", 1), max_tokens=body["max_tokens"])
        self.tokens[replica] += tokens
        self.most[replica] = max(self.most[replica], self.tokens[replica])
        try:
            response = await super().complete(request)
        finally:
            self.tokens[replica] -= tokens
        if self.named:
            response.headers["X-Replica"] = f"10.0.0.1:8000, 10.0.0.{replica}:8000"
        return response


def drawing(turns: int, *, n: int = 1, max_tokens: int = 100) -> RolloutTask[int]:
    """Draw so many times; a request holds 101 + n * max_tokens tokens."""
    for _ in range(turns):
        drawn: list[Candidate] = yield SampleRequest(HISTORY, n, Sampling(seed=0, max_tokens=max_tokens))
        assert len(drawn) == n
    return turns


def play(fleet: FakeUpstream, tasks: dict[str, RolloutTask[int]], **changes: object) -> list[str]:
    """The names of the tasks that were played to their end, in the order of their ends."""
    done: list[str] = []
    with serving_corridors(fleet) as url:
        run_rollouts(
            tasks.items(),
            policy=build_hosted_policy("upstream:demo", hosted(url, **changes)),
            parallel=len(tasks),
            on_done=lambda name, _result, _spent: done.append(name),
            on_failure=lambda name, error: pytest.fail(f"{name}: {error}"),
            on_usage=lambda _name, _usage: None,
        )
    return done


def test_the_bound_is_used_and_never_passed() -> None:
    # The first answer comes when three requests are there: all that 603 tokens hold.
    fleet = Fleet(named=False, together=3)
    tasks = {f"task-{number}-0": drawing(4) for number in range(9)}
    assert sorted(play(fleet, tasks, max_tokens_in_flight=603)) == sorted(tasks)
    assert len(fleet.asked) == 36
    assert fleet.most == {"0": 603}


def test_without_a_bound_all_requests_are_in_flight() -> None:
    fleet = Fleet(named=False, together=9)
    play(fleet, {f"task-{number}-0": drawing(1) for number in range(9)})
    assert fleet.most == {"0": 9 * 201}


def test_a_request_beyond_the_bound_goes_alone() -> None:
    fleet = Fleet(named=False)
    tasks = {f"task-{number}-0": drawing(3) for number in range(4)}
    tasks["long-0"] = drawing(2, n=5, max_tokens=500)
    assert sorted(play(fleet, tasks, max_tokens_in_flight=402)) == sorted(tasks)
    assert fleet.most == {"0": 2601}  # with another one it would be more


def test_a_request_without_a_limit_of_its_own_goes_alone() -> None:
    fake = FakeUpstream(delay_s=0.01)

    def unlimited() -> RolloutTask[int]:
        yield SampleRequest(HISTORY, 1, Sampling(seed=0, max_tokens=None))
        return 1

    assert len(play(fake, {str(n): unlimited() for n in range(4)}, max_tokens_in_flight=999)) == 4
    assert fake.most_in_flight == 1


def test_the_bound_is_each_replicas_where_the_router_names_them() -> None:
    fleet = Fleet(named=True, delay_s=0.05)
    tasks = {f"task-{number}-{number % 3}": drawing(3) for number in range(9)}
    assert sorted(play(fleet, tasks, max_tokens_in_flight=201)) == sorted(tasks)
    assert fleet.most == {"0": 201, "1": 201, "2": 201}
    assert fleet.most_in_flight > 1


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


async def settle() -> None:
    """Let every task go on until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_short_requests_do_not_pass_a_long_one_but_those_of_other_replicas_do() -> None:
    async def work() -> None:
        budget, begun = TokenBudget(10), list[str]()
        for session, replica in (("a", "1"), ("b", "1"), ("c", "1"), ("d", "2")):
            budget.learn(session, replica)
        release = asyncio.Event()

        async def ask(name: str, session: str, tokens: int) -> None:
            async with budget.hold(session, tokens):
                begun.append(name)
                await release.wait()

        asked = [("first", "a", 6), ("long", "b", 8), ("short", "c", 1), ("elsewhere", "d", 9)]
        tasks = []
        for each in asked:
            tasks.append(asyncio.create_task(ask(*each)))
            await settle()
        assert begun == ["first", "elsewhere"]
        release.set()
        await asyncio.gather(*tasks)
        assert begun == ["first", "elsewhere", "long", "short"]

    run(work)


def test_one_that_gives_up_its_place_lets_the_next_go() -> None:
    async def work() -> None:
        budget = TokenBudget(10)

        async def ask(tokens: int) -> None:
            async with budget.hold("", tokens):
                await asyncio.sleep(0)

        async with budget.hold("", 5):
            long = asyncio.create_task(ask(9))
            await settle()
            short = asyncio.create_task(ask(2))
            await settle()
            assert not short.done()
            long.cancel()
            await short
            with suppress(asyncio.CancelledError):
                await long
            assert long.cancelled()
        await ask(10)

    run(work)


Requests = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 14), st.integers(0, 4), st.booleans()), max_size=30)


@settings(max_examples=60, deadline=None)
@given(requests=Requests)
def test_any_mix_of_requests_ends_within_every_bound(requests: list[tuple[int, int, int, bool]]) -> None:
    most = 10

    async def work() -> None:
        budget = TokenBudget(most)
        load, number = Counter[int](), Counter[int]()

        async def ask(session: int, tokens: int, pauses: int) -> None:
            replica = session % 3
            async with budget.hold(str(session), tokens):
                load[replica] += tokens
                number[replica] += 1
                assert load[replica] <= most or number[replica] == 1
                for _ in range(pauses):
                    await asyncio.sleep(0)
                budget.learn(str(session), f"replica {replica}")
                load[replica] -= tokens
                number[replica] -= 1

        tasks = []
        for session, tokens, pauses, cancelled in requests:
            tasks.append(asyncio.create_task(ask(session, tokens, 0 if cancelled else pauses)))
            await asyncio.sleep(0)
            if cancelled and number.total() and not tasks[-1].done():
                tasks[-1].cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError)
        async with budget.hold("last", most):
            pass

    run(work)
