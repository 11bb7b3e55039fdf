"""Votes, likelihood and validity as scorers, alone and before others."""

import json
from typing import Any

import pytest

from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.scoring.rules import RuledScorer, RuleScorer, is_valid, rule_values, split_rules
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import Message, ScoreRequest, ToolCall

HISTORY = (Message("user", "book a table"),)
BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {"people": {"type": "integer", "minimum": 1}},
            "required": ["people"],
            "additionalProperties": False,
        },
    },
}


def said(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("assistant", text) for text in texts)


def called(arguments: Any, name: str = "book") -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message("assistant", "", (ToolCall(name, text),))


@pytest.mark.parametrize(
    ("source", "rules", "behind"),
    [
        ("votes", ("votes",), ""),
        ("validity+votes", ("validity", "votes"), ""),
        ("validity+judge:gpt", ("validity",), "judge:gpt"),
        ("votes+/models/a+b", ("votes",), "/models/a+b"),
        ("/models/a+votes", (), "/models/a+votes"),
        ("embedded", (), "embedded"),
        ("", (), ""),
    ],
)
def test_rules_are_named_before_what_they_stand_before(source: str, rules: tuple[str, ...], behind: str) -> None:
    assert split_rules(source) == (rules, behind)


def test_votes_are_shares_of_the_draws_by_effect() -> None:
    candidates = said("Thought: a\nAction: x", "Action: x", "Action: y")
    request = ScoreRequest(HISTORY, candidates, counts=(1, 2, 1))
    assert rule_values("votes", request) == (0.75, 0.75, 0.25)
    assert rule_values("votes", ScoreRequest(HISTORY, said("x", "y"))) == (0.5, 0.5)


def test_likelihood_is_the_policys_own() -> None:
    request = ScoreRequest(HISTORY, said("x", "y"), logprobs=(-1.0, -3.0))
    first, second = rule_values("likelihood", request)
    assert first + second == pytest.approx(1)
    assert first > second


@pytest.mark.parametrize("logprobs", [(), (-1.0, None)])
def test_an_unknown_likelihood_is_never_invented(logprobs: tuple[float | None, ...]) -> None:
    request = ScoreRequest(HISTORY, said("x", "y"), logprobs=logprobs)
    with pytest.raises(ScorerUnavailableError, match="no log-likelihood"):
        RuleScorer(("likelihood",)).score([request])


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        (called({"people": 2}), True),
        (called({"people": 2.0}), True),
        (called({"people": 0}), False),
        (called({"people": "two"}), False),
        (called({"people": True}), False),
        (called({}), False),
        (called({"people": 2, "day": "Monday"}), False),
        (called("{people: 2}"), False),
        (called("[2]"), False),
        (called({"people": 2}, name="cancel"), False),
        (said("Which day?")[0], True),
    ],
)
def test_a_call_is_valid_if_its_tool_takes_it(reply: Message, valid: bool) -> None:
    assert is_valid(reply, (BOOK,)) is valid


def test_without_tools_only_json_is_required() -> None:
    assert is_valid(called({"anything": 1}), ())
    assert not is_valid(called("{"), ())


def test_what_has_no_shape_of_a_tool_refuses_nothing_by_its_schema() -> None:
    odd: tuple[dict[str, Any], ...] = ({"function": 7}, {"function": {"name": "book"}}, {"name": 3})
    assert is_valid(called({"x": 1}), odd)
    custom = ToolCall("run", "any text", kind="custom")
    offered = ({"type": "custom", "custom": {"name": "run"}},)
    assert is_valid(Message("assistant", "", (custom,)), offered)


def test_rules_are_compared_before_the_last_one() -> None:
    candidates = (called({"people": 2}), called({"people": 0}), called({"people": 3}))
    request = ScoreRequest(HISTORY, candidates, counts=(1, 3, 1), tools=(BOOK,))
    [result] = RuleScorer(("validity", "votes")).score([request])
    assert result.q_values == (0.2, 0.6, 0.2)
    assert result.rules == ((1.0,), (0.0,), (1.0,))


def test_a_scorer_behind_rules_keeps_its_q() -> None:
    scripted = ScriptedScorer({"x": 0.9, "y": 0.2})
    scorer = RuledScorer(("votes",), scripted)
    request = ScoreRequest(HISTORY, said("x", "y"), counts=(1, 3))
    [result] = scorer.score([request])
    assert result.q_values == (0.9, 0.2)
    assert result.rules == ((0.25,), (0.75,))
    assert (scorer.name, scorer.ranks) == ("votes+scripted", True)
    assert not RuledScorer(("validity",), scripted).ranks


def test_an_action_whose_answer_tells_of_an_error_is_not_valid() -> None:
    answers = ("NameError: x", "You see a mug.", "")
    observations = tuple((Message("user", text),) for text in answers)
    request = ScoreRequest(HISTORY, said("a", "b", "c"), observations=observations)
    assert rule_values("validity", request) == (0.0, 1.0, 1.0)
