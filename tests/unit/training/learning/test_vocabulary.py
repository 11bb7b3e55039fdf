"""The words of states that a Q model without a network reads."""

from dataclasses import replace

import numpy as np
import pytest

from qguide.qnet.features.hashing import FRAME, TASK, Hasher, entry, number_place
from qguide.qnet.types import Message
from qguide.training.learning import vocabulary
from qguide.training.learning.episodes import LearnedEpisode
from qguide.training.learning.vocabulary import hasher_reading, sizes_of, vocabulary_of

THINGS = ("ring", "coin") * 20


def episode(number: int, thing: str) -> LearnedEpisode:
    states = (
        Message("system", "Be brief"),
        Message("user", f"Find the {thing} of guest{number}"),
        Message("assistant", "Action: open the drawer"),
        Message("user", "It is empty" if number % 4 else "It holds a letter"),
    )
    return LearnedEpisode(f"{number}", (states[:2], states), (states[2], states[2]), 0.0)


def test_words_of_nearly_all_episodes_and_of_a_single_one_are_left_out() -> None:
    hasher = Hasher(b"salt")

    found = vocabulary_of([episode(*one) for one in enumerate(THINGS)], hasher)

    of_tasks = {entry("ring", TASK), entry("coin", TASK), entry("Be brief", FRAME)}
    told = {entry(word) for word in ("is", "empty", "holds", "a", "letter")}
    assert set(found.tolist()) == set(hasher.hashes(of_tasks | told).tolist())


def test_candidates_of_a_played_episode_count_as_one() -> None:
    """Each played episode has two candidates at its first step and two at the next."""
    played = [episode(*one) for one in enumerate(THINGS)]
    candidates = [
        replace(one, states=(state,), actions=one.actions[:1], part_of=one.task)
        for one in played
        for state in one.states
        for _ in range(2)
    ]

    of_candidates, of_played = (hasher_reading(each, Hasher(b"salt")).vocabulary for each in (candidates, played))

    assert of_candidates is not None
    assert of_played is not None
    assert of_candidates.tolist() == of_played.tolist()


def test_a_salt_hides_the_words() -> None:
    episodes = [episode(*one) for one in enumerate(THINGS)]

    one, other = (vocabulary_of(episodes, Hasher(salt)) for salt in (b"a", b"b"))

    assert len(one) == len(other)
    assert not set(one.tolist()) & set(other.tolist())


def heated(number: int) -> LearnedEpisode:
    machine, heat = ("pump", "press")[number % 2], (100, 10)[number % 2] + number // 2
    states = (
        Message("user", f"Mend the {machine}"),
        Message("assistant", "Action: measure"),
        Message("user", f"heat: {heat} degrees; code {number + 5000}"),
    )
    return LearnedEpisode(f"{number}", (states[:1], states), (states[1], states[1]), 0.0)


def test_numbers_are_measured_by_those_of_such_tasks() -> None:
    hasher = hasher_reading([heated(number) for number in range(40)], Hasher(b"salt"))

    assert hasher.sizes is not None
    place = hasher.hashes([number_place("heat", "press")])[0]
    [row] = np.flatnonzero(hasher.sizes.places == place)
    expected = np.quantile(np.arange(10, 30), (0.25, 0.5, 0.75, 0.875))
    assert hasher.sizes.quantiles[row] == pytest.approx(expected)
    assert hasher.size("heat", 29, ("mend", "the", "press")) == 4
    assert hasher.size("heat", 29, ("mend", "the", "pump")) == 0
    assert hasher.size("cold", 29, ("mend",)) is None


def test_too_few_numbers_measure_nothing() -> None:
    sizes = sizes_of([heated(number) for number in range(7)], Hasher(b"salt"))

    assert sizes.quantiles.shape == (0, 4)


def test_long_pages_and_many_tasks_make_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MOST_PLACES", 3)
    hasher = hasher_reading([heated(number) for number in range(40)], Hasher(b"salt"))

    assert hasher.sizes is not None
    assert len(hasher.sizes.places) == 3
    # Those with the most numbers are of all tasks.
    assert hasher.size("heat", 29, ("lamp",)) is not None
    assert hasher.size("code", 29, ("lamp",)) is not None


def test_of_a_long_page_the_newest_numbers_are_measured() -> None:
    page = "\n".join(f"row: {number}" for number in range(1_000))
    action = Message("assistant", "Action: look")
    state = (Message("user", "Count"), action, Message("user", page))
    sizes = sizes_of([LearnedEpisode("0", (state[:1], state), (action, action), 0.0)], Hasher(b"salt"))

    assert sizes.quantiles[0].tolist() == [849.75, 899.5, 949.25, 974.125]


def test_numbers_that_few_episodes_have_are_no_words() -> None:
    hasher = Hasher(b"salt")
    episodes = [heated(number) for number in range(40)] + [heated(0)]

    found = set(vocabulary_of(episodes, hasher).tolist())

    # Two of 41 episodes have 5000; a word that is no number would be read.
    assert not set(hasher.hashes([entry("5000")]).tolist()) & found
