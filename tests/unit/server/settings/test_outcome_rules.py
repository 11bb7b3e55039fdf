"""Rules by which episodes end, as a setting."""

from typing import Any

import pytest
from pydantic import ValidationError

from qguide.server.settings.outcome_rules import OutcomeRule
from qguide.server.settings.settings import Settings


def test_rules_are_read_from_the_environment_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "QGUIDE_OUTCOME_RULES",
        '[{"where": "last_tool_result", "contains": "Thanks", "outcome": 1},'
        ' {"where": "last_message", "final": true, "outcome": 0}]',
    )
    first, second = Settings().outcome_rules
    assert (first.contains, first.outcome, first.only_at_end) == ("Thanks", 1.0, False)
    assert (second.outcome, second.only_at_end) == (0.0, True)


def test_a_rule_that_reads_its_outcome_may_give_1() -> None:
    with pytest.raises(ValidationError, match="max_reward is 0"):
        Settings.model_validate({"outcome_rules": [{"where": "test_report"}], "max_reward": 0.5})


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"where": "last_message", "contains": "x"}, "last_message .*outcome; .* 0 to 1"),
        ({"where": "last_message", "outcome": 1}, 'contains .*lacks .*"final": true'),
        ({"where": "exit_code", "outcome": 1}, "exit_code .*contains.*lacks.*outcome"),
        ({"where": "test_report", "contains": "x"}, "test_report .*contains.*lacks.*outcome"),
        ({"where": "last_message", "contains": "x", "outcome": 1.5}, r"outcome\n.*less_than_equal"),
        ({"where": "last_message", "matches": "x+", "outcome": 1}, "Extra inputs"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        OutcomeRule.model_validate(rule)


def test_an_outcome_above_the_greatest_reward_stops_the_start() -> None:
    rule = OutcomeRule(where="last_message", contains="x", outcome=1.0)
    with pytest.raises(ValidationError, match=r"outcome_rules .* 1, .*max_reward is 0\.5"):
        Settings(outcome_rules=(rule,), max_reward=0.5)
