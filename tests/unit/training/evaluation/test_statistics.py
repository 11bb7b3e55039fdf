"""Intervals and tests agree with closed forms and keep their promises."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qguide.training.evaluation.statistics import (
    bootstrap_interval,
    clustered_mean_interval,
    sign_flip_p_value,
    stratified_difference,
    wilson_interval,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_and_stays_between_0_and_1(counts: tuple[int, int]) -> None:
    successes, trials = counts
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    assert low < high


def test_wilson_gives_the_textbook_value() -> None:
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)


def test_wilson_knows_nothing_without_trials() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_the_bootstrap_of_a_proportion_is_close_to_the_normal_interval() -> None:
    low, high = bootstrap_interval([1.0] * 100 + [0.0] * 100, rng())
    assert (low, high) == pytest.approx((0.5 - 0.0693, 0.5 + 0.0693), abs=0.006)


def test_the_bootstrap_of_a_constant_is_a_point() -> None:
    assert bootstrap_interval([0.25] * 7, rng()) == (0.25, 0.25)


@pytest.mark.parametrize("wins", [5, 8, 10])
def test_the_sign_flip_test_is_the_sign_test_where_all_differences_are_alike(wins: int) -> None:
    tail = sum(comb(10, k) for k in range(wins, 11)) / 2**10
    exact = min(1.0, 2 * tail) if wins > 5 else 1.0
    p_value = sign_flip_p_value([1.0] * wins + [-1.0] * (10 - wins), rng())
    assert p_value == pytest.approx(exact, abs=0.015)


def test_tasks_without_a_difference_change_no_p_value() -> None:
    differences = [1.0, 1.0, 0.5, -0.5, 1.0, 1.0, 1.0]
    assert sign_flip_p_value(differences, rng()) == sign_flip_p_value(differences + [0.0] * 50, rng())


def test_no_difference_at_all_has_p_1() -> None:
    assert sign_flip_p_value([0.0] * 9, rng()) == 1.0


@settings(max_examples=25)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_a_p_value_is_never_0_and_does_not_depend_on_who_is_called_first(differences: list[float]) -> None:
    p_value = sign_flip_p_value(differences, rng(), permutations=1000)
    assert 0 < p_value <= 1
    assert p_value == sign_flip_p_value([-d for d in differences], rng(), permutations=1000)


def test_copies_of_a_tasks_observations_do_not_narrow_the_interval() -> None:
    sums, counts = [3.0, 1.0, 0.0, 2.0, 3.0], [4.0] * 5
    once = clustered_mean_interval(sums, counts, np.random.default_rng(0), resamples=500)
    tenfold = clustered_mean_interval(
        [10 * one for one in sums], [10 * one for one in counts], np.random.default_rng(0), resamples=500
    )
    assert tenfold == pytest.approx(once)
    assert once[0] < sum(sums) / sum(counts) < once[1]


def test_a_gain_on_every_task_is_certain_however_much_tasks_differ() -> None:
    baseline = [0.0, 1.0, 2.0, 3.0, 4.0]
    arm = [one + 0.4 for one in baseline]
    counts = [4.0] * 5
    found = stratified_difference([((arm, counts), (baseline, counts))], rng())
    assert found.difference == pytest.approx(0.1)
    assert found.interval == pytest.approx((0.1, 0.1))
    assert found.standard_error == pytest.approx(0.0)


def test_arms_of_different_tasks_are_not_paired() -> None:
    counts_a, counts_b = [1.0] * 20 + [0.0] * 20, [0.0] * 20 + [1.0] * 20
    sums_a, sums_b = [0.0, 1.0] * 10 + [0.0] * 20, [0.0] * 20 + [0.0, 1.0] * 10
    found = stratified_difference([((sums_a, counts_a), (sums_b, counts_b))], rng())
    assert found.difference == 0
    # Two means of 20 coin flips: the root of 2 * 0.25 / 20.
    assert found.standard_error == pytest.approx(0.158, rel=0.1)


def test_strata_are_compared_within_and_weighed_by_both_arms() -> None:
    # 3 of 4 against 1 of 2: +1/4, weight 4 * 2 / 6 = 4/3; 1 of 2 against 1 of 6: +1/3, weight 2 * 6 / 8 = 3/2; so
    # (1/3 + 1/2) / (4/3 + 3/2) = 5/17. All together, 4 of 6 against 2 of 8 would be +5/12.
    strata = [
        (([3.0, 0.0], [4.0, 0.0]), ([1.0, 0.0], [2.0, 0.0])),
        (([0.0, 1.0], [0.0, 2.0]), ([0.0, 1.0], [0.0, 6.0])),
        (([9.0, 0.0], [9.0, 0.0]), ([0.0, 0.0], [0.0, 0.0])),  # without a baseline: no weight
    ]
    assert stratified_difference(strata, rng(), resamples=200).difference == pytest.approx(5 / 17)


def test_an_arm_with_more_of_the_easy_stratum_is_no_better() -> None:
    ones, none = [1.0] * 30, [0.0] * 30
    easy, hard = [1.0, 1.0, 0.0] * 10, [1.0, 0.0, 0.0] * 10
    twice = [2 * one for one in easy], [2 * one for one in hard], [2.0] * 30
    strata = [
        ((twice[0] + none, twice[2] + none), (easy + none, ones + none)),
        ((none + hard, none + ones), (none + twice[1], none + twice[2])),
    ]
    found = stratified_difference(strata, rng(), resamples=200)
    assert found.difference == pytest.approx(0)
    assert found.interval == pytest.approx((0, 0)), "each task is played by both arms, with the same outcome"
    one = ((twice[0] + hard, twice[2] + ones), (easy + twice[1], ones + twice[2]))
    together = stratified_difference([one], rng(), resamples=200)
    assert together.difference == pytest.approx(1 / 9)
