"""The interval of a difference holds the true one, looked at after every episode."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.trials.difference import DifferenceSequence
from qguide.qnet.trials.drop import DropDetector

_OUTCOMES = st.tuples(st.floats(0, 1), st.booleans(), st.sampled_from([0.1, 0.5, 0.9]))


def sequence(
    guided: float, unguided: float, *, share: float, seed: int, n: int
) -> DifferenceSequence:
    """After n episodes that succeed with these probabilities; stops once 0 or the truth is out."""
    chance, found = Random(seed), DifferenceSequence(alpha=0.1)
    for _ in range(n):
        is_guided = chance.random() < share
        outcome = float(chance.random() < (guided if is_guided else unguided))
        found.add(outcome, guided=is_guided, share=share)
    return found


@pytest.mark.parametrize(("guided", "unguided", "share"), [(0.5, 0.5, 0.5), (0.8, 0.6, 0.9)])
def test_the_true_difference_is_almost_never_outside(
    guided: float, unguided: float, share: float
) -> None:
    # An interval never grows again, so the last one tells of all before it.
    intervals = [
        sequence(guided, unguided, share=share, seed=seed, n=300).interval for seed in range(60)
    ]
    outside = sum(not one.low <= guided - unguided <= one.high for one in intervals)
    assert outside <= 12  # 60 * .1, and three standard deviations


def test_a_large_difference_is_found() -> None:
    better = sequence(0.9, 0.4, share=0.5, seed=1, n=150).interval
    worse = sequence(0.2, 0.6, share=0.5, seed=1, n=200).interval
    assert better.low > 0
    assert worse.high < 0


@given(st.lists(_OUTCOMES, max_size=40))
def test_the_interval_only_shrinks_and_stays_within_minus_one_and_one(
    episodes: list[tuple[float, bool, float]],
) -> None:
    found = DifferenceSequence(alpha=0.05)
    before = found.interval
    for outcome, guided, share in episodes:
        found.add(outcome, guided=guided, share=share)
        assert -1 <= before.low <= found.interval.low
        assert found.interval.high <= before.high <= 1
        before = found.interval


def test_a_drop_is_noticed_and_dated() -> None:
    found = DropDetector(patience=100)
    for _ in range(50):
        found.add(1.0, level=0.7)
    assert not found.dropped
    for _ in range(20):
        found.add(0.0, level=0.7)
    assert found.dropped
    assert found.since == 50


def test_alarms_are_rare_where_nothing_drops() -> None:
    alarms = 0
    for seed in range(60):
        chance, found = Random(seed), DropDetector(patience=1000)
        for _ in range(100):
            found.add(float(chance.random() < 0.6), level=0.6)
            if found.dropped:
                alarms += 1
                break
    assert alarms <= 12
