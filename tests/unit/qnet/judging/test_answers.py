"""Scores and rankings are read from a judge's answers, and never invented."""

import json
import math
from typing import Any

import pytest

from qnet.errors import JudgeAnswerError
from qnet.judging.answers import read_ranking, read_score
from qnet.types import Candidate, Message


def answer(text: str, **more: Any) -> Candidate:
    return Candidate(Message("assistant", text), completion_tokens=1, **more)


def token(text: str, top: dict[str, float] | None = None) -> dict[str, Any]:
    alternatives = [{"token": t, "logprob": math.log(p)} for t, p in (top or {}).items()]
    return {"token": text, "logprob": -0.1, "top_logprobs": alternatives}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("7", 7.0),
        (" 7.\n", 7.0),
        ("**9**", 9.0),
        ("Score: 3", 3.0),
        ("score = 3/9", 3.0),
        ("4.5", 4.5),
        ("It opens 2 of 3 doors.\n\nScore: 6", 6.0),
    ],
)
def test_without_probabilities_the_score_is_the_number(text: str, score: float) -> None:
    assert read_score(answer(text), judge="j") == pytest.approx(score / 9)


@pytest.mark.parametrize(
    "text",
    ["", "ten", "10", "9.5", "-1", "7 or 8", "3 of 9", "I would say 7 out of 10.", "7\nfine"],
)
def test_an_answer_without_a_score_is_an_error_with_its_beginning(text: str) -> None:
    with pytest.raises(JudgeAnswerError) as error:
        read_score(answer(text), judge="j")
    assert f"judge j answered {text!r}" in str(error.value)


def test_a_long_answer_is_quoted_from_its_beginning_and_its_end_is_explained() -> None:
    with pytest.raises(JudgeAnswerError, match=r"answered 'aaa.*a'…, .* was cut off by max_tokens"):
        read_score(answer("a" * 500, finished=False), judge="j")


def test_with_probabilities_the_score_is_their_mean() -> None:
    top = {"7": 0.5, "8": 0.25, " 6": 0.125, "well": 0.125}
    said = answer("7", logprobs={"content": [token("7", top)]})
    expected = (7 * 0.5 + 8 * 0.25 + 6 * 0.125) / 0.875 / 9
    assert read_score(said, judge="j") == pytest.approx(expected)


def test_the_probabilities_are_those_of_the_last_line() -> None:
    tokens = [token("2", {"2": 1.0}), token("\n"), token("5", {"5": 0.5, "6": 0.5}), token("\n")]
    said = answer("2\n5\n", logprobs={"content": tokens})
    assert read_score(said, judge="j") == pytest.approx(5.5 / 9)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": [token("7")]},  # without alternatives
        {"content": [token("x", {"7": 1.0})]},  # of another text
        {"content": "odd"},
        {"content": [{"token": "7", "top_logprobs": [{"token": "7", "logprob": None}]}]},
    ],
)
def test_probabilities_that_say_nothing_leave_the_number(logprobs: dict[str, Any] | None) -> None:
    assert read_score(answer("7", logprobs=logprobs), judge="j") == pytest.approx(7 / 9)


def test_a_ranking_becomes_equal_steps_from_one_to_zero() -> None:
    assert read_ranking(answer("[2, 3, 1]"), 3, judge="j") == (0.0, 1.0, 0.5)
    said = "Of [1] and [2] the second.\n" + json.dumps({"ranking": [2, 1]})
    assert read_ranking(answer(said), 2, judge="j") == (0.0, 1.0)


@pytest.mark.parametrize(
    "text", ["", "2", "[1, 1]", "[1]", "[1, 2, 3]", "[0, 1]", "[1.0, 2.0]", "[a]"]
)
def test_a_list_that_is_no_ranking_is_an_error(text: str) -> None:
    with pytest.raises(JudgeAnswerError, match="numbers 1 to 2, each once"):
        read_ranking(answer(text), 2, judge="j")
