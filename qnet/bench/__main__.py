"""`qguide bench score`: what scoring costs, against its peers and the floor.

    qguide bench score --params 28m --points 512x2x32,1024x5x48 --dtype float32 \
        --peers naive,padded,dynamic-cache --sessions 1,16,64 --output score.json

writes every sample to score.json and a picture to score.png.

    qguide bench soak --sessions 64 --minutes 10 --output soak.json

`qguide bench soak`: whether memory keeps to its budget while sessions grow, and Q stays right.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qnet.errors import CheckpointError, ConfigError, ScorerUnavailableError

if TYPE_CHECKING:
    from qnet.bench.config import ScoreBench
    from qnet.bench.soak import Soak
    from qnet.implicit_scoring import SharedPrefixImplicitScorer
    from qnet.scoring import SharedPrefixScorer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)

INTERRUPTED = 130


@app.callback()
def bench() -> None:
    """Measure what this machine makes of it."""


@app.command()
def score(
    output: Annotated[Path, typer.Option(help="JSON file; the picture goes beside it.")],
    params: Annotated[str, typer.Option(help="tiny, 28m, 125m, 1b, 7b; several with commas.")] = (
        "28m"
    ),
    points: Annotated[
        str, typer.Option(help="HISTORYxCANDIDATESxTOKENS; several with commas.")
    ] = "512x2x32,1024x5x48,2048x5x48,3500x8x64",
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    peers: Annotated[
        str,
        typer.Option(
            help="naive (always runs), naive-packed, padded, dynamic-cache, vllm, vllm-block32, "
            "http, vllm-http."
        ),
    ] = "naive,naive-packed,padded,dynamic-cache",
    sessions: Annotated[
        str, typer.Option(help="Sessions in one call, at the first point; '' for none.")
    ] = "1,16,64",
    repetitions: Annotated[int, typer.Option(min=1, help="Turns that count.")] = 5,
    warm_ups: Annotated[int, typer.Option(min=0, help="Turns before them.")] = 1,
    seed: Annotated[int, typer.Option(help="Draws weights and tokens.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Of torch.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    vllm_python: Annotated[
        str, typer.Option(envvar="QGUIDE_VLLM_PYTHON", help="A Python that has vLLM.")
    ] = "",
) -> None:
    """Time of a warm step: ours, its peers, and the floor."""
    with _errors_without_traceback():
        from qnet.bench import config

        names = config.parse_peers(peers)
        _run(
            config.ScoreBench(
                models=config.parse_models(params),
                points=config.parse_points(points),
                names=names,
                sessions=config.parse_sessions(sessions),
                dtype=config.require_dtype(dtype),
                output=config.require_output(output),
                repetitions=repetitions,
                warm_ups=warm_ups,
                seed=seed,
                threads=threads,
                device=config.require_device(device),
                vllm_python=config.require_vllm_python(vllm_python, names),
                command=shlex.join(["qguide", *sys.argv[1:]]),
            )
        )


@app.command()
def soak(
    output: Annotated[Path, typer.Option(help="JSON file; the picture goes beside it.")],
    sessions: Annotated[int, typer.Option(min=1, help="Conversations at once.")] = 64,
    minutes: Annotated[float, typer.Option(min=0.0, help="How long.")] = 10.0,
    q_model: Annotated[str, typer.Option(help="embedded, or a checkpoint folder.")] = "embedded",
    cache_mib: Annotated[int, typer.Option(min=0, help="The cache's budget.")] = 512,
    url: Annotated[
        str, typer.Option(help="A server that serves the Q model; '' scores in this process.")
    ] = "",
    pid: Annotated[int, typer.Option(min=0, help="The server's process, for its memory.")] = 0,
    candidates: Annotated[int, typer.Option(min=1, help="Of each step.")] = 5,
    batch: Annotated[int, typer.Option(min=1, help="Sessions in one call.")] = 16,
    check_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Calls after which one Q is checked.")
    ] = 0.02,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Of torch.")] = 1,
    seed: Annotated[int, typer.Option(help="Draws what is said.")] = 0,
) -> None:
    """Sessions that grow: memory within its budget, Q equal to the reference's."""
    with _errors_without_traceback():
        from qnet.bench import config
        from qnet.bench.soak import Soak

        plan = Soak(
            sessions=sessions,
            seconds=60 * minutes,
            budget_bytes=cache_mib * 1024**2,
            candidates=candidates,
            batch=batch,
            check_share=check_share,
            seed=seed,
            dtype=config.require_dtype(dtype),
            pid=pid if url else os.getpid(),
            command=shlex.join(["qguide", *sys.argv[1:]]),
        )
        kept = _soak(
            plan,
            config.find_q_model(q_model),
            config.require_output(output),
            url=url,
            device=config.require_device(device),
            threads=threads,
        )
    if not kept:
        raise typer.Exit(1)


def _soak(
    plan: "Soak", q_model: Path, output: Path, *, url: str, device: str, threads: int
) -> bool:
    """Whether every promise was kept."""
    import torch

    from qnet.bench.config import DTYPES
    from qnet.bench.soak import run_soak
    from qnet.bench.soak_report import plot_soak, print_soak
    from qnet.bench.soaked import Served
    from qnet.checkpoint import load_q_model
    from qnet.scorers import build_naive_scorer, build_shared_prefix_scorer

    torch.set_num_threads(threads)
    # Loaded twice, so that what is tried cannot disturb what it is compared with.
    loaded, other = (load_q_model(q_model, dtype=DTYPES[plan.dtype], device=device) for _ in "12")
    reference = build_naive_scorer(loaded)
    tried: Served | SharedPrefixScorer | SharedPrefixImplicitScorer
    if url:
        tried = Served(url, connections=plan.batch)
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
    output.write_text(run.model_dump_json(indent=1) + "\n")
    print_soak(run, Console())
    plot_soak(run, output.with_suffix(".png"))
    return run.kept_its_promises


def _run(config: "ScoreBench") -> None:
    from qnet.bench.report import plot_run, print_run
    from qnet.bench.run import count_turns, score_bench

    with _progress() as progress:
        turns = progress.add_task("", total=count_turns(config))
        started = 0

        def advance(what: str) -> None:
            nonlocal started
            progress.update(turns, completed=started, description=what)
            progress.refresh()
            started += 1

        run = score_bench(config, advance=advance)
        progress.update(turns, completed=started)
        progress.refresh()
    print_run(run, Console())
    plot_run(run, config.plot)


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


@contextmanager
def _errors_without_traceback() -> Iterator[None]:
    try:
        yield
    except (CheckpointError, ConfigError, ScorerUnavailableError) as error:
        _exit(str(error), 2)
    except KeyboardInterrupt:
        _exit("interrupted; the output holds what was measured (complete: false)", INTERRUPTED)


def _exit(message: str, status: int) -> NoReturn:
    Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", highlight=False)
    raise typer.Exit(status)


if __name__ == "__main__":
    app()
