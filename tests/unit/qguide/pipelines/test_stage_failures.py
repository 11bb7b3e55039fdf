"""Failures of a job are counted in its metrics, from where its last start began to write."""

from pathlib import Path

from qguide.pipelines.runner import end_of_metrics
from qguide.pipelines.stage_process import FailedTask, failures_since

FIRST = '{"task_id": "a", "nodes": 3}\n{"task_id": "b", "error": "gone"}\n'
SECOND = '{"task_id": "b", "error": "gone"}\n{"summary": {"failures": 1}}\n[1]\n'


def test_only_failures_of_the_last_start_count(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert (end_of_metrics(tmp_path), failures_since(tmp_path, 0)) == (0, [])
    metrics.write_text(FIRST + '{"task_')
    start = end_of_metrics(tmp_path)
    assert failures_since(tmp_path, 0) == [FailedTask("b: gone")]
    metrics.write_text(FIRST + SECOND)
    assert failures_since(tmp_path, start) == [FailedTask("b: gone")]
    assert len(failures_since(tmp_path, 0)) == 2
