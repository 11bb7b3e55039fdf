"""Draws end once none of those that are left can change the choice."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.decision.decide import decide
from qguide.qnet.decision.decision import Guidance
from qguide.qnet.decision.early_stop import UntilDecided, is_decided
from qguide.qnet.decision.selection import prior_of, select
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling, ScoreRequest, ScoreResult

HISTORY = (Message("user", "Go."),)
Q = {"a": 0.9, "b": 0.5, "c": 0.1, "d": 1.0}


def said(names: Sequence[str]) -> list[Message]:
    return [Message("assistant", name) for name in names]


def chosen(names: Sequence[str], *, tau: float | None, weight: float = 0.0) -> str:
    messages = said(names)
    prior = prior_of(messages, greedy=0, greedy_weight=weight)
    return names[select(messages, [Q[n] for n in names], prior=prior, tau=tau).chosen]


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    st.integers(1, 3),
    st.one_of(st.none(), st.floats(0, 2)),
    st.floats(0, 2),
)
def test_what_is_decided_no_further_draws_change(drawn: list[str], left: int, tau: float | None, weight: float) -> None:
    prior = prior_of(said(drawn))
    values = [Q[name] for name in drawn]
    until = UntilDecided(highest_q=1.0)
    if is_decided(prior, values, until, left=left, tau=tau, greedy_weight=weight):
        now = chosen(drawn, tau=tau, weight=weight)
        for more in product("abcd", repeat=left):
            assert chosen([*drawn, *more], tau=tau, weight=weight) == now


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.integers(1, 3))
def test_votes_are_decided_exactly_where_no_further_votes_change_the_first_of_the_most(
    drawn: list[str], left: int
) -> None:
    def winner(names: Sequence[str]) -> str:
        return max(names, key=list(names).count)

    decided = is_decided(prior_of(said(drawn)), None, UntilDecided(), left=left, tau=None)
    ends = [[*drawn, *more] for more in product("abcd", repeat=left)]
    assert decided == all(winner(end) == winner(drawn) for end in ends)


def test_a_prior_of_likelihood_decides_nothing() -> None:
    prior = prior_of(said("ab"), by="likelihood", logprobs=[-1.0, -2.0])
    assert not is_decided(prior, None, UntilDecided(), left=1, tau=None)


def played(guidance: Guidance, names: str) -> tuple[str, int, int, int]:
    """The chosen name, its draws, those that were saved, and the requests to the Q model."""
    step, drawn, scored = decide(HISTORY, guidance), list(names), 0
    asked = next(step)
    while True:
        answer: list[Candidate] | ScoreResult
        if isinstance(asked, SampleRequest):
            answer = [Candidate(message, 1) for message in said(drawn[: asked.n])]
            drawn = drawn[asked.n :]
        else:
            assert isinstance(asked, ScoreRequest)
            scored += 1
            answer = ScoreResult(tuple(Q[m.text] for m in asked.candidates), computed_tokens=1)
        try:
            asked = step.send(answer)
        except StopIteration as end:
            found = end.value
            return found.action.text, len(found.candidates), found.draws_saved, scored


def guided(until: UntilDecided | None, **more: object) -> Guidance:
    return Guidance(5, Sampling(), batch=1, until=until, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "outcome"),
    [
        ("aaabb", ("a", 3, 2, 1)),  # no 2 draws can outdo 3 of .9
        ("bbbba", ("b", 4, 1, 1)),
    ],
)
def test_a_posterior_stops_as_soon_as_its_leader_is_out_of_reach(
    names: str, outcome: tuple[str, int, int, int]
) -> None:
    until = UntilDecided(highest_q=1.0)
    found = played(guided(until, selection="posterior", tau=1.0), names)
    assert found == outcome


def test_votes_alone_are_scored_once_after_the_last_draw() -> None:
    assert played(guided(UntilDecided()), "acacc")[1:] == (5, 0, 1)
    assert played(guided(UntilDecided()), "aabaa")[1:] == (4, 1, 1)
    assert played(guided(UntilDecided()), "aaaaa") == ("a", 3, 2, 0)


def test_an_argmax_stops_at_the_highest_q_only() -> None:
    until = UntilDecided(highest_q=1.0)
    assert played(guided(until), "adaaa") == ("d", 2, 3, 2)
    assert played(guided(until), "aaaaa")[1:3] == (5, 0)
