"""Commands for a Q model without a network: `qguide learn`, and `qguide inspect` for any model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors
from qguide.commands.jobs import Config, Overrides
from training.configs.job_files import load_config


def learn(
    source: Annotated[
        list[Path] | None,
        typer.Argument(help="Recordings as `qguide import` reads them, or trajectories."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write.")] = None,
    name: Annotated[str | None, typer.Option(help="Name that it is served under.")] = None,
    reward_key: Annotated[
        str | None, typer.Option(help="Field or span attribute that holds the reward.")
    ] = None,
    task_key: Annotated[
        str | None, typer.Option(help="Field or span attribute that holds the task id.")
    ] = None,
    default_reward: Annotated[
        float | None, typer.Option(help="Reward of episodes that state none.")
    ] = None,
    skip_bad: Annotated[
        bool | None, typer.Option("--skip-bad", help="Leave out records that hold no episode.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Learn a Q model from recorded episodes in seconds, without a network, and judge it."""
    given = dict(locals())
    options = {name: value for name, value in given.items() if name not in ("config", "overrides")}
    with shown_errors():
        from training.jobs.recorded.learn import CHECKPOINT, LearnConfig, run_learn
        from training.licence.report import show_licence

        job = load_config(LearnConfig, config, overrides or (), options=options)
        manifest = run_learn(job)
        console = Console()
        figures = manifest.metrics
        console.print(
            f"{figures['episodes']:,.0f} episodes of {figures['tasks']:,.0f} tasks, mean reward "
            f"{figures['mean_reward']:.3f} → {job.output / CHECKPOINT}",
            markup=False,
            soft_wrap=True,
        )
        show_licence(manifest.licence, console)


def inspect(
    model: Annotated[str, typer.Argument(help="A checkpoint's folder, or embedded.")],
) -> None:
    """Show the manifest of a checkpoint: origin, licence, and temperature of its posterior."""
    with shown_errors():
        from qnet.errors import CheckpointError
        from qnet.models.loading import embedded_path
        from qnet.models.manifest import read_manifest
        from training.licence.report import show_manifest

        folder = embedded_path("qnet") if model == "embedded" else Path(model)
        manifest = read_manifest(folder)
        if manifest is None:
            raise CheckpointError(f"{folder} has no manifest; it was not trained here")
        show_manifest(manifest, Console())
