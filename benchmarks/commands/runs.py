"""Benchmarks run with a progress bar, then reported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from benchmarks.episodes.episodes import EpisodesBench
    from benchmarks.fairness.fairness import FairnessBench
    from benchmarks.gpu.config import GpuCheck
    from benchmarks.hybrids.hybrids import HybridsBench
    from benchmarks.learning.curve import CurveBench
    from benchmarks.learning.latency import LatencyBench
    from benchmarks.read_ahead.read_ahead import ReadAheadBench
    from benchmarks.rollouts.rollouts import RolloutsBench
    from benchmarks.rows.rows import RowsBench
    from benchmarks.scale.config import ScaleBench
    from benchmarks.score.config import ScoreBench
    from benchmarks.serve.load_test import ServeBench
    from benchmarks.soak.soak import Soak


def run_score(config: "ScoreBench") -> None:
    """Measure scoring; write the plot."""
    from benchmarks.score.report import plot_run, print_run
    from benchmarks.score.run import count_turns, score_bench

    with _steps(count_turns(config)) as advance:
        run = score_bench(config, advance=advance)
    print_run(run, Console())
    plot_run(run, config.plot)


def run_gpu(config: "GpuCheck") -> bool:
    """Check a GPU; True if it passed."""
    from benchmarks.gpu.parts import parts_of
    from benchmarks.gpu.report import print_gpu
    from benchmarks.gpu.run import gpu_check

    with _steps(len(parts_of(config, config.output.parent))) as advance:
        run = gpu_check(config, advance=advance)
    print_gpu(run, Console())
    return run.passed


def run_soak(config: "Soak") -> bool:
    """Grow sessions; True if memory kept its budget and no Q differed."""
    from benchmarks.commands.soak import soak_and_report

    return soak_and_report(config, progress_bar)


def run_episodes(config: "EpisodesBench") -> None:
    """Measure the storing of steps."""
    from benchmarks.episodes.episodes import episodes_bench, print_episodes, stores_of

    with _steps(len(stores_of(config))) as advance:
        run = episodes_bench(config, advance=advance)
    print_episodes(run, Console())


def run_fairness(config: "FairnessBench") -> None:
    """Measure fairness between keys."""
    from benchmarks.fairness.fairness import fairness_bench, measurements, print_fairness

    with _steps(len(measurements(config))) as advance:
        run = fairness_bench(config, advance=advance)
    print_fairness(run, Console())


def run_read_ahead(config: "ReadAheadBench") -> None:
    """Measure reading ahead."""
    from benchmarks.read_ahead.read_ahead import print_read_ahead, read_ahead_bench

    with _steps(config.repeats + 1) as advance:
        run = read_ahead_bench(config, advance=advance)
    print_read_ahead(run, Console())


def run_learning_curve(config: "CurveBench") -> None:
    """Measure success over episodes; write the plot."""
    from benchmarks.learning.curve import curve_bench, plans_of
    from benchmarks.learning.report import plot_curve, print_curve

    with _steps(len(plans_of(config))) as advance:
        run = curve_bench(config, advance=advance)
    print_curve(run, Console())
    plot_curve(run, config.output.with_suffix(".png"))


def run_learning_latency(config: "LatencyBench") -> None:
    """Measure what learning adds to the latency of steps."""
    from benchmarks.learning.latency import PARTS, latency_bench
    from benchmarks.learning.report import print_latency

    with _steps(len(PARTS)) as advance:
        run = latency_bench(config, advance=advance)
    print_latency(run, Console())


def run_hybrids(config: "HybridsBench") -> None:
    """Measure hybrid trunks."""
    from benchmarks.hybrids.hybrids import hybrids_bench, print_hybrids

    with _steps(config.rounds * (2 + len(config.trunks))) as advance:
        run = hybrids_bench(config, advance=advance)
    print_hybrids(run, Console())


def run_rollouts(config: "RolloutsBench") -> None:
    """Measure episodes of a hosted policy."""
    from benchmarks.rollouts.rollouts import print_rollouts, rollouts_bench

    with _steps(len(config.parallel)) as advance:
        run = rollouts_bench(config, advance=advance)
    print_rollouts(run, Console())


def run_rows(config: "RowsBench") -> None:
    """Measure the jobs that read rows."""
    from benchmarks.rows.rows import print_rows, rows_bench

    with _steps(len(config.rows) * len(config.jobs)) as advance:
        run = rows_bench(config, advance=advance)
    print_rows(run, Console())


def run_scale(config: "ScaleBench") -> None:
    """Simulate many replicas; write the plot."""
    from benchmarks.scale.report import plot_scale, print_scale
    from benchmarks.scale.scale import scale_bench, sizes

    with _steps(1 + len(sizes(config))) as advance:
        run = scale_bench(config, advance=advance)
    print_scale(run, Console())
    plot_scale(run, config.plot)


def run_serve(config: "ServeBench") -> None:
    """Measure the server; write the plot."""
    from benchmarks.serve.load_test import count_loads, serve_bench
    from benchmarks.serve.report import plot_serve, print_serve

    with _steps(count_loads(config)) as advance:
        run = serve_bench(config, advance=advance)
    print_serve(run, Console())
    plot_serve(run, config.output.with_suffix(".png"))


@contextmanager
def _steps(count: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar; yields a function to call with a description before each step."""
    with progress_bar() as progress:
        steps = progress.add_task("", total=count)
        started = 0

        def advance(what: str) -> None:
            nonlocal started
            progress.update(steps, completed=started, description=what)
            progress.refresh()
            started += 1

        yield advance
        progress.update(steps, completed=started)
        progress.refresh()


def progress_bar() -> Progress:
    """A progress bar without a refresh thread, which would be measured too."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
    )
