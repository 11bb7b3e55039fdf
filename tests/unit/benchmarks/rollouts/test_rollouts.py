"""A short rollout benchmark: each number of episodes at once sends the same requests."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from benchmarks.measurement.records import RolloutsRun
from benchmarks.rollouts.rollouts import RolloutsBench, print_rollouts, rollouts_bench


def test_every_row_plays_the_same_episodes(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.json"
    config = RolloutsBench(output=output, parallel=(1, 4), episodes=4, steps=2, delay_s=0.01)
    run = rollouts_bench(config)
    assert run == RolloutsRun.model_validate_json(output.read_text())
    assert run.complete
    assert [(row.parallel, row.requests) for row in run.rows] == [(1, 8), (4, 8)]
    shown = StringIO()
    print_rollouts(run, Console(file=shown, width=100))
    assert "4 episodes of 2 steps, 0.01 s per answer" in shown.getvalue()
