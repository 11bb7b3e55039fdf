"""Commands on the games of an environment: `qguide generate` and `play`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors
from qguide.commands.jobs import show_figures
from qguide.jobs.options import ENVIRONMENT_HELP
from qguide.qnet.errors import ConfigError
from qguide.training.configs.job_files import read_environment
from qguide.training.environments.registry import DEFAULT_ENVIRONMENT, find_environment


def generate(
    output: Annotated[Path, typer.Option(help="Folder to write the games into.")],
    environment: Annotated[str, typer.Argument(help=ENVIRONMENT_HELP)] = DEFAULT_ENVIRONMENT,
    count: Annotated[int, typer.Option(min=1, help="Number of games.")] = 100,
    first_seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first game.")] = 0,
) -> None:
    """Write generated games in the file format of the real ones."""
    with shown_errors():
        write = find_environment(environment).write_games
        if write is None:
            raise ConfigError(
                f"environment {environment!r} cannot write games; choose another environment"
            )
        written = write(output, count=count, first_seed=first_seed)
        show_figures("generate", {**written, "output": output}, Console())


def play(
    environment: Annotated[str, typer.Option(help=ENVIRONMENT_HELP)] = DEFAULT_ENVIRONMENT,
    games: Annotated[Path | None, typer.Option(help="Folder of game files.")] = None,
    generated: Annotated[int, typer.Option(min=0, help="Seed of a generated game.")] = 0,
    task: Annotated[int, typer.Option(min=0, help="Index of the game in the folder.")] = 0,
    url: Annotated[str, typer.Option(help="URL of the server.")] = "http://127.0.0.1:8000",
    candidates: Annotated[int, typer.Option(min=1, help="M.")] = 5,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed.")] = 0,
    max_steps: Annotated[int, typer.Option(min=1, help="Maximum number of actions.")] = 40,
) -> None:
    """Play one episode against a running server, showing candidates, Q and the choice."""
    with shown_errors():
        from qguide.training.jobs.play import PlayConfig, run_play

        tasks = {"name": environment, "first_seed": generated, "count": 1}
        if games is not None:
            tasks["games"] = games
        run_play(
            PlayConfig(
                environment=read_environment(tasks),
                url=url,
                task=task,
                num_candidates=candidates,
                temperature=temperature,
                seed=seed,
                max_steps=max_steps,
            ),
            console=Console(),
        )
