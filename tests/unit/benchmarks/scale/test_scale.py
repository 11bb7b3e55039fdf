"""The scale benchmark: conserved work, known limits of its scenarios, and its files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.commands.app import app
from benchmarks.scale.config import SCENARIOS, ScaleRun, Scenario, StepCosts
from benchmarks.scale.ring import HashRing
from benchmarks.scale.simulation import Outcome, Scene, Simulation
from benchmarks.scale.step_costs import measure_costs

COSTS = StepCosts(
    source="made up for this test",
    draw_s=0.5,
    draw_read_s=0.001,
    score_s=0.1,
    score_read_s=0.001,
    environment_s=0.05,
    first_tokens=100,
    step_tokens=50,
    steps=(4, 9, 20),
)
SCENE = Scene("hashed", tasks=300, replicas=5, open_episodes=80, cache_tokens=10**6, seed=0)


def played(scene: Scene = SCENE, **changes: Any) -> Outcome:
    return Simulation(replace(scene, **changes), COSTS).run()


def steps_of(outcome: Outcome) -> int:
    return round(outcome.environment_s / COSTS.environment_s)


def test_every_scenario_answers_the_same_steps_once() -> None:
    outcomes: dict[Scenario, Outcome] = {
        scenario: played(scenario=scenario, dies_at_s=60.0 if "dies" in scenario else None) for scenario in SCENARIOS
    }
    assert len({steps_of(outcome) for outcome in outcomes.values()}) == 1
    for outcome in outcomes.values():
        assert outcome.wall_s >= max(outcome.busy_s)
        assert outcome.later_steps >= steps_of(outcome) - SCENE.tasks


def test_one_replica_works_without_a_pause_and_takes_the_sum_of_its_steps() -> None:
    outcome = played(replicas=1)
    steps = steps_of(outcome)
    read_tokens = SCENE.tasks * COSTS.first_tokens + (steps - SCENE.tasks) * COSTS.step_tokens
    assert outcome.read_tokens == read_tokens
    work_s = steps * (COSTS.draw_s + COSTS.score_s) + read_tokens * 0.002
    assert outcome.busy_s == [pytest.approx(work_s)]
    assert outcome.wall_s == pytest.approx(work_s + COSTS.environment_s)


def test_a_session_that_stays_reads_only_what_is_new_and_without_a_cache_everything() -> None:
    hashed, without = played(), played(scenario="no cache")
    assert hashed.returned == hashed.later_steps
    assert hashed.history_tokens == without.history_tokens == without.read_tokens
    assert hashed.read_tokens < without.read_tokens / 2
    assert played(cache_tokens=0).read_tokens == without.read_tokens


def test_a_small_cache_forgets_whole_sessions() -> None:
    hashed, without = played().read_tokens, played(scenario="no cache").read_tokens
    assert hashed < played(cache_tokens=5_000).read_tokens < without


def test_requests_in_turn_are_balanced_and_lose_the_cache() -> None:
    hashed, in_turn = played(), played(scenario="any replica")
    assert max(in_turn.busy_s) / sum(in_turn.busy_s) < max(hashed.busy_s) / sum(hashed.busy_s)
    assert in_turn.read_tokens > 1.5 * hashed.read_tokens
    assert in_turn.returned < 0.5 * in_turn.later_steps


def test_episodes_where_the_fewest_are_beat_the_hash_by_its_imbalance() -> None:
    hashed, fewest = played(), played(scenario="fewest episodes")
    assert fewest.read_tokens == hashed.read_tokens
    assert max(fewest.busy_s) < max(hashed.busy_s)
    assert fewest.wall_s < hashed.wall_s


def test_a_dead_replica_answers_nothing_more_and_its_episodes_read_their_history_again() -> None:
    alive = played()
    dies_at_s = alive.wall_s / 2
    outcome = played(scenario="a replica dies", dies_at_s=dies_at_s)
    assert outcome.resent > 0
    assert sum(busy_s <= dies_at_s for busy_s in outcome.busy_s) == 1
    assert outcome.read_tokens > alive.read_tokens
    assert outcome.returned < outcome.later_steps
    assert outcome.wall_s > alive.wall_s


def test_a_dead_server_leaves_the_sessions_of_the_others_where_they_are() -> None:
    ring = HashRing([f"replica-{number}:8000" for number in range(8)])
    sessions = [f"task-{number}" for number in range(4_000)]
    homes = [ring.server_of(session) for session in sessions]
    moved = [ring.server_of(session, dead={3}) for session in sessions]
    assert all(now == home for now, home in zip(moved, homes, strict=True) if home != 3)
    heirs = {now for now, home in zip(moved, homes, strict=True) if home == 3}
    assert heirs == {0, 1, 2, 4, 5, 6, 7}
    with pytest.raises(ValueError, match="alive"):
        ring.server_of("task-1", dead=range(8))


def test_the_command_simulates_every_size_from_costs_in_a_file(tmp_path: Path) -> None:
    costs, output = tmp_path / "costs.json", tmp_path / "scale.json"
    costs.write_text(COSTS.model_dump_json())
    options = ["--costs", str(costs), "--tasks", "20,200", "--replicas", "1,4", "--seeds", "2"]
    done = CliRunner().invoke(app, ["scale", *options, "--output", str(output)])
    assert done.exit_code == 0, done.output
    run = ScaleRun.model_validate_json(output.read_text())
    assert run.complete
    assert run.machine is None
    assert len(run.rows) == 2 * (2 * len(SCENARIOS) - 1)  # one replica cannot die
    for row in run.rows:
        assert row.least_wall_s <= row.wall_s <= row.most_wall_s
        assert row.busy_s <= row.replica_s * (1 + 1e-9)
        assert row.imbalance >= 1
    assert "made up for this test" in done.output
    assert all(assumption[:40] in done.output for assumption in run.assumptions)
    assert (tmp_path / "scale.png").stat().st_size > 10_000
    again = ["--costs", str(output), "--tasks", "20", "--replicas", "1"]
    done = CliRunner().invoke(app, ["scale", *again, "--output", str(costs)])
    assert done.exit_code == 0, done.output
    assert json.loads(costs.read_text())["costs"] == json.loads(COSTS.model_dump_json())


def test_a_file_that_holds_no_costs_is_refused(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text('{"draw_s": 1}')
    options = ["--costs", str(costs), "--output", str(tmp_path / "scale.json")]
    done = CliRunner().invoke(app, ["scale", *options])
    assert done.exit_code == 2
    assert "holds no costs of a step" in " ".join(done.output.split())


@pytest.mark.slow
def test_costs_are_measured_by_playing_the_embedded_models() -> None:
    costs = measure_costs(episodes=2, threads=1)
    assert len(costs.steps) == 2
    assert costs.draw_s > 0
    assert costs.score_s > 0
    assert costs.first_tokens > 10
    assert costs.step_tokens > 1
