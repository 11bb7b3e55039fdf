"""`qguide bench`: what this machine makes of it.

    qguide bench score --params 28m --points 512x2x32,1024x5x48 --dtype float32 \
        --peers naive,padded,dynamic-cache --sessions 1,16,64 --output score.json

what scoring costs, against its peers and the floor;

    qguide bench soak --sessions 64 --minutes 10 --output soak.json

whether memory keeps to its budget while sessions grow, and Q stays right;

    qguide bench serve --models scripted,embedded --clients 1,16,64 --seconds 10 --output serve.json

how fast the whole server answers;

    qguide bench fairness --seconds 20 --output fairness.json

how long one key waits beside the load of another. Each writes JSON, and most a plot beside it. Like
every job they also read `--config FILE` (TOML) and `--set field=value`.
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
    from qguide.bench.score.config import ScoreBench
    from qguide.bench.serve.load_test import ServeBench
    from qguide.bench.soak.soak import Soak
    from qnet.scoring.implicit_q import SharedPrefixImplicitScorer
    from qnet.scoring.value_head import SharedPrefixScorer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)

KEPT = "interrupted; the output holds what was measured (complete: false)"

Config = Annotated[Path | None, typer.Option(help="TOML file with these options.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="field=value; wins over the file.")
]
Output = Annotated[Path | None, typer.Option(help="JSON file; the plot goes beside it.")]
Dtype = Annotated[str | None, typer.Option(help="bfloat16 or float32.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="Of torch.")]
Seed = Annotated[int | None, typer.Option(help="Draws whatever is drawn.")]
Candidates = Annotated[int | None, typer.Option(help="M.")]


@app.callback()
def bench() -> None:
    """Measure what this machine makes of it."""


@app.command()
def score(
    output: Output = None,
    params: Annotated[
        str | None, typer.Option(help="tiny, 28m, 125m, 1b, 7b; several with commas.")
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            help="HISTORYxCANDIDATESxTOKENS, or with xALIKE for the tokens that all candidates "
            "begin with; several with commas."
        ),
    ] = None,
    dtype: Dtype = None,
    peers: Annotated[
        str | None,
        typer.Option(
            help="naive (always runs), naive-packed, padded, dynamic-cache, vllm, vllm-block32, "
            "http, vllm-http."
        ),
    ] = None,
    sessions: Annotated[
        str | None, typer.Option(help="Sessions at once, at the first point; '' for none.")
    ] = None,
    repetitions: Annotated[int | None, typer.Option(help="Turns that count.")] = None,
    warm_ups: Annotated[int | None, typer.Option(help="Turns before them.")] = None,
    seed: Seed = None,
    threads: Threads = None,
    device: Device = None,
    vllm_python: Annotated[
        str | None, typer.Option(envvar="QGUIDE_VLLM_PYTHON", help="A Python that has vLLM.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Time of a warm step: ours, its peers, and the floor."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.score.config import ScoreBench
        from training.configs.job_files import load_config

        _score(load_config(ScoreBench, config, overrides or (), options=options))


@app.command()
def soak(
    output: Output = None,
    sessions: Annotated[int | None, typer.Option(help="Conversations at once.")] = None,
    minutes: Annotated[float | None, typer.Option(help="How long.")] = None,
    q_model: Annotated[str | None, typer.Option(help="embedded, or a checkpoint folder.")] = None,
    cache_mib: Annotated[float | None, typer.Option(help="The cache's budget.")] = None,
    url: Annotated[
        str | None,
        typer.Option(help="A server that serves the Q model; without it, this process scores."),
    ] = None,
    pid: Annotated[int | None, typer.Option(help="The server's process, for its memory.")] = None,
    candidates: Candidates = None,
    batch: Annotated[int | None, typer.Option(help="Sessions in one call.")] = None,
    check_share: Annotated[
        float | None, typer.Option(help="Share of calls after which one Q is checked.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Sessions that grow: memory within its budget, Q equal to the reference's."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.soak.soak import Soak
        from training.configs.job_files import load_config

        kept = _soak(load_config(Soak, config, overrides or (), options=options))
    if not kept:
        raise typer.Exit(1)


@app.command()
def serve(
    output: Output = None,
    models: Annotated[
        str | None, typer.Option(help="scripted, embedded: a server is started with each.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A server without keys to ask in place of those.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(help="How many at once; several with commas.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Of each number of clients.")] = None,
    warm_up_s: Annotated[
        float | None, typer.Option(help="Seconds before those that count.")
    ] = None,
    candidates: Candidates = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Rate and latency of /v1/act and /v1/score over HTTP, and the server's own part of it."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.serve.load_test import ServeBench
        from training.configs.job_files import load_config

        _serve(load_config(ServeBench, config, overrides or (), options=options))


@app.command()
def fairness(
    output: Output = None,
    seconds: Annotated[float | None, typer.Option(help="Of each scene.")] = None,
    warm_up_s: Annotated[
        float | None, typer.Option(help="Seconds before those that count.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Of the other key.")] = None,
    threads: Threads = None,
    seed: Seed = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Waits of one key for its scores, alone and beside the load of another key."""
    options = _options(locals())
    with _shown_errors():
        from qguide.bench.fairness.fairness import FairnessBench
        from training.configs.job_files import load_config

        _fairness(load_config(FairnessBench, config, overrides or (), options=options))


