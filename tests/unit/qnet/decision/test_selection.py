"""The highest Q wins; among equals the first."""

import math

import pytest

from qguide.qnet.decision.selection import distinct, ranking, select
from qguide.qnet.errors import InvalidCandidatesError, ScorerUnavailableError
from qguide.qnet.types import Message


def messages(text: str) -> list[Message]:
    return [Message("assistant", letter) for letter in text]


@pytest.mark.parametrize(
    ("said", "q_values", "chosen", "reason"),
    [
        ("abc", (0.1, 0.9, 0.3), 1, "highest_q"),
        ("abc", (0.5, 0.9, 0.9), 1, "tied_highest_q"),
        ("abb", (0.5, 0.9, 0.9), 1, "highest_q"),
        ("abc", (-3.0, -1.0, -2.0), 1, "highest_q"),
        ("a", (0.2,), 0, "only_candidate"),
        ("aaa", (0.2, 0.2, 0.2), 0, "unanimous"),
    ],
)
def test_the_first_of_the_highest_is_chosen(said: str, q_values: tuple[float, ...], chosen: int, reason: str) -> None:
    selection = select(messages(said), q_values)
    assert (selection.chosen, selection.reason) == (chosen, reason)


def test_no_candidate_cannot_be_chosen() -> None:
    with pytest.raises(InvalidCandidatesError, match="0 candidates"):
        select([], [])


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_q_that_is_no_number_is_never_compared(broken: float) -> None:
    with pytest.raises(ScorerUnavailableError, match="a Q-value is"):
        select(messages("ab"), [0.1, broken])


def test_distinct_candidates_keep_their_order_and_find_their_way_back() -> None:
    said = messages("abacb")
    unique = distinct(said)
    assert list(unique.messages) == messages("abc")
    assert [unique.messages[i] for i in unique.index] == said


@pytest.mark.parametrize(
    ("said", "q_values", "ranked"),
    [
        ("abc", (0.1, 0.9, 0.3), [1, 2, 0]),
        ("abc", (0.5, 0.9, 0.9), [1, 2, 0]),
        ("aab", (0.9, 0.9, 0.3), [0, 2, 1]),
        ("aba", None, [0, 1, 2]),
    ],
)
def test_the_best_come_first_and_repetitions_last(
    said: str, q_values: tuple[float, ...] | None, ranked: list[int]
) -> None:
    assert ranking(messages(said), q_values) == ranked
