"""Adaptive M, whatever the Q-values are."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.decision.guide import guide
from qguide.qnet.types import Message, Sampling
from tests.support.listed_models import Drawn, Known

HISTORY = (Message("user", "task"),)
Q = st.floats(-10, 10)


@st.composite
def draws(draw: st.DrawFn) -> tuple[list[str], dict[str, float]]:
    """Replies, some of them the same, and their Q."""
    q_of = {f"reply {i}": draw(Q) for i in range(draw(st.integers(1, 4)))}
    replies = draw(st.lists(st.sampled_from(sorted(q_of)), min_size=1, max_size=9))
    return replies, q_of


def adaptively(
    replies: Sequence[str], q_of: dict[str, float], previous_q: float, batch: int
) -> tuple[Decision, Drawn, Known]:
    policy, scorer = Drawn(replies), Known(q_of)
    decision = asyncio.run(
        guide(
            HISTORY,
            policy,
            scorer,
            Guidance(len(replies), Sampling(seed=5, first_greedy=True), rise_over=previous_q, batch=batch),
        )
    )
    return decision, policy, scorer


@given(draws(), Q, st.integers(1, 4))
def test_it_stops_with_the_first_batch_that_rises(
    drawn: tuple[list[str], dict[str, float]], previous_q: float, batch: int
) -> None:
    replies, q_of = drawn
    decision, policy, _ = adaptively(replies, q_of, previous_q, batch)
    risen = [i for i, reply in enumerate(replies) if q_of[reply] > previous_q]
    until = (risen[0] // batch + 1) * batch if risen else len(replies)
    assert [c.message.content for c in decision.candidates] == replies[:until]
    assert all(n == batch for n in policy.batches[:-1])


@given(draws(), Q, st.integers(1, 4))
def test_the_best_of_what_was_drawn_is_chosen(
    drawn: tuple[list[str], dict[str, float]], previous_q: float, batch: int
) -> None:
    replies, q_of = drawn
    decision, _, _ = adaptively(replies, q_of, previous_q, batch)
    assert decision.q_values == tuple(q_of[c.message.content] for c in decision.candidates)
    if decision.guided:
        assert decision.chosen == decision.q_values.index(max(decision.q_values))
    else:
        assert len(set(decision.q_values)) == 1


@given(draws(), Q, st.integers(1, 4))
def test_each_reply_is_scored_once(drawn: tuple[list[str], dict[str, float]], previous_q: float, batch: int) -> None:
    decision, _, scorer = adaptively(*drawn, previous_q, batch)
    asked = [candidate.content for request in scorer.requests for candidate in request.candidates]
    assert sorted(asked) == sorted({c.message.content for c in decision.candidates})
    assert decision.usage.scored_tokens == decision.distinct_candidates == len(asked)
    assert decision.usage.completion_tokens == len(decision.candidates)


@given(draws(), st.integers(1, 4))
def test_where_nothing_rises_it_decides_as_a_fixed_m_does(
    drawn: tuple[list[str], dict[str, float]], batch: int
) -> None:
    replies, q_of = drawn
    decision, _, _ = adaptively(replies, q_of, 10.0, batch)
    fixed = asyncio.run(
        guide(HISTORY, Drawn(replies), Known(q_of), Guidance(len(replies), Sampling(), always_score=True))
    )
    assert (decision.chosen, decision.reason) == (fixed.chosen, fixed.reason)
    assert decision.q_values == fixed.q_values


@given(draws(), st.integers(1, 4))
def test_later_batches_draw_anew_and_none_greedily(drawn: tuple[list[str], dict[str, float]], batch: int) -> None:
    _, policy, _ = adaptively(*drawn, 10.0, batch)
    seeds = [sampling.seed for sampling in policy.samplings]
    assert len(set(seeds)) == len(seeds)
    assert [s.first_greedy for s in policy.samplings] == [True, *[False] * (len(seeds) - 1)]
