"""Outcomes by rules."""

from time import process_time
from typing import Any

import pytest

from qguide.qnet.types import Message, ToolCall
from qguide.server.settings.outcome_rules import OutcomeRule, ruled_outcome

ASKED = Message("user", "Thanks in advance: bring the milk to Ana.")
CALL = Message("assistant", "", (ToolCall("bring", '{"room": "kitchen"}'),))


def result(text: str) -> Message:
    return Message("tool", text)


def outcome(*history: Message, final: bool = False, **rule: Any) -> float | None:
    return ruled_outcome([OutcomeRule.model_validate(rule)], history, final=final)


DONE: dict[str, Any] = {"where": "last_tool_result", "contains": "Thanks", "outcome": 1}


def test_a_text_in_the_last_tool_result_decides() -> None:
    assert outcome(ASKED, CALL, result("Thanks from Ana."), **DONE) == 1
    assert outcome(ASKED, CALL, result("No Ana here."), **DONE) is None


def test_neither_the_task_nor_an_earlier_result_is_the_last_result() -> None:
    assert outcome(ASKED, **DONE) is None
    assert outcome(ASKED, CALL, result("Thanks."), CALL, result("Broken."), **DONE) is None
    assert outcome(ASKED, CALL, result("Thanks."), Message("assistant", "Done."), **DONE) is None


def test_any_of_several_results_of_one_reply_may_have_the_text() -> None:
    assert outcome(ASKED, CALL, result("Thanks."), result("Nothing here."), **DONE) == 1


def test_a_missing_text_counts_only_where_there_is_a_result() -> None:
    failed: dict[str, Any] = {"where": "last_tool_result", "lacks": "Thanks", "outcome": 0}
    assert outcome(ASKED, CALL, result("No Ana here."), **failed) == 0
    assert outcome(ASKED, CALL, result("Thanks."), **failed) is None
    assert outcome(ASKED, **failed) is None


def test_the_last_message_may_be_an_observation_in_words() -> None:
    won: dict[str, Any] = {"where": "last_message", "contains": "You won", "outcome": 0.5}
    said = Message("assistant", "go north")
    assert outcome(ASKED, said, Message("user", "You won."), **won) == 0.5
    assert outcome(ASKED, said, Message("user", "A wall."), **won) is None


def test_the_first_rule_that_holds_counts() -> None:
    rules = [
        OutcomeRule(where="last_tool_result", contains="refunded", lacks="twice", outcome=1.0),
        OutcomeRule(where="last_tool_result", contains="refunded", outcome=0.25),
        OutcomeRule(where="last_tool_result", final=True, outcome=0.0),
    ]
    for text, expected in (("refunded", 1.0), ("refunded twice", 0.25), ("refused", 0.0)):
        assert ruled_outcome(rules, (ASKED, CALL, result(text)), final=True) == expected
    assert ruled_outcome(rules, (ASKED, CALL, result("refused"))) is None


def test_a_final_rule_without_a_text_needs_no_result() -> None:
    at_end: dict[str, Any] = {"where": "last_tool_result", "outcome": 0, "final": True}
    assert ruled_outcome([OutcomeRule.model_validate(at_end)], (ASKED,), final=True) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Process exited with code 0", 1.0),
        ("exit code: 2", 0.0),
        ("Exit status 1", 0.0),
        ('{"stdout": "", "exit_code": 0}', 1.0),
        ("exit_code=127", 0.0),
        ("returncode=0", 1.0),
        ("exited with code -9", 0.0),
        ("first exit code 1, then exit code 0", 1.0),
        ("code 0, no exit", None),
    ],
)
def test_an_exit_code_is_read_at_the_end(text: str, expected: float | None) -> None:
    assert outcome(ASKED, CALL, result(text), where="exit_code", final=True) == expected
    assert ruled_outcome([OutcomeRule(where="exit_code")], (ASKED, CALL, result(text))) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("===== 1 failed, 3 passed in 0.12s =====", 0.75),
        ("4 passed, 2 warnings in 0.01s", 1.0),
        ("Test Suites: 1 failed, 1 total\nTests:       1 failed, 1 passed, 2 total", 0.5),
        (" Tests  1 failed | 3 passed (4)", 0.75),
        ("test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured", 0.75),
        ("ERROR collecting test_a.py\n===== 1 error in 0.09s =====", 0.0),
        ("3 passed, 1 error in 0.2s", 0.75),
        ("Found 3 errors.", None),
        ("0 passed", None),
        ("Tests:       4 failed, 1 passed, 5 total\nSnapshots:   2 passed, 2 total", 0.2),
    ],
)
def test_a_test_report_is_the_share_that_passed(text: str, expected: float | None) -> None:
    history = (ASKED, CALL, result(text))
    assert ruled_outcome([OutcomeRule(where="test_report")], history, final=True) == expected


def test_the_newest_report_counts_though_another_result_follows_it() -> None:
    history = (ASKED, CALL, result("2 failed in 0.1s"), CALL, result("2 passed in 0.1s"), CALL, result("committed"))
    assert ruled_outcome([OutcomeRule(where="test_report")], history, final=True) == 1


def test_a_megabyte_without_a_report_takes_no_long_search() -> None:
    rules = [OutcomeRule(where="exit_code"), OutcomeRule(where="test_report")]
    began = process_time()
    for text in ("exit " * 200_000, "1" * 1_000_000, "exit_with_" * 100_000):
        assert ruled_outcome(rules, (ASKED, CALL, result(text)), final=True) is None
    assert process_time() - began < 5
