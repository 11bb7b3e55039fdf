"""Recorded episodes become decisions among what the runs did."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded.groups import RecordedGroupsConfig, run_recorded_groups
from benchmarks.recorded.sql_episodes import RecordedTurn, read_recorded
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import TreeRow
from qguide.training.data.decision_groups import read_groups
from qguide.training.data.runs import RunFolder
from qguide.training.data.trajectories import read_trajectories
from qguide.training.environments.intercode_sql.bundle import InterCodeSqlConfig
from tests.support.recordings.sample import dump


def turn(action: str, reward: float = 0.0, observation: str = "[(2,)]") -> dict[str, Any]:
    valid = not observation.startswith("Error")
    return {"action": action, "observation": observation, "reward": reward, "valid": valid}


def write_episodes(path: Path, *more: dict[str, Any]) -> Path:
    """Three runs on the first generated task."""
    runs = {
        "one_shown": [turn("SELECT 1", 0.5)],
        "two_shown": [turn("```sql\nSELECT 1\n```", 0.5), turn("SELECT 3", 1.0)],
        "three_blind": [turn("SELECT x", observation="Error executing query: x"), turn("")],
    }
    episodes = [
        {"run": run, "model": run, "schema_shown": "shown" in run, "task_id": 0, "db": "library"} | {"turns": turns}
        for run, turns in runs.items()
    ]
    path.write_text("".join(json.dumps(episode) + "\n" for episode in [*episodes, *more]))
    return path


def configure(tmp_path: Path, **changes: object) -> RecordedGroupsConfig:
    values: dict[str, object] = {
        "episodes": write_episodes(tmp_path / "episodes.jsonl"),
        "environment": InterCodeSqlConfig(count=2),
        "output": tmp_path / "out",
    }
    return RecordedGroupsConfig.model_validate(values | changes)


def decide(config: RecordedGroupsConfig) -> TreeRow:
    run_recorded_groups(config)
    [row] = read_groups(config.output)
    return row


def test_first_actions_that_act_alike_are_one_candidate(tmp_path: Path) -> None:
    row = decide(configure(tmp_path))
    assert row.task_id == "library/0"
    assert row.first_observation.startswith("Database: library")
    same, error = row.nodes
    assert (same.action, same.count, same.outcome) == ("SELECT 1", 2, 0.5)
    assert same.sources == ("one_shown", "two_shown")
    assert (error.action, error.valid, error.sources) == ("SELECT x", False, ("three_blind",))


def test_a_clone_of_intercode_is_read_as_it_lies(tmp_path: Path) -> None:
    dump(tmp_path / "data/sql/spider/ic_spider_dev.json", [{"db": "library"}, {"db": "library"}])
    results = tmp_path / "data/results/sql/gpt-4"
    history = {
        "actions": ["SELECT 1", "x"],
        "observations": [[[2]], "Error"],
        "rewards": [1.0, 0],
        "valid_action": [True, False],
    }
    dump(results / "ic_sql_2_turns_handicap.json", {"1": {"task_id": 1, "turn_history": history}})
    dump(results / "ic_sql_plan_solve.json", {"meta": {}, "logs": {}})
    (episode,) = read_recorded(tmp_path)
    turns = [
        RecordedTurn.model_validate(told) for told in (turn("SELECT 1", 1.0, "[[2]]"), turn("x", observation="Error"))
    ]
    assert (episode.run, episode.model, episode.schema_shown) == ("ic_sql_2_turns_handicap", "gpt-4", True)
    assert (episode.db, episode.task_id, episode.turns) == ("library", 1, tuple(turns))


def test_runs_are_chosen_by_their_names(tmp_path: Path) -> None:
    row = decide(configure(tmp_path, runs=("*_shown",)))
    assert [c.action for c in row.nodes] == ["SELECT 1"]


def test_all_turns_may_stand_in_the_first_state(tmp_path: Path) -> None:
    config = configure(tmp_path, turns="all")
    assert [c.action for c in decide(config).nodes] == ["SELECT 1", "SELECT 3", "SELECT x"]


def test_errors_may_be_left_out(tmp_path: Path) -> None:
    row = decide(configure(tmp_path, turns="all", only_valid=True))
    assert [c.action for c in row.nodes] == ["SELECT 1", "SELECT 3"]


def test_candidates_are_drawn_where_there_are_too_many(tmp_path: Path) -> None:
    drawn = [
        decide(configure(tmp_path, turns="all", most_candidates=2, seed=s, output=tmp_path / str(s))) for s in range(6)
    ]
    chosen = {tuple(c.action for c in row.nodes) for row in drawn}
    assert {len(actions) for actions in chosen} == {2}
    assert len(chosen) > 1


def test_right_actions_become_trajectories(tmp_path: Path) -> None:
    config = configure(tmp_path, turns="all", rows="trajectories")
    run_recorded_groups(config)
    [row] = read_trajectories(RunFolder(config.output).rows)
    assert [m.role for m in row.messages] == ["system", "user", "assistant", "user"]
    assert ([row.messages[i].content for i in row.replies], row.reward) == (["SELECT 3"], 1)


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    plain = write_episodes(tmp_path / "episodes.jsonl")
    packed = tmp_path / "episodes.jsonl.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert len(decide(configure(tmp_path, episodes=packed)).nodes) == 2


def test_a_line_that_is_no_episode_is_named(tmp_path: Path) -> None:
    config = configure(tmp_path)
    write_episodes(config.episodes, {"run": "four"})
    with pytest.raises(RecordError, match=r"line 4: model: .* recorded"):
        run_recorded_groups(config)


def test_runs_without_an_action_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\* .* 2 tasks; .*environment\.task_ids"):
        run_recorded_groups(configure(tmp_path, runs=("none*",)))
