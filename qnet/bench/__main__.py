"""`qguide bench score`: what scoring costs, against its peers and the floor.

    qguide bench score --params 28m --points 512x2x32,1024x5x48 --dtype float32 \
        --peers naive,padded,dynamic-cache --sessions 1,16,64 --output score.json

writes every sample to score.json and a picture to score.png.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qnet.errors import ConfigError

if TYPE_CHECKING:
    from qnet.bench.config import ScoreBench

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
        str, typer.Option(help="naive, naive-packed, padded, dynamic-cache; naive always runs.")
    ] = "naive,naive-packed,padded,dynamic-cache",
    sessions: Annotated[
        str, typer.Option(help="Sessions in one call, at the first point; '' for none.")
    ] = "1,16,64",
    repetitions: Annotated[int, typer.Option(min=1, help="Turns that count.")] = 5,
    warm_ups: Annotated[int, typer.Option(min=0, help="Turns before them.")] = 1,
    seed: Annotated[int, typer.Option(help="Draws weights and tokens.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Of torch.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Time of a warm step: ours, its peers, and the floor."""
    with _errors_without_traceback():
        from qnet.bench import config

        _run(
            config.ScoreBench(
                models=config.parse_models(params),
                points=config.parse_points(points),
                names=config.parse_peers(peers),
                sessions=config.parse_sessions(sessions),
                dtype=config.require_dtype(dtype),
                output=config.require_output(output),
                repetitions=repetitions,
                warm_ups=warm_ups,
                seed=seed,
                threads=threads,
                device=config.require_device(device),
                command=shlex.join(["qguide", *sys.argv[1:]]),
            )
        )


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
    except ConfigError as error:
        _exit(str(error), 2)
    except KeyboardInterrupt:
        _exit("interrupted; the output holds what was measured (complete: false)", INTERRUPTED)


def _exit(message: str, status: int) -> NoReturn:
    Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", highlight=False)
    raise typer.Exit(status)


if __name__ == "__main__":
    app()
