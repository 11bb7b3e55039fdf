"""Measure a learner at strangers' environments.

    python -m benchmarks.strangers crafting helpdesk --learner benchmarks.strangers.ridge:Ridge

The results are written to `results.json` and `results.md` as they come.
"""

import json
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import typer

from benchmarks.strangers.catalogue import STRANGERS, Named
from benchmarks.strangers.protocol import Learner, Measurement, Result
from benchmarks.strangers.report import markdown
from qguide.qnet.packages import import_operator_module

app = typer.Typer()


def load_learner(path: str) -> Learner:
    """The learner that the factory at an import path makes."""
    module, _, name = path.partition(":")
    learner: Learner = getattr(import_operator_module(module), name)()
    return learner


def numbers(text: str) -> list[int]:
    """The numbers of an option, which commas part."""
    return [int(part) for part in text.split(",") if part]


def _check_numbers(text: str) -> str:
    try:
        numbers(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} holds no whole numbers that commas part; write such as 25,50") from error
    return text


def numbers_option(meaning: str) -> Any:
    """An option of numbers, which is refused by its name where it holds something else."""
    return typer.Option(help=meaning, callback=_check_numbers)


@app.command()
def main(
    environments: Named = None,
    learner: Annotated[
        str, typer.Option(help="Import path of a class or factory with `fit(rows) -> scorer`.")
    ] = "benchmarks.strangers.ridge:Ridge",
    episodes: Annotated[str, numbers_option("Numbers of recorded episodes.")] = "25,50,100,200",
    rounds: Annotated[str, numbers_option("Numbers recorded in three rounds.")] = "",
    recordings: Annotated[str, numbers_option("Numbers of the recordings.")] = "0,1,2",
    worlds: Annotated[str, numbers_option("Numbers of the worlds.")] = "0",
    new: Annotated[int, typer.Option(help="Least number of new episodes of a chooser.")] = 300,
    oracle: Annotated[int, typer.Option(help="The same for the oracle; 0: none.")] = 96,
    told: Annotated[bool, typer.Option(help="Recordings tell the agent's draws, of which it takes any.")] = False,
    llm: Annotated[Path | None, typer.Option(help="Folder of a language model in place of the mocks.")] = None,
    candidates: Annotated[int | None, typer.Option(help="M, in place of the environment's own.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs/strangers"),
) -> None:
    """Record, learn, and play new tasks by every chooser."""
    output.mkdir(parents=True, exist_ok=True)
    built, results = load_learner(learner), list[Result]()
    for stranger in environments or STRANGERS.values():
        for world in numbers(worlds):
            played = replace(stranger, llm=llm, candidates=candidates or stranger.candidates)
            measured = Measurement(played, world, new, oracle, told=told)
            start = process_time()
            results += measured.baselines()
            for recording in numbers(recordings):
                if sizes := numbers(episodes):
                    results += measured.learned(built, recording, sizes)
                for size in numbers(rounds):
                    results += measured.in_rounds(built, recording, size)
            rows = [result.row() for result in results]
            (output / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
            (output / "results.md").write_text(markdown(results) + "\n")
            spent = process_time() - start
            typer.echo(f"{stranger.name}, world {world}: {spent:.0f} CPU seconds", err=True)
    typer.echo(markdown(results))


if __name__ == "__main__":
    app()
