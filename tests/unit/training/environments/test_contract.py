"""Checks of the contract fail where their rules are broken; the command names the remedy.

No environment here breaks the rules of tables, experts and solutions on record.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.contract import Finding
from qguide.qnet.types import History
from qguide.training.environment import Branching, EnvironmentConfig
from qguide.training.environments.contract import Subject, check_environment
from qguide.training.environments.registry import SelectedSuite
from tests.support.broken_environments import WAITING, broken

RUN = CliRunner()


def findings(
    *,
    known: bool = True,
    probed: bool = False,
    actions: Callable[[History], Sequence[str]] | None = None,
    branching: Branching = "replay",
    **faults: bool,
) -> dict[str, Finding]:
    probes = ("look", "wait") if probed else ()
    bundle = replace(broken(**faults), probes=probes, actions=actions, branching=branching)
    config = EnvironmentConfig(name=bundle.name)
    suite = bundle.build_suite(config)
    selected = SelectedSuite(suite.name, suite.tasks, suite, bundle)
    found = check_environment(Subject(config, selected, bundle.harmless if known else None))
    return {finding.check.rule: finding for finding in found}


def failed(**faults: Any) -> set[str]:
    return {rule for rule, finding in findings(**faults).items() if finding.outcome == "failed"}


def test_nothing_fails_without_a_fault() -> None:
    found = findings()
    assert not failed()
    assert {rule for rule, finding in found.items() if finding.outcome == "not checked"} == {
        "the expert's replies succeed",
        "solutions on record succeed",
    }


STARTS = "an episode of each task starts"
HARMLESS = "the harmless action is valid at the start of every task"
START = "the first observation is the task's own, and the same each time"
MEANINGLESS = "an action that means nothing is answered, is not valid and changes nothing"
BEGINNING = "a beginning is no success, and rewards are in [0, 1]"
REPLAYS = "the same actions lead to the same observations"


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("same_ids", "tasks have distinct ids, and a kind"),
        ("same_start", START),
        ("random_start", START),
        ("random_start", REPLAYS),
        ("steps_before_reset", "a step before reset fails"),
        ("all_valid", MEANINGLESS),
        ("meaningless_acts", MEANINGLESS),
        ("wins_at_once", BEGINNING),
        ("large_reward", BEGINNING),
        ("keeps_spaces", "spaces around an action do not matter"),
        ("random_answers", REPLAYS),
        ("shared", "episodes run side by side"),
        ("closes_once", "closing twice is safe"),
    ],
)
def test_a_broken_rule_is_found(fault: str, rule: str) -> None:
    assert rule in failed(**{fault: True})


def test_whatever_an_environment_raises_is_a_finding() -> None:
    found = findings(known=False, raises=True)["a step before reset fails"]
    assert found.outcome == "failed"
    assert found.detail.startswith("KeyError: 'room' (")
    assert "broken_environments.py, line " in found.detail


def test_one_cause_is_one_failure() -> None:
    found = findings(raises=True)
    assert [rule for rule, each in found.items() if each.outcome == "failed"] == [HARMLESS]
    assert found[REPLAYS].outcome == "not checked"
    assert found[REPLAYS].detail == "it fails as above"
    found = findings(cannot_start=True)
    assert [rule for rule, each in found.items() if each.outcome == "failed"] == [STARTS]
    assert "start the server" in found[STARTS].check.remedy


def test_a_harmless_action_that_is_none_is_the_only_failure() -> None:
    found = RUN.invoke(app, ["environment", "check", WAITING.name, "--harmless", "sleep"])
    assert found.exit_code == 1
    lines = found.output.splitlines()
    [failure] = [i for i, line in enumerate(lines) if line.startswith("failed ")]
    assert HARMLESS in lines[failure]
    assert "'sleep' is answered by 'You cannot do that.', not valid" in lines[failure + 1]
    assert "remedy: name another by --harmless" in lines[failure + 2]


def test_without_a_harmless_action_the_rest_is_checked() -> None:
    found = findings(known=False)
    assert found[MEANINGLESS].outcome == "passed"
    assert found[BEGINNING].outcome == found[REPLAYS].outcome == "not checked"
    assert "name one" in found[BEGINNING].detail


@pytest.mark.parametrize("known", [True, False])
def test_probes_find_the_dice_that_other_actions_do_not_throw(known: bool) -> None:
    for dice in (True, False):
        found = findings(known=known, probed=True, dice=dice)[REPLAYS]
        assert found.outcome == ("failed" if dice else "passed")


@pytest.mark.parametrize("listed", ["wait", "Thought: Not yet.\nAction: wait"])
def test_listed_actions_find_the_dice_where_no_probes_are_named(listed: str) -> None:
    found = findings(dice=True, actions=lambda history: ["look", listed])[REPLAYS]
    assert (found.outcome, "wait" in found.detail) == ("failed", True)
    assert findings(actions=lambda history: ["look", listed])[REPLAYS].outcome == "passed"


def test_what_never_replays_is_not_blamed_for_its_dice() -> None:
    found = findings(probed=True, dice=True, branching="none")[REPLAYS]
    assert (found.outcome, "'none'" in found.detail) == ("not checked", True)


def test_replays_of_meaningless_actions_alone_prove_nothing() -> None:
    found = findings(known=False, dice=True)[REPLAYS]
    assert (found.outcome, "name probes" in found.detail) == ("not checked", True)
    assert findings(known=False, random_answers=True)[REPLAYS].outcome == "failed"


def test_the_command_prints_what_fails_and_the_remedy() -> None:
    good = RUN.invoke(app, ["environment", "check", WAITING.name])
    assert good.exit_code == 0
    assert good.output.splitlines()[-1] == "12 passed, 0 failed, 2 not checked"
    bad = RUN.invoke(app, ["environment", "check", "tests.support.broken_environments:RANDOM"])
    assert bad.exit_code == 1
    assert "failed       the same actions lead to the same observations" in bad.output
    assert "the answers are StepResult(" in bad.output
    assert "remedy: derive all chance from the task" in bad.output
    strange = RUN.invoke(app, ["environment", "check", "minecraft"])
    assert strange.exit_code == 2


def test_the_command_takes_a_call_as_the_harmless_action() -> None:
    tools = ["environment", "check", "intercode-sql-tools", "--set", "count=2", "--harmless"]
    good = RUN.invoke(app, [*tools, 'execute_sql({"query": "SHOW TABLES"})'])
    assert good.exit_code == 0, good.output
    wrong = RUN.invoke(app, [*tools, 'run({"query": "SHOW TABLES"})'])
    assert wrong.exit_code == 1
    assert RUN.invoke(app, [*tools, "SHOW TABLES"]).exit_code == 2