def _shown_errors() -> AbstractContextManager[None]:
    """As for every command, but 1 is the status of a promise that was not kept."""
    return shown_errors(other_status=2, interrupted=KEPT)


def _options(given: dict[str, object]) -> dict[str, object]:
    """A command's options by their fields' names, and the command as it was typed."""
    options = {name: given[name] for name in given if name not in ("config", "overrides")}
    return options | {"command": shlex.join(["qguide", *sys.argv[1:]])}


def _soak(plan: "Soak") -> bool:
    """True if every promise was kept."""
    import torch

    from qguide.bench.measurement.options import DTYPES, q_model_folder
    from qguide.bench.soak.http_scorer import Served
    from qguide.bench.soak.report import plot_soak, print_soak
    from qguide.bench.soak.soak import run_soak
    from qnet.models.checkpoint import load_q_model
    from qnet.scoring.build import build_naive_scorer, build_shared_prefix_scorer

    torch.set_num_threads(plan.threads)
    # Loaded twice, so that what is tried cannot disturb what it is compared with.
    folder, dtype = q_model_folder(plan.q_model), DTYPES[plan.dtype]
    loaded, other = (load_q_model(folder, dtype=dtype, device=plan.device) for _ in "12")
    reference = build_naive_scorer(loaded)
    tried: Served | SharedPrefixScorer | SharedPrefixImplicitScorer
    if plan.url:
        tried = Served(plan.url, connections=plan.batch)
    else:
        tried = build_shared_prefix_scorer(other, cache_bytes=plan.budget_bytes)
    with closing(tried), _progress() as progress:
        time = progress.add_task("seconds", total=round(plan.seconds))

        def advance(elapsed_s: float) -> None:
            progress.update(time, completed=int(elapsed_s))
            progress.refresh()

        run = run_soak(
            plan, tried, reference, loaded.renderer, context=reference.context, advance=advance
        )
    plan.output.write_text(run.model_dump_json(indent=1) + "\n")
    print_soak(run, Console())
    plot_soak(run, plan.output.with_suffix(".png"))
    return run.kept_its_promises


def _score(config: "ScoreBench") -> None:
    from qguide.bench.score.report import plot_run, print_run
    from qguide.bench.score.run import count_turns, score_bench

    with _steps(count_turns(config)) as advance:
        run = score_bench(config, advance=advance)
    print_run(run, Console())
    plot_run(run, config.plot)


def _fairness(config: "FairnessBench") -> None:
    from qguide.bench.fairness.fairness import fairness_bench, scenes
    from qguide.bench.fairness.report import print_fairness

    with _steps(len(scenes())) as advance:
        run = fairness_bench(config, advance=advance)
    print_fairness(run, Console())


def _serve(config: "ServeBench") -> None:
    from qguide.bench.serve.load_test import count_loads, serve_bench
    from qguide.bench.serve.report import plot_serve, print_serve

    with _steps(count_loads(config)) as advance:
        run = serve_bench(config, advance=advance)
    print_serve(run, Console())
    plot_serve(run, config.output.with_suffix(".png"))


@contextmanager
def _steps(count: int) -> Iterator[Callable[[str], None]]:
    """A bar; what it yields is called before each step, with what the step is."""
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
    """A bar that is drawn between turns alone: a thread of its own would be measured too."""
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
