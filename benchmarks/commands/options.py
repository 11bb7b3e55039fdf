"""Options that several commands share, and the run of a benchmark with what a command was given."""

import shlex
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from qguide.commands.errors import shown_errors

KEPT: Final = "interrupted; the output holds the results so far (complete: false)"

Config = Annotated[Path | None, typer.Option(help="TOML file with these options.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="field=value; overrides the file.")]
Output = Annotated[Path | None, typer.Option(help="JSON file; the plot is written beside it.")]
Dtype = Annotated[str | None, typer.Option(help="bfloat16 or float32.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="Number of torch threads.")]
Seed = Annotated[int | None, typer.Option(help="Random seed.")]
Candidates = Annotated[int | None, typer.Option(help="M.")]
WarmUp = Annotated[float | None, typer.Option(help="Seconds of warm-up, not measured.")]
Sizes = Annotated[str | None, typer.Option(help="tiny, 2m, 28m, 125m, 1b, 7b; several with commas.")]
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
        help="naive (always runs), match-features, naive-packed, padded, "
        "full-sequences, dynamic-cache, vllm, vllm-block32, http, vllm-http."
    ),
]


def measure(kind: str, run: Callable[[Any], bool | None], given: Mapping[str, Any]) -> None:
    """Run a benchmark with the options of its command; a check that fails exits with 1.

    Args:
        kind: import path of its configuration, whose module is imported only now.
        given: the command's parameters.
    """
    options = {name: value for name, value in given.items() if name not in ("config", "overrides")}
    options["command"] = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    # Other errors exit with 2, because 1 means a failed soak test or check.
    with shown_errors(other_status=2, interrupted=KEPT):
        from qguide.training.configs.job_files import load_config

        module, _, name = kind.partition(":")
        config_type = getattr(import_module(module), name)
        passed = run(load_config(config_type, given["config"], given["overrides"] or (), options=options))
    if passed is False:
        raise typer.Exit(1)
