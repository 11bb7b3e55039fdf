"""Exact match and F1 on cases worked by hand from the rules of the official evaluation."""

import pytest

from qguide.training.environments.hotpotqa.bundle import exact_match, f1, normalized


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        ("The Beatles", "beatles"),
        ("  An   apple a day ", "apple day"),
        ("U.S.A.", "usa"),
        ("Theatre", "theatre"),
        ("rock-and-roll", "rockandroll"),  # punctuation goes before words are told apart
        ("Jean–Luc", "jean–luc"),  # only ASCII punctuation goes
        ("the", ""),
        ("a-the", "athe"),
    ],
)
def test_an_answer_is_normalized(answer: str, bare: str) -> None:
    assert normalized(answer) == bare


@pytest.mark.parametrize(
    ("answer", "gold", "em", "expected"),
    [
        ("Badr Hari", "badr hari!", 1, 1),
        ("kickboxer Badr Hari", "Badr Hari", 0, 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("Hari Badr", "Badr Hari", 0, 1),
        ("the the Rolling Stones", "Rolling Stones", 1, 1),
        ("new new york", "New York", 0, 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("14 July 1789", "July 1789", 0, 0.8),
        ("Paris", "London", 0, 0),
        ("yes", "Yes.", 1, 1),
        ("yes it is", "yes", 0, 0),  # not 0.5: yes is right or wrong as a whole
        ("no", "no answer", 0, 0),
        ("noanswer", "no", 0, 0),
        ("", "London", 0, 0),
    ],
)
def test_an_answer_is_measured(answer: str, gold: str, em: float, expected: float) -> None:
    assert exact_match(answer, gold) == em
    assert f1(answer, gold) == pytest.approx(expected)
    assert f1(gold, answer) == pytest.approx(expected)
