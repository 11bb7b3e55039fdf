"""`qguide environment …`: check anyone's environment against the contract."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors
from qguide.commands.jobs import show_figures
from qguide.commands.scorer import show_findings
from qguide.jobs.options import ENVIRONMENT_HELP
from qguide.qnet.errors import ConfigError
from qguide.training.configs.job_files import read_environment
from qguide.training.environment import Branching
from qguide.training.environments.branches import BranchingChoice, choose_branching
from qguide.training.environments.contract import Subject, check_environment
from qguide.training.environments.registry import (
    DEFAULT_ENVIRONMENT,
    SelectedSuite,
    build_selected_suite,
    find_environment,
)
from qguide.training.trajectory import Action, read_call

app = typer.Typer(help="Environments: anyone's, by import path or URL.", no_args_is_help=True)

_BRANCHES: dict[Branching, str] = {
    "replay": "by replay",
    "snapshot": "by snapshots",
    "none": "none, whole episodes only",
}


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A name, an import path package.module:factory, or a URL.")],
    harmless: Annotated[
        str,
        typer.Option(
            help="An action that is valid at the start of every task and changes nothing; a tool "
            'call is written name({"argument": 1}).'
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the table `environment`.")
    ] = None,
) -> None:
    """Run the contract's checks over an environment's first tasks; exit 1 if one fails."""
    with shown_errors():
        config = read_environment({"name": name}, overrides or ())
        with closing(build_selected_suite(config)) as suite:
            action: Action | None = suite.environment.harmless
            if harmless:
                action = read_call(harmless) if suite.environment.chat.tools else harmless
            findings = check_environment(Subject(config, suite, action))
            choice = _branching(suite)
    notes = () if choice is None else (f"branches: {_BRANCHES[choice.branching]} ({choice.reason})",)
    raise typer.Exit(show_findings(findings, *notes))


def _branching(suite: SelectedSuite) -> BranchingChoice | None:
    """The beginning of branches; None if the environment fails, which the findings say."""
    try:
        return choose_branching(suite)
    except Exception:  # someone else's code
        return None


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
            raise ConfigError(f"environment {environment!r} cannot write games; choose another environment")
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
