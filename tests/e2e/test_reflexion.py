"""Reflexion against an upstream that learns from its own notes, through the command."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.environments.corridor import Corridor, CorridorSuite
from qguide.training.evaluation.reflexion import NOTES_HEADING, QUESTION
from qguide.training.trajectory import react_reply
from tests.support.serving import serving_app

TASKS = 4
NOTE = "Looking around was the mistake; walk to the door instead."
JOB = """
output = "{output}"
policy = "upstream:demo"
methods = ["greedy", "reflexion"]
seeds = [0, 1]
max_steps = 12
[environment]
name = "fake"
count = 4
[reflexion]
trials = 4
[upstreams.demo]
url = "{url}/v1"
model = "learner-1"
instructions = "Reply with Thought and Action."
prices = {{prompt = 1.0, completion = 1.0}}
"""


class Learner(FakeUpstream):
    """Looks around in vain until its prompt holds two notes; then it knows the way."""

    def _choice(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        choice = super()._choice(body, index)
        messages = body["messages"]
        text = next(each["content"] for each in messages if each["role"] == "user")
        turn = sum(each["role"] == "assistant" for each in messages)
        if text.endswith(QUESTION):
            reply = NOTE
        elif text.partition(NOTES_HEADING)[2].count("\n- ") < 2:
            reply = react_reply("Hm.", "look")
        else:
            reply = react_reply("I know.", solution_of(text)[turn])
        return choice | {"message": {"role": "assistant", "content": reply}}


def solution_of(prompt: str) -> list[str]:
    suite = CorridorSuite(count=TASKS)
    [task] = [task for task in suite.tasks if prompt.startswith(suite.make(task).reset())]
    return Corridor.of_seed(int(task.source)).solution()


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeUpstream]:
    folder = tmp_path_factory.mktemp("reflexion")
    fake = Learner()
    with serving_app(fake.app()) as url:
        job = folder / "evaluate.toml"
        job.write_text(JOB.format(output=folder / "run", url=url))
        result = CliRunner().invoke(app, ["evaluate", "--config", str(job)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder / "run", fake


def test_the_third_trial_wins_and_counts(evaluation: tuple[Path, FakeUpstream]) -> None:
    output, _ = evaluation
    results = json.loads((output / "results.json").read_text())
    assert results["complete"]
    rates = {row["method"]: (row["success_rate"], row["peeks"]) for row in results["summary"]}
    assert rates == {"greedy": (0.0, False), "reflexion": (1.0, True)}
    assert results["config"]["reflexion"]["trials"] == 4
    rows = [json.loads(line) for line in (output / "episodes.jsonl").read_text().splitlines()]
    played = [row for row in rows if row["method"] == "reflexion"]
    assert len(played) == 2 * TASKS
    for row in played:
        assert [trial["success"] for trial in row["trajectories"]] == [False, False, True]
        assert len(row["reflections"]) == 2
        trials = sum(trial["completion_tokens"] for trial in row["trajectories"])
        assert row["completion_tokens"] == trials + 2 * len(NOTE.split())


def test_instructions_on_how_to_act_are_not_those_of_a_reflection(evaluation: tuple[Path, FakeUpstream]) -> None:
    _, fake = evaluation
    reflections = [b for b in fake.asked if b["messages"][-1]["content"].endswith(QUESTION)]
    assert len(reflections) == 2 * 2 * TASKS
    assert all(len(body["messages"]) == 1 for body in reflections)
    others = [body for body in fake.asked if body not in reflections]
    assert {body["messages"][0]["role"] for body in others} == {"system"}
