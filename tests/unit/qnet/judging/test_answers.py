"""Scores and rankings are read from a judge's answers, and never invented."""

import json
import math
from typing import Any

import pytest

from qguide.qnet.errors import JudgeAnswerError
from qguide.qnet.judging.answers import read_ranking, read_score, read_verdict, weighted_score
from qguide.qnet.types import Candidate, Message, Verdict


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
    [
        *("", "ten", "10", "9.5", "-1", "7 or 8", "3 of 9", "I would say 7 out of 10.", "7\nfine"),
        *(".8", "0.8", "Score: 0.8", "Score: .8", "1.0"),  # of a scale from 0 to 1
    ],
)
def test_an_answer_without_a_score_is_an_error_that_does_not_quote_it(text: str) -> None:
    with pytest.raises(JudgeAnswerError) as error:
        read_score(answer(text), judge="j")
    assert str(error.value) == (
        "judge j gave an answer that does not end in one number from 0 to 9; change its "
        "prompt_file, or choose a model that keeps to the form"
    )


@pytest.mark.parametrize("text", ["a" * 500, "The options are:\n1.", "1.", "Score: 1", "I think:\n7", "7 of"])
def test_an_answer_that_was_cut_off_has_no_score(text: str) -> None:
    with pytest.raises(JudgeAnswerError, match=r"0 to 9 .*max_tokens"):
        read_score(answer(text, finished=False), judge="j")


def test_an_answer_that_is_only_the_score_may_end_at_max_tokens() -> None:
    assert read_score(answer(" 7", finished=False), judge="j") == pytest.approx(7 / 9)


def test_with_probabilities_the_score_is_their_mean() -> None:
    top = {"7": 0.5, "8": 0.25, " 6": 0.125, "well": 0.125}
    said = answer("7", logprobs={"content": [token("7", top)]})
    expected = (7 * 0.5 + 8 * 0.25 + 6 * 0.125) / 0.875 / 9
    assert read_score(said, judge="j") == pytest.approx(expected)


def test_the_probabilities_are_those_of_the_last_line() -> None:
    tokens = [token("2", {"2": 1.0}), token("\n"), token("5", {"5": 0.5, "6": 0.5}), token("\n")]
    said = answer("2\n5\n", logprobs={"content": tokens})
    assert read_score(said, judge="j") == pytest.approx(5.5 / 9)


@pytest.mark.parametrize("before", [[], [token("9", {"9": 1.0}), token(".\n\n")]])
def test_the_probabilities_are_the_scores_and_not_the_scales(before: list[dict[str, Any]]) -> None:
    score = [token("Score"), token(":"), token(" 9", {" 9": 0.5, " 8": 0.5})]
    tokens = [*before, *score, token("/"), token("9", {"9": 1.0})]
    said = answer("".join(each["token"] for each in tokens), logprobs={"content": tokens})
    assert read_score(said, judge="j") == pytest.approx(8.5 / 9)


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


@pytest.mark.parametrize("text", ["", "2", "[1, 1]", "[1]", "[1, 2, 3]", "[0, 1]", "[1.0, 2.0]", "[a]"])
def test_a_list_that_is_no_ranking_is_an_error(text: str) -> None:
    with pytest.raises(JudgeAnswerError, match=r"1 to 2, .*prompt_file"):
        read_ranking(answer(text), 2, judge="j")


def test_a_ranking_that_was_cut_off_is_an_error_unless_it_is_the_whole_answer() -> None:
    assert read_ranking(answer("[2, 1]", finished=False), 2, judge="j") == (0.0, 1.0)
    with pytest.raises(JudgeAnswerError, match=r"1 to 2, .*max_tokens"):
        read_ranking(answer("First I thought [1, 2], but", finished=False), 2, judge="j")


CRITERIA = ("progress", "safety")
VERDICT = '{"reason": "near the goal", "progress": 6, "safety": 9}'


@pytest.mark.parametrize(
    "text",
    [
        VERDICT,
        f"It is {{near}}.\n\n```json\n{VERDICT}\n```\n",
        '{"progress": 0, "safety": 0} Rather: ' + VERDICT,
        '{\n "safety": 9.0,\n "progress": 6,\n "reason": "near\\n the goal", "more": 1\n}',
    ],
)
def test_a_verdict_is_the_object_in_which_an_answer_ends(text: str) -> None:
    verdict = read_verdict(answer(text), CRITERIA, judge="j")
    assert verdict == Verdict({"progress": 6.0, "safety": 9.0}, "near the goal")
    assert weighted_score(verdict, {"progress": 2.0, "safety": 1.0}) == pytest.approx(7 / 9)


def test_a_reason_may_hold_braces_is_cut_and_may_be_left_out() -> None:
    said = {"progress": 1, "safety": 2, "reason": 'it calls {"progress": 9} ' + "x" * 1_000}
    verdict = read_verdict(answer(json.dumps(said)), CRITERIA, judge="j")
    assert verdict.criteria == {"progress": 1.0, "safety": 2.0}
    assert verdict.reason.startswith('it calls {"progress": 9} x')
    assert len(verdict.reason) == 300
    del said["reason"]
    assert read_verdict(answer(json.dumps(said)), CRITERIA, judge="j").reason == ""


def test_a_reason_can_always_be_written_as_utf_8() -> None:
    text = '{"progress": 1, "safety": 2, "reason": "half \\ud800"}'
    assert read_verdict(answer(text), CRITERIA, judge="j").reason == "half ?"


@pytest.mark.parametrize(
    "text",
    [
        "7",
        '{"progress": 6}',
        '{"progress": 6, "safety": null}',
        '{"progress": 6, "safety": "9"}',
        '{"progress": 6, "safety": true}',
        '{"progress": 6, "safety": 10}',
        '{"progress": 6, "safety": -1}',
        '{"progress": 6, "safety": 0.8}',
        '{"progress": 6, "safety": NaN}',
        '{"verdicts": {"progress": 6, "safety": 9}}',
        VERDICT + " and more",
        VERDICT.removesuffix("}"),
        "{" * 20_000,
    ],
)
def test_a_verdict_that_is_missing_or_no_digit_is_no_answer(text: str) -> None:
    with pytest.raises(JudgeAnswerError, match=r"0 to 9 .*progress, safety; .*prompt_file") as raised:
        read_verdict(answer(text), CRITERIA, judge="j")
    assert "near the goal" not in str(raised.value)


def test_of_an_answer_that_was_cut_off_only_a_whole_object_is_read() -> None:
    assert read_verdict(answer(VERDICT, finished=False), CRITERIA, judge="j").reason
    with pytest.raises(JudgeAnswerError, match=r"progress, safety .*max_tokens"):
        read_verdict(answer("Perhaps " + VERDICT, finished=False), CRITERIA, judge="j")
