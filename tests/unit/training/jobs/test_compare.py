"""Evaluations of different models are compared task by task."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.papers.success_curve import run_success_curve
from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.evaluation.records import EpisodeRow
from qguide.training.evaluation.results import EPISODES, RESULTS
from qguide.training.jobs.compare import ComparedEvaluations, run_compare
from tests.unit.training.jobs.test_evaluate import evaluate

QUIET = Console(quiet=True)


def test_each_method_of_each_evaluation_is_compared_with_the_first_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    evaluate(first, seeds=(0, 1), methods=("greedy", "sample"), tasks=4)
    evaluate(second, seeds=(0, 1), methods=("greedy",), tasks=4)
    _always_won(second)
    table = run_compare([first, second], "greedy", tmp_path / "table.json", console=QUIET)
    assert [(Path(row.run).name, row.summary.method) for row in table.rows] == [
        ("first", "greedy"),
        ("first", "sample"),
        ("second", "greedy"),
    ]
    rewards = {row.task_id: row.reward for row in _episodes(first) if row.method == "greedy"}
    better = table.rows[2].against
    assert table.rows[0].against is None
    assert better is not None
    assert better.tasks == len(rewards) == 4
    assert better.difference == pytest.approx(sum(2 - r for r in rewards.values()) / 4)
    written = (tmp_path / "table.json").read_text(encoding="utf-8")
    assert ComparedEvaluations.model_validate_json(written) == table


def test_evaluations_of_other_tasks_are_not_compared(tmp_path: Path) -> None:
    evaluate(tmp_path / "a", seeds=(0,), methods=("sample",))
    evaluate(tmp_path / "b", seeds=(0,), methods=("sample",), tasks=4)
    with pytest.raises(ConfigError, match=r"environment = .*'count': 4"):
        run_compare([tmp_path / "a", tmp_path / "b"], "sample", None, console=QUIET)


def test_processes_and_workers_alone_block_no_comparison(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for number, run in enumerate(runs, start=1):
        evaluate(run, seeds=(0,), methods=("sample",))
        results = json.loads((run / RESULTS).read_text(encoding="utf-8"))
        results["config"]["environment"]["processes"] = number
        results["config"]["workers"] = {"executor": "processes", "count": number}
        (run / RESULTS).write_text(json.dumps(results), encoding="utf-8")
    table = run_compare(runs, "sample", None, console=QUIET)
    assert len(table.rows) == 2
    assert "processes" not in str(table.conditions)
    run_success_curve(runs, tmp_path / "curve.png", console=QUIET)


def test_each_row_shows_on_how_many_tasks_it_is_paired(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        evaluate(run, seeds=(0,), methods=("greedy",), tasks=4)
    lines = (second / EPISODES).read_text(encoding="utf-8").splitlines()
    (second / EPISODES).write_text("\n".join(lines[:3]) + "\n", encoding="utf-8")
    text = StringIO()
    run_compare([first, second], "greedy", None, console=Console(file=text, width=120))
    assert "paired" in text.getvalue()
    [row] = [line for line in text.getvalue().splitlines() if line.strip().startswith("second")]
    assert "3" in row.split()
    (second / EPISODES).write_text("", encoding="utf-8")
    table = run_compare([first, second], "greedy", None, console=QUIET)
    assert table.rows[1].against is None


def test_a_baseline_that_was_not_played_is_named_with_those_that_were(tmp_path: Path) -> None:
    evaluate(tmp_path / "a", seeds=(0,), methods=("sample",))
    with pytest.raises(ConfigError, match=r"'greedy'; --against .*sample$"):
        run_compare([tmp_path / "a"], "greedy", None, console=QUIET)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"results\.json .*`qguide evaluate`"):
        run_compare([tmp_path], "greedy", None, console=QUIET)


def _episodes(run: Path) -> list[EpisodeRow]:
    lines = (run / EPISODES).read_text(encoding="utf-8").splitlines()
    return [EpisodeRow.model_validate_json(line) for line in lines]


def _always_won(run: Path) -> None:
    """Give every episode a reward of 2."""
    lines = (run / EPISODES).read_text(encoding="utf-8").splitlines()
    changed = [json.dumps(json.loads(line) | {"reward": 2.0}) for line in lines]
    (run / EPISODES).write_text("\n".join(changed) + "\n", encoding="utf-8")
