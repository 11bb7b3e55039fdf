"""The interval of a difference holds the true one, looked at after every episode."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.trial_statistics import DifferenceSequence, DropDetector, HarmDetector, TaskMeans

_OUTCOMES = st.tuples(st.floats(0, 1), st.booleans(), st.sampled_from([0.1, 0.5, 0.9]))


def sequence(guided: float, unguided: float, *, share: float, seed: int, n: int) -> DifferenceSequence:
    """After n episodes that succeed with these probabilities; stops once 0 or the truth is out."""
    chance, found = Random(seed), DifferenceSequence(alpha=0.1)
    for _ in range(n):
        is_guided = chance.random() < share
        outcome = float(chance.random() < (guided if is_guided else unguided))
        found.add(outcome, guided=is_guided, share=share)
    return found


@pytest.mark.parametrize(("guided", "unguided", "share"), [(0.5, 0.5, 0.5), (0.8, 0.6, 0.9)])
def test_the_true_difference_is_almost_never_outside(guided: float, unguided: float, share: float) -> None:
    # An interval never grows again, so the last one tells of all before it.
    intervals = [sequence(guided, unguided, share=share, seed=seed, n=300).interval for seed in range(40)]
    outside = sum(not one.low <= guided - unguided <= one.high for one in intervals)
    assert outside <= 9  # 40 * .1, and three standard deviations


def test_a_large_difference_is_found() -> None:
    better = sequence(0.9, 0.4, share=0.5, seed=1, n=150).interval
    worse = sequence(0.2, 0.6, share=0.5, seed=1, n=200).interval
    assert better.low > 0
    assert worse.high < 0


def test_the_estimate_of_a_trial_is_the_difference_of_its_means() -> None:
    found = DifferenceSequence(alpha=0.05)
    guided, unguided = [1.0, 0.0, 1.0, 1.0], [0.0, 0.5]
    for outcome in guided:
        found.add(outcome, guided=True, share=0.5)
    for outcome in unguided:
        found.add(outcome, guided=False, share=0.5)
    assert found.interval.estimate == pytest.approx(0.75 - 0.25)


def test_a_lucky_stretch_of_another_share_is_weighed() -> None:
    """Easier tasks while most are guided are no gain: both arms are as good in each stretch."""
    found = DifferenceSequence(alpha=0.05)
    for outcome, share in ((0.2, 0.5), (0.8, 0.9)):
        for number in range(20):
            found.add(outcome, guided=number < share * 20, share=share)
    assert found.interval.estimate == pytest.approx(0.0)


def test_what_a_trial_still_needs_is_told_about_right() -> None:
    told, needed = [], []
    for seed in range(40):
        chance, found = Random(seed), DifferenceSequence(alpha=0.05)
        episodes, said = 0, None
        while found.interval.low <= 0:
            guided = chance.random() < 0.5
            outcome = float(chance.random() < (0.9 if guided else 0.4))
            found.add(outcome, guided=guided, share=0.5)
            episodes += 1
            if episodes == 25:
                said = found.more_to_show_a_gain
        if said is not None and said < 300:
            told.append(said)
            needed.append(episodes - 25)
    assert len(told) >= 25
    assert 0.5 < sum(told) / sum(needed) < 2


def test_no_gain_is_never_shown() -> None:
    worse = sequence(0.2, 0.6, share=0.5, seed=1, n=50)
    assert worse.more_to_show_a_gain == float("inf")


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
    assert not found.alarmed
    for _ in range(20):
        found.add(0.0, level=0.7)
    assert found.alarmed
    assert found.since == 50


def test_alarms_are_rare_where_nothing_drops() -> None:
    alarms = 0
    for seed in range(60):
        chance, found = Random(seed), DropDetector(patience=1000)
        for _ in range(100):
            found.add(float(chance.random() < 0.6), level=0.6)
            if found.alarmed:
                alarms += 1
                break
    assert alarms <= 12


@pytest.mark.parametrize(("later", "harmed"), [(0.9, True), (0.3, False)])
def test_harm_is_seen_though_the_unguided_outcome_is_what_changed(later: float, harmed: bool) -> None:
    for seed in range(10):
        chance, found = Random(seed), HarmDetector(patience=200)
        for number in range(600):
            guided = chance.random() < 0.9
            rate = 0.5 if guided else 0.3 if number < 200 else later
            found.add(float(chance.random() < rate), guided=guided, share=0.9, number=number)
            if found.alarmed:
                break
        assert found.alarmed == harmed
        assert not harmed or found.since > 150


def test_guesses_by_task_are_given_once_tasks_are_seen_to_differ() -> None:
    found = TaskMeans()
    for _ in range(8):
        for task, outcome in (("easy", 1.0), ("hard", 0.0)):
            found.add(task, outcome)
    easy, hard = found.guess("easy"), found.guess("hard")
    assert easy is not None
    assert hard is not None
    assert hard < 0.3 < 0.7 < easy
    assert found.guess("new") is None


def test_no_guess_is_given_where_tasks_are_alike() -> None:
    given = 0
    for seed in range(20):
        chance, found = Random(seed), TaskMeans()
        for _ in range(300):
            found.add(str(chance.randrange(12)), float(chance.random() < 0.4))
        given += found.guess("0") is not None
    assert given <= 2


def test_tasks_are_forgotten_the_oldest_first() -> None:
    found = TaskMeans()
    for number in range(5_001):
        found.add(str(number), 1.0)
    assert len(found.tasks) == 5_000
    assert "0" not in found.tasks


def test_what_tasks_were_is_soon_forgotten() -> None:
    found = TaskMeans()

    def played(outcomes: dict[str, float], times: int) -> float | None:
        for _ in range(times):
            for task, outcome in outcomes.items():
                found.add(task, outcome)
        return found.guess("first")

    assert (played({"first": 1.0, "second": 0.0}, 300) or 0.0) > 0.8
    assert played({"first": 0.0, "second": 1.0}, 5) is None
    again = played({"first": 0.0, "second": 1.0}, 60)
    assert again is not None
    assert again < 0.2


def test_that_tasks_were_alike_is_soon_forgotten() -> None:
    chance, found = Random(0), TaskMeans()
    for _ in range(6_000):
        found.add(str(chance.randrange(12)), float(chance.random() < 0.5))
    assert found.guess("0") is None
    for _ in range(140):
        task = chance.randrange(12)
        found.add(str(task), float(task >= 6 and chance.random() < 0.9))
    assert found.guess("0") is not None


def test_guesses_by_task_make_a_trial_shorter_and_leave_it_valid() -> None:
    """Half of the tasks always fail; the rest are .9 against .5, or alike."""

    def episodes(gain: float, *, by_task: bool, seed: int) -> int:
        chance, tasks, found = Random(seed), TaskMeans(), DifferenceSequence(alpha=0.05)
        for number in range(400):
            task, guided = chance.randrange(12), chance.random() < 0.5
            outcome = float(task >= 6 and chance.random() < 0.5 + gain * guided)
            guess = tasks.guess(str(task)) if by_task else None
            found.add(outcome, guided=guided, share=0.5, guess=guess)
            tasks.add(str(task), outcome)
            if found.interval.low > 0:
                return number
        return 400

    known, unknown = (sum(episodes(0.4, by_task=told, seed=seed) for seed in range(15)) for told in (True, False))
    assert known < 0.75 * unknown
    assert sum(episodes(0.0, by_task=True, seed=seed) < 400 for seed in range(40)) <= 4
