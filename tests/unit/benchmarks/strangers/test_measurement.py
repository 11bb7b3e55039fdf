"""The strangers' harness at its smallest: what it records, learns from, plays and prints."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.strangers import licences
from benchmarks.strangers.__main__ import app
from benchmarks.strangers.catalogue import EVERY, STRANGERS
from benchmarks.strangers.choosers import distinct
from benchmarks.strangers.protocol import Measurement
from benchmarks.strangers.report import share_of_way
from benchmarks.strangers.ridge import Ridge
from qguide.qnet.types import Candidate, Message, Scorer, ScoreRequest, ScoreResult
from qguide.training.data.trajectories import Trajectory

SMALL = Measurement(STRANGERS["errands"], new_episodes=24, oracle_episodes=24, continuations=3)


class Constant(Scorer):
    """A learner of nothing, whose posterior is the prior, and which says so."""

    name = "constant"
    tau = 1.0
    licence = SimpleNamespace(granted=False)

    def fit(self, rows: Sequence[Trajectory]) -> Scorer:
        return self

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult((0.0,) * len(request.candidates), 0) for request in requests]


def test_recordings_differ_and_a_shorter_one_is_the_beginning_of_a_longer_one() -> None:
    rows = SMALL.record(0, 12)
    assert SMALL.record(0, 6) == rows[:6]
    assert SMALL.record(1, 12) != rows
    assert len({row.task_id for row in rows}) == 12
    assert {row.reward for row in rows} == {0.0, 1.0}


def test_recordings_may_tell_the_agents_draws() -> None:
    rows = replace(SMALL, told=True).record(0, 6)
    assert {row.drawn for row in SMALL.record(0, 6)} == {()}
    for row in rows:
        assert {sum(one.count for one in drawn) for drawn in row.drawn} == {4}
        taken = [step.message.text for step in row.steps]
        assert all(text in {d.message.text for d in own} for text, own in zip(taken, row.drawn, strict=True))


def test_recordings_tell_rewards_on_the_way_where_the_environment_does() -> None:
    rows = Measurement(STRANGERS["crafting"]).record(0, 40)
    told = [row.earned for row in rows if row.earned]
    assert told
    assert all(row.earned[-1] == row.reward for row in rows if row.earned)
    assert {row.earned for row in Measurement(STRANGERS["search"]).record(0, 10)} == {()}


def test_no_new_task_is_recorded() -> None:
    recorded = {row.task_id for row in SMALL.record(0, 100)}
    [sample, *_] = SMALL.baselines()
    assert len(recorded) == 40
    assert len(sample.task_rewards) == 24
    assert not recorded & sample.task_rewards.keys()


def test_candidates_of_one_effect_are_counted_together() -> None:
    replies = [f"Thought: {thought}\nAction: {action}" for thought, action in ("ax", "bx", "cy")]
    messages, votes = distinct([Candidate(Message("assistant", reply), 1) for reply in replies])
    assert [message.content for message in messages] == [replies[0], replies[2]]
    assert votes == [2, 1]


def test_a_q_without_knowledge_plays_like_votes() -> None:
    by_name = {result.chooser: result for result in SMALL.baselines()}
    results = list(SMALL.learned(Constant(), 0, (5,)))
    assert [result.licensed for result in results] == [False, False]
    for result in results:
        assert result.task_rewards == by_name["votes"].task_rewards
        assert (result.chooser, result.episodes) in {("q", 5), ("posterior", 5)}


def test_the_oracle_and_the_ridge_are_above_random() -> None:
    rewards = {result.chooser: result.reward for result in SMALL.baselines()}
    larger = Measurement(STRANGERS["errands"], new_episodes=72)
    [learned] = larger.learned(Ridge(), 0, (100,))
    assert rewards["oracle"] > rewards["random"] + 0.2
    assert learned.reward > rewards["random"] + 0.2
    assert share_of_way(learned.reward, rewards["random"], rewards["oracle"]) > 0.3


def test_rounds_learn_from_their_own_guidance() -> None:
    [rounds] = SMALL.in_rounds(Ridge(), 0, 30)
    assert (rounds.episodes, rounds.rounds) == (30, 3)
    guided = SMALL.record(0, 30, first=20, scorer=Ridge().fit(SMALL.record(0, 20)))
    assert guided != SMALL.record(0, 30)[20:]


def test_results_are_written_as_json_and_as_a_table(tmp_path: Path) -> None:
    small = ["--episodes=10", "--rounds=12", "--recordings=0,1", "--new=24", "--oracle=24"]
    said = CliRunner().invoke(app, ["errands", *small, "--output", str(tmp_path)])
    assert said.exit_code == 0, said.output
    rows = json.loads((tmp_path / "results.json").read_text())
    names = [(row["chooser"], row["recording"], row["rounds"]) for row in rows]
    assert names[:5] == [(n, None, 1) for n in ("sample", "greedy", "random", "votes", "oracle")]
    assert names[5:] == [("q", 0, 1), ("q", 0, 3), ("q", 1, 1), ("q", 1, 3)]
    table = (tmp_path / "results.md").read_text()
    assert "| q | 12 in 3 rounds | " in table
    oracle = next(line for line in table.splitlines() if line.startswith("| oracle"))
    assert oracle.split(" | ")[5] == "100%"


def test_without_the_oracle_no_share_of_its_way_is_told(tmp_path: Path) -> None:
    small = ["--episodes=10", "--recordings=0", "--new=24", "--oracle=0", "--candidates=2"]
    said = CliRunner().invoke(app, ["errands", *small, "--output", str(tmp_path)])
    assert said.exit_code == 0, said.output
    lines = (tmp_path / "results.md").read_text().splitlines()[4:]
    assert [line.split(" | ")[0] for line in lines] == ["| sample", "| greedy", "| random", "| votes", "| q"]
    assert {line.split(" | ")[5] for line in lines} == {""}


def test_outcomes_are_dealt_anew_to_the_episodes_of_a_recording() -> None:
    rows = Measurement(STRANGERS["crafting"]).record(0, 20)
    dealt = [licences.shuffled(rows, shuffle) for shuffle in (0, 0, 1)]
    assert dealt[0] == dealt[1] != dealt[2]
    assert [row.messages for row in dealt[0]] == [row.messages for row in rows]
    assert sorted(row.reward for row in dealt[0]) == sorted(row.reward for row in rows)
    assert {row.earned for row in dealt[0]} == {()}


def test_licences_are_counted_where_fits_are_played_and_where_outcomes_are_shuffled(tmp_path: Path) -> None:
    options = ["errands", "--episodes=10,80", "--recordings=0", "--new=8", "--output", str(tmp_path)]
    played = CliRunner().invoke(licences.app, options)
    assert played.exit_code == 0, played.output
    rows = (tmp_path / "rows.jsonl").read_text()
    both = CliRunner().invoke(licences.app, [*options, "--shuffles=1"])
    assert both.exit_code == 0, both.output
    assert (tmp_path / "rows.jsonl").read_text().startswith(rows)  # a second run goes on behind the first
    fits = [licences.Fit.model_validate_json(row) for row in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(fit.episodes, fit.shuffle) for fit in fits[:2]] == [(10, None), (80, None)]
    assert sorted((fit.episodes, fit.shuffle) for fit in fits[2:]) == [(10, 0), (80, 0)]
    assert [fit.reward is None for fit in fits] == [False] * 2 + [True] * 2
    assert all(fit.credit_errors is None for fit in fits if fit.episodes == 10)
    right = sum(bool(fit.right) for fit in fits)
    table = (tmp_path / "licences.md").read_text().splitlines()
    assert table[0] == f"| | right, of {right} | wrong, of {2 - right} | shuffled, of 2 |"
    assert "| a licence, 10 episodes | 0 | 0 | 0 |" in table
    other = CliRunner().invoke(licences.app, [*options, "--new=48"])
    assert "new was 8 and is 48" in str(other.exception)


@pytest.mark.parametrize("command", [app, licences.app])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["craftnig"], f"'craftnig' is not one of {', '.join(EVERY)}"),
        (["--episodes", "25,x"], "Invalid value for '--episodes': '25,x' holds no whole numbers"),
        (["--worlds", "one"], "Invalid value for '--worlds': 'one' holds no whole numbers"),
    ],
)
def test_what_there_is_not_is_refused_before_anything_is_played(
    command: typer.Typer, arguments: list[str], message: str, tmp_path: Path
) -> None:
    refused = CliRunner().invoke(command, ["crafting", *arguments, "--output", str(tmp_path / "run")])
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.replace("│", " ").split())
    assert not (tmp_path / "run").exists()


def test_licences_of_no_fit_are_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(licences.app, ["crafting", "--new=0", "--output", str(tmp_path / "run")])
    assert refused.exit_code == 2
    assert "--shuffles has to be 1 or more" in " ".join(refused.output.replace("│", " ").split())


@pytest.mark.parametrize(("reward", "share"), [(0.2, 0.0), (0.6, 1.0), (0.4, 0.5), (0.1, -0.25)])
def test_the_share_of_the_way_is_0_for_random_and_1_for_the_oracle(reward: float, share: float) -> None:
    assert share_of_way(reward, 0.2, 0.6) == pytest.approx(share)
