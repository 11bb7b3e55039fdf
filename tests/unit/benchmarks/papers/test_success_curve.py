"""Evaluations that differ only in M become one curve."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.papers.success_curve import run_success_curve
from qguide.qnet.errors import ConfigError, RecordError
from tests.unit.training.jobs.test_evaluate import evaluate

QUIET = Console(quiet=True)


def test_a_curve_holds_each_method_at_each_m_in_the_order_of_tokens(tmp_path: Path) -> None:
    for m in (4, 2):
        evaluate(tmp_path / str(m), candidates=m, seeds=(0,), methods=("sample", "q-guided"))
    curves = run_success_curve([tmp_path / "4", tmp_path / "2"], tmp_path / "curve.png", console=QUIET)
    assert list(curves) == ["sample", "q-guided"]
    guided = curves["q-guided"]
    tokens = [point.summary.completion_tokens_per_episode for point in guided]
    assert tokens == sorted(tokens)
    assert {point.candidates for point in guided} == {2, 4}
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_evaluations_of_different_tasks_make_no_curve(tmp_path: Path) -> None:
    evaluate(tmp_path / "a", seeds=(0,), methods=("sample",))
    evaluate(tmp_path / "b", seeds=(0,), methods=("sample",), tasks=4)
    with pytest.raises(ConfigError, match=r"environment = .*'count': 4"):
        run_success_curve([tmp_path / "a", tmp_path / "b"], tmp_path / "c.png", console=QUIET)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"results\.json .*`qguide evaluate`"):
        run_success_curve([tmp_path], tmp_path / "c.png", console=QUIET)
