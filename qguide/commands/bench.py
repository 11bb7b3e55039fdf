"""`qguide bench`: benchmarks of scoring, memory, the server, fairness, hosted rollouts, a GPU.

Cost of scoring, compared with baselines and a lower bound:

    qguide bench score --params 28m --points 512x2x32,1024x5x48 --dtype float32 \
        --peers naive,padded,dynamic-cache --sessions 1,16,64 --output score.json

Soak test: memory within its budget and Q correct while sessions grow:

    qguide bench soak --sessions 64 --minutes 10 --output soak.json

Load test of the whole server:

    qguide bench serve --models scripted,embedded --clients 1,16,64 --seconds 10 --output serve.json

Latency of one key under the load of another:

    qguide bench fairness --seconds 20 --output fairness.json

Episodes of a hosted policy, many at once and one at a time:

    qguide bench rollouts --parallel 1,64 --output rollouts.json

Check of a GPU: contract tests, training steps and scoring at 1 B and 7 B, in under eight minutes:

    qguide bench gpu --output gpu.json

Each writes JSON, and most write a plot beside it. Like every job they also read `--config FILE`
(TOML) and `--set field=value`.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qguide.commands.errors import shown_errors

if TYPE_CHECKING:
    from qguide.bench.fairness.fairness import FairnessBench
    from qguide.bench.gpu.config import GpuCheck
    from qguide.bench.rollouts.rollouts import RolloutsBench
    from qguide.bench.score.config import ScoreBench
    from qguide.bench.serve.load_test import ServeBench
    from qguide.bench.soak.soak import Soak
    from qnet.scoring.build import FastScorer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)

KEPT = "interrupted; the output holds the results so far (complete: false)"

Config = Annotated[Path | None, typer.Option(help="TOML file with these options.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="field=value; overrides the file.")
]
Output = Annotated[Path | None, typer.Option(help="JSON file; the plot is written beside it.")]
Dtype = Annotated[str | None, typer.Option(help="bfloat16 or float32.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="Number of torch threads.")]
Seed = Annotated[int | None, typer.Option(help="Random seed.")]
Candidates = Annotated[int | None, typer.Option(help="M.")]
WarmUp = Annotated[float | None, typer.Option(help="Seconds of warm-up, not measured.")]
Sizes = Annotated[
    str | None, typer.Option(help="tiny, 2m, 28m, 125m, 1b, 7b; several with commas.")
]
Points = Annotated[
    str | None,
    typer.Option(
        help="HISTORYxCANDIDATESxTOKENS, optionally with xALIKE, the tokens that all candidates "
        "begin with; several with commas."
    ),
]
Peers = Annotated[
    str | None,
    typer.Option(
        help="naive (always runs), match-features, naive-packed, padded, dynamic-cache, vllm, "
        "vllm-block32, http, vllm-http."
    ),
]


@app.callback()
def bench() -> None:
    """Run benchmarks of scoring, memory, the server, fairness, rollouts and a GPU here."""


@app.command()
def score(
    output: Output = None,
    params: Sizes = None,
    points: Points = None,
    dtype: Dtype = None,
    peers: Peers = None,
    sessions: Annotated[
        str | None, typer.Option(help="Concurrent sessions at the first point; '' for none.")
    ] = None,
    repetitions: Annotated[int | None, typer.Option(help="Measured repetitions.")] = None,
    warm_ups: Annotated[int | None, typer.Option(help="Repetitions before them.")] = None,
    seed: Seed = None,
    threads: Threads = None,
    device: Device = None,
    vllm_python: Annotated[
        str | None, typer.Option(envvar="QGUIDE_VLLM_PYTHON", help="A Python that has vLLM.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure the time to score a step with a warm cache, against baselines and a lower bound."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.score.config import ScoreBench
        from training.configs.job_files import load_config

        _score(load_config(ScoreBench, config, overrides or (), options=options))


@app.command()
def soak(
    output: Output = None,
    sessions: Annotated[int | None, typer.Option(help="Concurrent conversations.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Duration.")] = None,
    q_model: Annotated[str | None, typer.Option(help="embedded, or a checkpoint folder.")] = None,
    cache_mib: Annotated[float | None, typer.Option(help="Budget of the cache.")] = None,
    url: Annotated[
        str | None,
        typer.Option(help="A server with this Q model; without it, this process scores."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="Process id of the server, to measure its memory.")
    ] = None,
    candidates: Candidates = None,
    batch: Annotated[int | None, typer.Option(help="Sessions scored in one call.")] = None,
    check_share: Annotated[
        float | None, typer.Option(help="Share of calls after which the Q of one is checked.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Grow sessions for minutes; fails if memory exceeds its budget or Q differs."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.soak.soak import Soak
        from training.configs.job_files import load_config

        passed = _soak(load_config(Soak, config, overrides or (), options=options))
    if not passed:
        raise typer.Exit(1)


@app.command()
def serve(
    output: Output = None,
    models: Annotated[
        str | None, typer.Option(help="scripted, embedded; one server is started for each.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A running server without keys to measure instead.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(help="Concurrent clients; several numbers with commas.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration of each load.")] = None,
    warm_up_s: WarmUp = None,
    candidates: Candidates = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure throughput, latency and overhead of /v1/act and /v1/score over HTTP."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.serve.load_test import ServeBench
        from training.configs.job_files import load_config

        _serve(load_config(ServeBench, config, overrides or (), options=options))


@app.command()
def fairness(
    output: Output = None,
    seconds: Annotated[float | None, typer.Option(help="Duration of each scene.")] = None,
    warm_up_s: WarmUp = None,
    clients: Annotated[int | None, typer.Option(help="Clients of the other key.")] = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure the latency of one key's scores, alone and under the load of another key."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.fairness.fairness import FairnessBench
        from training.configs.job_files import load_config

        _fairness(load_config(FairnessBench, config, overrides or (), options=options))


@app.command()
def gpu(
    output: Output = None,
    device: Device = None,
    small: Annotated[
        bool | None, typer.Option("--small", help="Tiny shapes, to try the check on a CPU.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Limit of the whole check.")] = None,
    patience: Annotated[
        float | None, typer.Option(help="Factor of the parts' own limits, for slower machines.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Check a GPU: contract tests, training steps and scoring at 1 B and 7 B."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.gpu.config import GpuCheck
        from training.configs.job_files import load_config

        passed = _gpu(load_config(GpuCheck, config, overrides or (), options=options))
    if not passed:
        raise typer.Exit(1)


@app.command()
def rollouts(
    output: Output = None,
    parallel: Annotated[
        str | None, typer.Option(help="Episodes at once; several numbers with commas.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes for each number.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of an episode.")] = None,
    delay_s: Annotated[float | None, typer.Option(help="Time of every answer.")] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Measure how much faster episodes of a hosted policy are at once than one at a time."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.rollouts.rollouts import RolloutsBench
        from training.configs.job_files import load_config

        _rollouts(load_config(RolloutsBench, config, overrides or (), options=options))


def _shown_errors() -> AbstractContextManager[None]:
    """Print errors with status 2, because status 1 means a failed soak test or check."""
    return shown_errors(other_status=2, interrupted=KEPT)


def _options(given: dict[str, object]) -> dict[str, object]:
    """The options of a command by field name, and its command line."""
    options = {name: given[name] for name in given if name not in ("config", "overrides")}
    return options | {"command": shlex.join(["qguide", *sys.argv[1:]])}


def _soak(plan: "Soak") -> bool:
    """Run and report a soak test; True if it passed."""
    import torch

    from qguide.bench.measurement.options import DTYPES, q_model_folder
    from qguide.bench.soak.http_scorer import HttpScorer
    from qguide.bench.soak.report import plot_soak, print_soak
    from qguide.bench.soak.soak import run_soak
    from qnet.models.checkpoint import load_q_model
    from qnet.scoring.build import build_naive_scorer, build_shared_prefix_scorer

    torch.set_num_threads(plan.threads)
    # Loaded twice, so that the scorer under test cannot affect the reference.
    folder, dtype = q_model_folder(plan.q_model), DTYPES[plan.dtype]
    loaded, other = (load_q_model(folder, dtype=dtype, device=plan.device) for _ in "12")
    reference = build_naive_scorer(loaded)
    tested: HttpScorer | FastScorer
    if plan.url:
        tested = HttpScorer(plan.url, connections=plan.batch)
    else:
        tested = build_shared_prefix_scorer(other, cache_bytes=plan.budget_bytes)
    with closing(tested), _progress() as progress:
        time = progress.add_task("seconds", total=round(plan.seconds))

        def show(elapsed_s: float) -> None:
            progress.update(time, completed=int(elapsed_s))
            progress.refresh()

        run = run_soak(
            plan, tested, reference, loaded.renderer, context=reference.context, on_progress=show
        )
    plan.output.write_text(run.model_dump_json(indent=1) + "\n")
    print_soak(run, Console())
    plot_soak(run, plan.output.with_suffix(".png"))
    return run.passed


def _score(config: "ScoreBench") -> None:
    from qguide.bench.score.report import plot_run, print_run
    from qguide.bench.score.run import count_turns, score_bench

    with _steps(count_turns(config)) as advance:
        run = score_bench(config, advance=advance)
    print_run(run, Console())
    plot_run(run, config.plot)


def _gpu(config: "GpuCheck") -> bool:
    """Run and report a check of a GPU; True if it passed."""
    from qguide.bench.gpu.parts import parts_of
    from qguide.bench.gpu.report import print_gpu
    from qguide.bench.gpu.run import gpu_check

    with _steps(len(parts_of(config, config.output.parent))) as advance:
        run = gpu_check(config, advance=advance)
    print_gpu(run, Console())
    return run.passed


def _fairness(config: "FairnessBench") -> None:
    from qguide.bench.fairness.fairness import fairness_bench, scenes
    from qguide.bench.fairness.report import print_fairness

    with _steps(len(scenes())) as advance:
        run = fairness_bench(config, advance=advance)
    print_fairness(run, Console())


def _rollouts(config: "RolloutsBench") -> None:
    from qguide.bench.rollouts.report import print_rollouts
    from qguide.bench.rollouts.rollouts import rollouts_bench

    with _steps(len(config.parallel)) as advance:
        run = rollouts_bench(config, advance=advance)
    print_rollouts(run, Console())


def _serve(config: "ServeBench") -> None:
    from qguide.bench.serve.load_test import count_loads, serve_bench
    from qguide.bench.serve.report import plot_serve, print_serve

    with _steps(count_loads(config)) as advance:
        run = serve_bench(config, advance=advance)
    print_serve(run, Console())
    plot_serve(run, config.output.with_suffix(".png"))


@contextmanager
def _steps(count: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar; yields a function to call with a description before each step."""
    with _progress() as progress:
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


def _progress() -> Progress:
    """A progress bar without a refresh thread, which would be measured too."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
    )


if __name__ == "__main__":
    app()
