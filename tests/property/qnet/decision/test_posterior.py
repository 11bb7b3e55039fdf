"""The posterior lies between the argmax of Q and the votes, in whatever order candidates come."""

import math

from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.decision.selection import posterior, prior_of, select
from qguide.qnet.types import Message

TEXTS = st.lists(st.sampled_from(["Action: a", "Thought: t\nAction: a", "b", "c", "d"]), min_size=2)
TAUS = st.floats(1e-3, 1e3)


def drawn_of(texts: list[str]) -> list[Message]:
    return [Message("assistant", text) for text in texts]


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[Message], list[float]]:
    """Candidates with Q-values that differ between different ones, and are equal for equal ones."""
    texts = draw(TEXTS.filter(lambda texts: len(set(texts)) > 1))
    places = draw(st.permutations(range(len(set(texts)))))
    q_of = {text: place / 10 for text, place in zip(sorted(set(texts)), places, strict=True)}
    return drawn_of(texts), [q_of[text] for text in texts]


@given(scored())
def test_a_small_tau_is_the_argmax(case: tuple[list[Message], list[float]]) -> None:
    drawn, q_values = case
    for tau in (0.0, 1e-300, 1e-6):
        assert select(drawn, q_values, tau=tau).chosen == select(drawn, q_values).chosen


@given(scored())
def test_a_large_tau_is_the_votes_with_ties_broken_by_q(case: tuple[list[Message], list[float]]) -> None:
    drawn, q_values = case
    prior = prior_of(drawn)
    chosen = select(drawn, q_values, tau=1e6).chosen
    most = max(prior.log_shares)
    voted = [i for i, log in enumerate(prior.log_shares) if log == most]
    assert chosen in voted
    assert q_values[chosen] == max(q_values[i] for i in voted)


@given(scored(), TAUS, st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(
    case: tuple[list[Message], list[float]], tau: float, rng: object
) -> None:
    drawn, q_values = case
    order = list(range(len(drawn)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    shuffled = [drawn[i] for i in order], [q_values[i] for i in order]
    of_message = dict(zip(drawn, posterior(q_values, prior_of(drawn), tau=tau), strict=True))
    again = posterior(shuffled[1], prior_of(shuffled[0]), tau=tau)
    for message, share in zip(shuffled[0], again, strict=True):
        assert math.isclose(share, of_message[message], rel_tol=1e-9, abs_tol=1e-300)
    best = max(of_message.values())
    for messages, values in ((drawn, q_values), shuffled):
        chosen = messages[select(messages, values, tau=tau).chosen]
        assert math.isclose(of_message[chosen], best, rel_tol=1e-9)


@given(scored(), TAUS)
def test_shares_of_the_effects_add_up(case: tuple[list[Message], list[float]], tau: float) -> None:
    drawn, q_values = case
    prior = prior_of(drawn)
    for shares in (prior.shares, posterior(q_values, prior, tau=tau)):
        assert math.isclose(sum(dict(zip(prior.effects, shares, strict=True)).values()), 1.0)


@given(scored())
def test_pooled_votes_are_the_votes_of_one_reply(case: tuple[list[Message], list[float]]) -> None:
    drawn, _ = case
    pooled = [m if m.content != "Thought: t\nAction: a" else drawn_of(["Action: a"])[0] for m in drawn]
    assert prior_of(drawn).shares == prior_of(pooled).shares


@given(st.lists(st.floats(-50, 0), min_size=2, max_size=6), st.integers(0, 5))
def test_a_common_factor_of_the_likelihoods_cancels(logs: list[float], shift: int) -> None:
    drawn = drawn_of([str(i) for i in range(len(logs))])
    one = prior_of(drawn, by="likelihood", logprobs=logs)
    other = prior_of(drawn, by="likelihood", logprobs=[log - shift for log in logs])
    for a, b in zip(one.log_shares, other.log_shares, strict=True):
        assert math.isclose(a, b, abs_tol=1e-9)
