"""Upstreams that refuse `n` or answer it with fewer choices, once or always."""

from typing import Any

import pytest

from qguide.qnet.errors import UpstreamRefusedError
from qguide.qnet.policies.circuits import FAILURES, FORGET_AFTER_S, NSupport
from qguide.qnet.types import Sampling
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.clock import Clock
from tests.support.upstream_policy import HISTORY


def sent(upstream: FakeUpstream) -> list[int]:
    """The number of candidates of each request so far; the past is forgotten."""
    asked = [body.get("n", 1) for body in upstream.asked]
    upstream.asked.clear()
    return asked


async def draw(policy: Any) -> None:
    assert len(await policy.sample(HISTORY, n=3, sampling=Sampling())) == 3


@pytest.mark.parametrize(("fault", "first"), [("ignore_n", [3, 1, 1]), ("policy", [3, 1, 1, 1])])
async def test_one_odd_answer_costs_one_draw_further_requests(
    connect: Any, upstream: FakeUpstream, fault: Any, first: list[int]
) -> None:
    async with connect() as policy:
        for _ in range(FAILURES + 1):  # never several in a row
            upstream.fault, upstream.faults_left = fault, 1
            await draw(policy)
            assert sent(upstream) == first
            await draw(policy)
            assert sent(upstream) == [3]


async def test_an_upstream_without_n_is_asked_in_parallel_for_some_minutes(
    connect: Any, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    upstream.fault = "ignore_n"
    async with connect(clock=clock) as policy:
        for _ in range(FAILURES):
            assert not caplog.records
            await draw(policy)
        assert sent(upstream) == [3, 1, 1] * FAILURES
        [warning] = caplog.records
        assert "demo answers n with fewer choices" in warning.getMessage()
        assert 'set its "n" to "parallel"' in warning.getMessage()
        await draw(policy)
        assert sent(upstream) == [1, 1, 1]
        clock.now_s += FORGET_AFTER_S
        for asked in ([3, 1, 1], [1, 1, 1]):  # one further failure is enough
            await draw(policy)
            assert sent(upstream) == asked
        upstream.fault = ""
        clock.now_s += FORGET_AFTER_S
        await draw(policy)
        assert sent(upstream) == [3]


async def test_a_refusal_that_names_n_is_believed_at_once(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "refuse_n"
    async with connect() as policy:
        await draw(policy)
        assert sent(upstream) == [3, 1, 1, 1]
        await draw(policy)
        assert sent(upstream) == [1, 1, 1]


@pytest.mark.parametrize(
    ("reason", "parameter", "is_believed"),
    [
        ("invalid value", "n", True),
        ("'n' must be 1", None, True),
        ("the prompt was filtered: 'n' of 3", "prompt", False),
        ("the content was filtered", None, False),
    ],
)
def test_a_refusal_names_n_by_its_parameter_or_else_in_words(
    reason: str, parameter: str | None, is_believed: bool
) -> None:
    support = NSupport("n", is_supported=True)
    support.fail(UpstreamRefusedError(f"upstream n refused: {reason}", parameter=parameter))
    assert bool(support) is not is_believed
