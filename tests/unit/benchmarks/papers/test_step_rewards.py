"""Figures of step rewards from decision groups, and by another policy's roll-outs."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.commands.app import app
from benchmarks.papers.step_rewards import run_step_rewards
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Candidate, SampleRequest
from qguide.training.data.decision_groups import GroupDecision, decided_nodes, decisions_of, read_groups
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.exploration.decision_groups import Decisions, Draws
from qguide.training.exploration.rising import Rising
from qguide.training.exploration.step_rewards import StepRewards
from qguide.training.jobs.groups import Continuation, GroupsConfig, run_groups
from qguide.training.jobs.rro import RroConfig, run_rro
from tests.support.wanderer import Wanderer

QUIET = Console(file=StringIO())


class Noting(Wanderer):
    """A wanderer that notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.roles: set[str] = set()

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        self.roles |= {request.role for request in requests}
        return super().sample_batch(requests)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    config = GroupsConfig(
        output=folder,
        environment=CorridorConfig(count=6),
        decisions=Decisions(draws=(Draws(n=4, temperature=1.0),), max_steps=6, horizon=12),
        continuation=Continuation(by="policy", repetitions=20, temperature=1.0),
    )
    run_groups(config, policy=Wanderer(), console=QUIET)
    return folder


def rro_config(output: Path, **changes: object) -> RroConfig:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=4),
        "rising": Rising(max_draws=1),
        "rewards": StepRewards(rollouts=3, max_steps=6),
    }
    return RroConfig.model_validate(values | changes)


def test_the_command_judges_few_roll_outs_by_many(groups: Path, tmp_path: Path) -> None:
    output = tmp_path / "rewards.json"
    arguments = ["step-rewards", str(groups), "--rollouts", "1,10", "--output", str(output)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "accuracy of step rewards" in result.output
    [written] = json.loads(output.read_text())
    one, ten = written["accuracy"]
    assert (one["rollouts"], ten["rollouts"]) == (1, 10)
    assert one["pairs"] > 10
    low, high = one["interval"]
    assert 0 < low < one["accuracy"] < high <= 1
    assert 0 < ten["error"] < one["error"] < 1
    steps = [mean["trajectories"] for mean in written["by_step"]]
    assert sum(steps) == written["steps"]
    assert steps[0] == 6


def decided(row: TreeRow, *decisions: GroupDecision) -> str:
    """The row's line with other decisions."""
    return row.model_copy(update={"nodes": decided_nodes(decisions)}).model_dump_json() + "\n"


def test_the_mean_is_over_the_states_that_were_valued(groups: Path, tmp_path: Path) -> None:
    """A state of which only the taken candidate is left changes no figure."""
    rewards, written = [], []
    for row in read_groups(groups):
        first, *others = decisions_of(row)
        written.append(decided(row, first, *(GroupDecision((each.taken,), 0) for each in others)))
        rewards.append(first.taken.outcome)
        assert len(first.candidates) > 1
    (tmp_path / "rows.jsonl").write_text("".join(written))
    [found] = run_step_rewards([tmp_path], tmp_path / "rewards.json", rollouts=(1,), min_gap=0.1, console=QUIET)
    assert found.steps == 6
    assert found.mean_reward == pytest.approx(fmean(rewards))
    assert [mean.step for mean in found.by_step] == [1]


def test_agents_are_compared_by_the_rewards_of_their_own_steps(tmp_path: Path) -> None:
    agent, scorer = Noting(), Noting()
    figures = run_rro(rro_config(tmp_path), policy=agent, rollouts=scorer, console=QUIET)
    assert (agent.roles, scorer.roles) == ({"act"}, {"rollout"})
    assert figures["draws_per_step"] == 1
    [found] = run_step_rewards([tmp_path], tmp_path / "rewards.json", rollouts=(1,), min_gap=0.1, console=QUIET)
    assert (found.trajectories, found.steps) == (4, figures["steps"])
    assert found.accuracy == ()  # one action in each state makes no pair


def test_a_long_trajectory_counts_as_much_as_a_short_one(groups: Path, tmp_path: Path) -> None:
    """Actions worth 1, 1 and 0 at the first task, 0 at the second, 1 at the third."""
    written = []
    for row, rewards in zip(read_groups(groups), ((1.0, 1.0, 0.0), (0.0,), (1.0,)), strict=False):
        taken = decisions_of(row)[0].taken
        [rollout, *_] = taken.rollouts
        played = [rollout.model_copy(update={"outcome_reward": reward}) for reward in rewards]
        nodes = [taken.model_copy(update={"terminated": False, "rollouts": (one,)}) for one in played]
        written.append(decided(row, *(GroupDecision((node,), 0) for node in nodes)))
    (tmp_path / "explored.jsonl").write_text("".join(written))
    output = tmp_path / "rewards.json"
    [found] = run_step_rewards([tmp_path], output, rollouts=(1,), min_gap=0.1, console=QUIET)
    assert (found.trajectories, found.steps) == (3, 5)
    assert found.mean_reward == pytest.approx((2 / 3 + 0 + 1) / 3)  # not 3 / 5
    low, high = found.interval
    assert 0 <= low < found.mean_reward < high <= 1


def test_what_cannot_be_judged_is_refused(groups: Path, tmp_path: Path) -> None:
    output = tmp_path / "rewards.json"
    for rollouts, min_gap in (((0,), 0.1), ((1,), 0.0)):
        with pytest.raises(ConfigError, match=r"rollouts .*\[\d\] .*min_gap [\d.]+;"):
            run_step_rewards([groups], output, rollouts=rollouts, min_gap=min_gap, console=QUIET)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "rows.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"empty .*`qguide groups` or `qguide rro`"):
        run_step_rewards([tmp_path / "empty"], output, rollouts=(1,), min_gap=0.1, console=QUIET)
    arguments = ["step-rewards", str(groups), "--rollouts", "1,many", "--output", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "'many' is no whole number" in " ".join(result.output.split())
