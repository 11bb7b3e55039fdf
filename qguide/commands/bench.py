"""`qguide bench`: what this machine makes of it.

    qguide bench score --params 28m --points 512x2x32,1024x5x48 --dtype float32 \
        --peers naive,padded,dynamic-cache --sessions 1,16,64 --output score.json

what scoring costs, against its peers and the floor;

    qguide bench soak --sessions 64 --minutes 10 --output soak.json

whether memory keeps to its budget while sessions grow, and Q stays right;

    qguide bench serve --models scripted,embedded --clients 1,16,64 --seconds 10 --output serve.json

how fast the whole server answers. Each writes JSON, and a picture beside it.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qnet.errors import CheckpointError, ConfigError, ScorerUnavailableError

if TYPE_CHECKING:
    from qguide.bench.score.config import ScoreBench
    from qguide.bench.serve.load_test import ServeBench
    from qguide.bench.soak.soak import Soak
    from qnet.scoring.implicit_q import SharedPrefixImplicitScorer
    from qnet.scoring.value_head import SharedPrefixScorer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)

INTERRUPTED = 130

Output = Annotated[Path, typer.Option(help="JSON file; the picture goes beside it.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int, typer.Option(min=1, help="Of torch.")]
Seed = Annotated[int, typer.Option(help="Draws whatever is drawn.")]
Params = Annotated[str, typer.Option(help="tiny, 28m, 125m, 1b, 7b; several with commas.")]
Points = Annotated[
    str,
    typer.Option(
        help="HISTORYxCANDIDATESxTOKENS, or with xALIKE for what all candidates begin with; "
        "several with commas."
    ),
]
Peers = Annotated[
    str,
    typer.Option(
        help="naive (always runs), naive-packed, padded, dynamic-cache, vllm, vllm-block32, "
        "http, vllm-http."
    ),
]
Sessions = Annotated[str, typer.Option(help="Sessions at once, at the first point; '' for none.")]
Repetitions = Annotated[int, typer.Option(min=1, help="Turns that count.")]
WarmUps = Annotated[int, typer.Option(min=0, help="Turns before them.")]
VllmPython = Annotated[
    str, typer.Option(envvar="QGUIDE_VLLM_PYTHON", help="A Python that has vLLM.")
]
Conversations = Annotated[int, typer.Option(min=1, help="Conversations at once.")]
Minutes = Annotated[float, typer.Option(min=0.0, help="How long.")]
QModel = Annotated[str, typer.Option(help="embedded, or a checkpoint folder.")]
CacheMib = Annotated[int, typer.Option(min=0, help="The cache's budget.")]
ScoringUrl = Annotated[
    str, typer.Option(help="A server that serves the Q model; '' scores in this process.")
]
Pid = Annotated[int, typer.Option(min=0, help="The server's process, for its memory.")]
Candidates = Annotated[int, typer.Option(min=1, help="Of each step.")]
Batch = Annotated[int, typer.Option(min=1, help="Sessions in one call.")]
CheckShare = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Calls after which one Q is checked.")
]
Models = Annotated[str, typer.Option(help="scripted, embedded: a server is started with each.")]
Url = Annotated[str, typer.Option(help="A server without keys to ask in place of those.")]
Clients = Annotated[str, typer.Option(help="How many at once; several with commas.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Of each number of clients.")]
WarmUpS = Annotated[float, typer.Option(min=0.0, help="Seconds before those that count.")]


@app.callback()
def bench() -> None:
    """Measure what this machine makes of it."""


@app.command()
def score(
    output: Output,
    params: Params = "28m",
    points: Points = "512x2x32,1024x5x48,2048x5x48,3500x8x64",
    dtype: Dtype = "bfloat16",
    peers: Peers = "naive,naive-packed,padded,dynamic-cache",
    sessions: Sessions = "1,16,64",
    repetitions: Repetitions = 5,
    warm_ups: WarmUps = 1,
    seed: Seed = 0,
    threads: Threads = 1,
    device: Device = "cpu",
    vllm_python: VllmPython = "",
) -> None:
    """Time of a warm step: ours, its peers, and the floor."""
    with _errors_without_traceback():
        from qguide.bench.score import config

        names = config.parse_peers(peers)
        _score(
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
                command=_command(),
            )
        )


@app.command()
def soak(
    output: Output,
    sessions: Conversations = 64,
    minutes: Minutes = 10.0,
    q_model: QModel = "embedded",
    cache_mib: CacheMib = 512,
    url: ScoringUrl = "",
    pid: Pid = 0,
    candidates: Candidates = 5,
    batch: Batch = 16,
    check_share: CheckShare = 0.02,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = 1,
    seed: Seed = 0,
) -> None:
    """Sessions that grow: memory within its budget, Q equal to the reference's."""
    with _errors_without_traceback():
        from qguide.bench.score import config
        from qguide.bench.soak.soak import Soak

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
            command=_command(),
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


@app.command()
def serve(
    output: Output,
    models: Models = "scripted,embedded",
    url: Url = "",
    clients: Clients = "1,16,64",
    seconds: Seconds = 10.0,
    warm_up_s: WarmUpS = 2.0,
    candidates: Candidates = 5,
    threads: Threads = 1,
    seed: Seed = 0,
) -> None:
    """Rate and latency of /v1/act and /v1/score over HTTP, and the server's own part of it."""
    with _errors_without_traceback():
        from qguide.bench.score import config
        from qguide.bench.serve.load_test import ServeBench

        _serve(
            ServeBench(
                models=config.parse_served(models),
                clients=config.parse_clients(clients),
                seconds=seconds,
                warm_up_s=warm_up_s,
                output=config.require_output(output),
                url=url,
                candidates=candidates,
                threads=threads,
                seed=seed,
                command=_command(),
            )
        )


def _soak(
    plan: "Soak", q_model: Path, output: Path, *, url: str, device: str, threads: int
) -> bool:
    """Whether every promise was kept."""
    import torch

    from qguide.bench.score.config import DTYPES
    from qguide.bench.soak.http_scorer import Served
    from qguide.bench.soak.report import plot_soak, print_soak
    from qguide.bench.soak.soak import run_soak
    from qnet.models.checkpoint import load_q_model
    from qnet.scoring.build import build_naive_scorer, build_shared_prefix_scorer

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


def _score(config: "ScoreBench") -> None:
    from qguide.bench.score.report import plot_run, print_run
    from qguide.bench.score.run import count_turns, score_bench

    with _steps(count_turns(config)) as advance:
        run = score_bench(config, advance=advance)
    print_run(run, Console())
    plot_run(run, config.plot)


def _serve(config: "ServeBench") -> None:
    from qguide.bench.serve.load_test import count_loads, serve_bench
    from qguide.bench.serve.report import plot_serve, print_serve

    with _steps(count_loads(config)) as advance:
        run = serve_bench(config, advance=advance)
    print_serve(run, Console())
    plot_serve(run, config.output.with_suffix(".png"))


def _command() -> str:
    return shlex.join(["qguide", *sys.argv[1:]])


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
