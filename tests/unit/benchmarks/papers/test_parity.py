"""Parity finds agreement where there is some, and each difference where there is not."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.papers.parity import Agreement, ParityReport, run_parity
from qguide.training.environments.alfworld.engines import python as engine


def parity(games: Path, episodes: int, max_steps: int) -> tuple[ParityReport, str]:
    """A short run and what it printed."""
    console = Console(file=StringIO(), width=120)
    report = run_parity(games, episodes=episodes, seed=1, max_steps=max_steps, console=console)
    assert isinstance(console.file, StringIO)
    return report, console.file.getvalue()


@pytest.mark.usefixtures("textworld_installed")
def test_the_engines_agree(games_dir: Path) -> None:
    report, printed = parity(games_dir, 4, 30)
    assert report.mismatches == []
    assert report.exit_status == 0
    assert (report.episodes, report.won_flags.total) == (4, report.steps + 4)
    assert report.won == 2  # every other walk is the expert's
    assert "admissible sets" in printed


@pytest.mark.usefixtures("textworld_installed")
def test_a_difference_is_printed_and_fails_the_run(generated_games_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_listing", lambda names: "many things")
    report, printed = parity(generated_games_dir, 1, 5)
    assert report.exit_status == 1
    assert report.admissible_sets.rate == 1.0
    assert "many things" in printed
    assert "after '(reset)': observation" in printed


def test_a_report_passes_only_at_the_required_rates() -> None:
    perfect = Agreement(1000, 1000)
    assert ParityReport(Agreement(995, 1000), perfect, perfect).passed
    assert not ParityReport(Agreement(994, 1000), perfect, perfect).passed
    assert not ParityReport(perfect, Agreement(999, 1000), perfect).passed
    assert not ParityReport(perfect, perfect, Agreement(999, 1000)).passed
    assert not ParityReport().passed
