"""Sessions grow for a moment, and every broken promise is seen."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.commands.app import app
from benchmarks.measurement.records import SoakRun
from benchmarks.soak.report import plot_soak
from benchmarks.soak.soak import Soak, resident_bytes, run_soak
from qguide.qnet.errors import ConfigError
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.sliced_scorer import CacheUse
from qguide.qnet.types import ScoreRequest, ScoreResult
from tests.support.tiny_models import CONTEXT, q_model, save_policy, save_qnet

ONE_SLAB = 150_000
SOAK = Soak(output=Path("soak.json"), sessions=6, minutes=10, cache_mib=4 * ONE_SLAB / 2**20, batch=4, check_share=0.2)
TICK_S = 5.0
"""Seconds between two looks at the clock: a run of ten minutes makes some sixty calls."""


@pytest.fixture(scope="module")
def run() -> SoakRun:
    fast = SharedPrefixScorer(q_model(), cache_bytes=SOAK.budget_bytes)
    return soaked(SOAK, fast)


def soaked(soak: Soak, tried: Any) -> SoakRun:
    loaded = q_model()
    ticks = count()
    return run_soak(
        soak, tried, NaiveScorer(loaded), loaded.renderer, context=CONTEXT, clock=lambda: TICK_S * next(ticks)
    )


def test_the_budget_is_kept_and_q_is_right(run: SoakRun) -> None:
    assert run.passed
    assert 0 < run.largest_cache_bytes <= SOAK.budget_bytes
    assert run.checks > 0
    assert run.requests == run.calls * SOAK.batch
    assert run.evictions > 0
    assert run.cached_tokens > 0


def test_samples_follow_each_other_and_tell_the_memory(run: SoakRun, tmp_path: Path) -> None:
    times = [sample.at_s for sample in run.samples]
    assert times == sorted(times)
    assert all(sample.rss_bytes and sample.rss_bytes > 10**7 for sample in run.samples)
    plot_soak(run, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_growth_is_the_last_quarter_over_the_second(run: SoakRun) -> None:
    grown = [run.samples[0].model_copy(update={"rss_bytes": n}) for n in (90, 9, 10, 20, 21, 22, 33, 30)]
    assert run.model_copy(update={"samples": tuple(grown)}).rss_growth_bytes == 33 - 20
    assert run.model_copy(update={"samples": tuple(grown[:3])}).rss_growth_bytes is None


def test_a_cache_over_its_budget_is_counted() -> None:
    fast = SharedPrefixScorer(q_model(), cache_bytes=4 * ONE_SLAB)
    run = soaked(SOAK.model_copy(update={"minutes": 2, "cache_mib": 1000 / 2**20}), fast)
    assert run.calls_over_budget == run.calls > 0
    assert not run.passed


class Wrong:
    """Adds what is no rounding to every Q."""

    def __init__(self, error: float) -> None:
        self._fast = SharedPrefixScorer(q_model(), cache_bytes=SOAK.budget_bytes)
        self._error = error

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [
            replace(result, q_values=tuple(q + self._error for q in result.q_values))
            for result in self._fast.score(requests)
        ]

    @property
    def cache(self) -> CacheUse:
        return self._fast.cache


@pytest.mark.parametrize("error", [0.01, float("nan")])
def test_a_q_that_is_wrong_is_counted(error: float) -> None:
    run = soaked(SOAK.model_copy(update={"minutes": 2}), Wrong(error))
    assert run.failed_checks == run.checks > 0
    assert not run.passed


class Noting(Wrong):
    """Q as it is, and what was asked."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.asked: list[ScoreRequest] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        self.asked += requests
        return super().score(requests)


def test_no_request_repeats_a_candidate_because_a_server_would_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.soak.soak._WORDS", ("go",))  # 13 candidates are possible
    noting = Noting()
    soaked(SOAK.model_copy(update={"minutes": 1}), noting)
    assert noting.asked
    assert all(len(set(request.candidates)) == SOAK.candidates for request in noting.asked)


def test_the_command_prints_writes_and_draws(tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy"))
    command = ["soak", "--q-model", str(checkpoint), "--minutes", "0.01"]
    command += ["--sessions", "3", "--cache-mib", "1", "--output", str(tmp_path / "soak.json")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "calls over the budget" in done.output
    run = SoakRun.model_validate_json((tmp_path / "soak.json").read_text())
    assert run.sessions == 3
    assert (tmp_path / "soak.png").is_file()


def test_a_broken_promise_ends_the_command_with_1(tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qguide.qnet.scoring.build.SharedPrefixScorer", lambda *_, **__: Closable(0.01))
        command = ["soak", "--q-model", str(checkpoint), "--minutes", "0.001"]
        done = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "soak.json")])
    assert done.exit_code == 1, done.output


class Closable(Wrong):
    def close(self) -> None:
        """There is nothing to let go of."""


def test_a_server_that_is_not_there_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy"))
    command = ["soak", "--q-model", str(checkpoint), "--url", "http://127.0.0.1:9"]
    done = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "soak.json")])
    assert done.exit_code == 2
    assert "cannot be reached" in " ".join(done.output.split())


def test_memory_of_no_process_is_refused_with_a_remedy() -> None:
    assert resident_bytes(os.getpid()) > 10**7
    with pytest.raises(ConfigError, match="--pid"):
        resident_bytes(2**30)
