"""Collecting from the expert: won trajectories, each task once, however often it is killed."""

from io import StringIO
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import ConfigError
from qguide.training.data.runs import finished_task_ids
from qguide.training.data.trajectories import Trajectory, read_trajectories
from qguide.training.environment import StepResult
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.environments.registry import build_selected_suite
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.trajectory import parse_action


def configure(output: Path, games: Path | None, **changes: object) -> CollectConfig:
    values: dict[str, object] = {"output": output, "environment": AlfWorldConfig(games=games, limit=12, count=12)}
    return CollectConfig.model_validate(values | changes)


def collect(config: CollectConfig) -> dict[str, float]:
    return run_collect(config, console=Console(file=StringIO()))


def rows_of(config: CollectConfig) -> list[Trajectory]:
    return list(read_trajectories(config.output / "rows.jsonl"))


def actions_of(row: Trajectory) -> list[str]:
    return [row.messages[i].content for i in row.replies]


@pytest.fixture(params=["generated", "real"])
def games(request: pytest.FixtureRequest) -> Path | None:
    """None for generated games, otherwise the folder of the real ones."""
    if request.param == "generated":
        return None
    folder: Path = request.getfixturevalue("real_games_dir")
    return folder


def test_every_kept_trajectory_wins_when_its_actions_are_played_again(tmp_path: Path, games: Path | None) -> None:
    config = configure(tmp_path, games)
    collected = collect(config)
    rows = rows_of(config)
    assert collected["kept"] == len(rows) >= 10
    suite = build_selected_suite(config.environment)
    tasks = {task.id: task for task in suite.tasks}
    for row in rows:
        environment = suite.make(tasks[row.task_id])
        seen = [environment.reset()]
        for reply in actions_of(row):
            result = environment.step(parse_action(reply))
            seen.append(result.observation)
        assert (result.terminated, result.reward) == (True, 1.0)
        assert seen == [m.content for m in row.messages if m.role == "user"]


def test_lost_episodes_are_named_and_not_played_again(tmp_path: Path, games: Path | None) -> None:
    config = configure(tmp_path, games, max_steps=6)
    first = collect(config)
    assert 0 < first["kept"] < first["episodes"] == 12
    skipped = finished_task_ids(tmp_path / "skipped.jsonl")
    assert len(skipped) == 12 - first["kept"]
    assert collect(config)["tasks"] == 0


def test_lost_episodes_are_kept_where_they_are_wanted(tmp_path: Path, games: Path | None) -> None:
    config = configure(tmp_path, games, max_steps=6, only_won=False)
    assert collect(config)["kept"] == 12
    lost = [row for row in rows_of(config) if not row.terminated]
    assert lost
    assert all((row.reward, len(row.steps)) == (0.0, 6) for row in lost)


def test_a_killed_collection_goes_on_without_repeating_a_task(
    tmp_path: Path, games: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tmp_path / "killed", games, parallel=1)
    step, lives = PythonEnvironment.step, iter(range(40))

    def mortal(self: PythonEnvironment, action: str) -> StepResult:
        if next(lives, None) is None:
            raise KeyboardInterrupt
        return step(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(PythonEnvironment, "step", mortal)
        with pytest.raises(KeyboardInterrupt):
            collect(config)
    before = rows_of(config)
    assert before
    collect(config)
    whole = configure(tmp_path / "whole", games, parallel=5)
    collect(whole)
    after = rows_of(config)
    assert after[: len(before)] == before
    assert {row.task_id: row for row in after} == {row.task_id: row for row in rows_of(whole)}
    assert len({row.task_id for row in after}) == len(after)


def test_an_environment_without_an_expert_is_refused(tmp_path: Path) -> None:
    config = CollectConfig(output=tmp_path, environment=CorridorConfig())
    with pytest.raises(ConfigError, match=r"'fake' .*expert; .*policy's"):
        collect(config)


def test_an_environment_without_solutions_is_refused(tmp_path: Path) -> None:
    config = CollectConfig(output=tmp_path, player="gold", environment=CorridorConfig())
    with pytest.raises(ConfigError, match=r"'fake' .*player 'gold' .*policy 'scripted'"):
        collect(config)


@pytest.mark.parametrize("options", [{"mistakes": 0.1}, {"policy": "embedded"}])
def test_solutions_are_played_as_they_are(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"player is 'gold', policy '.*' .*mistakes 0\.\d; "):
        configure(tmp_path, None, player="gold", **options)


def test_mistakes_are_marked_and_recovered_from(tmp_path: Path) -> None:
    config = configure(tmp_path / "mistaken", None, mistakes=0.3)
    assert collect(config)["kept"] >= 10
    rows = rows_of(config)
    assert sum(len(row.mistakes) for row in rows) > len(rows)
    assert all(number < len(row.steps) for row in rows for number in row.mistakes)
    again = configure(tmp_path / "again", None, mistakes=0.3)
    collect(again)
    assert rows_of(again) == rows


def test_where_a_policy_plays_too_only_the_experts_words_are_imitated(tmp_path: Path) -> None:
    few = {"environment": AlfWorldConfig(count=4), "policy": "embedded", "policy_share": 0.6}
    config = configure(tmp_path / "corrected", None, **few)
    assert collect(config)["kept"] >= 3
    rows = rows_of(config)
    assert sum(len(row.mistakes) for row in rows) >= 2
    for row in rows:
        expert = AlfWorldExpert()
        observations = [m.content for m in row.messages if m.role == "user"]
        for number, (seen, reply) in enumerate(zip(observations, actions_of(row), strict=False)):
            assert (expert.reply(seen) != reply) == (number in row.mistakes)
            expert.follow(reply)
    again = configure(tmp_path / "again", None, **few, parallel=1)
    collect(again)
    assert {row.task_id: row for row in rows_of(again)} == {row.task_id: row for row in rows}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "expert"}, "policy is 'expert', .*mistakes"),
        ({"policy": "embedded", "mistakes": 0.1}, r"policy is 'embedded' .*mistakes 0\.1; .*mistakes to 0"),
    ],
)
def test_two_sources_of_mistakes_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        configure(tmp_path, None, **changes)
