"""Commands that exchange records with other programs: `qguide import` and `qguide export-data`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors
from qguide.commands.jobs import Config, Overrides
from training.configs.job_files import load_config


def import_episodes(
    source: Annotated[
        Path | None, typer.Argument(help="A file, or a folder of .jsonl and .json files.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write.")] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", help="served, messages, sharegpt or otel; else by the first record."
        ),
    ] = None,
    environment: Annotated[
        str | None, typer.Option(help="Name of the environment, if the recording names none.")
    ] = None,
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
    """Import recorded episodes of any agent, and report what can be learned from them."""
    given = {name.removesuffix("_"): value for name, value in locals().items()}
    options = {name: value for name, value in given.items() if name not in ("config", "overrides")}
    with shown_errors():
        from training.jobs.import_episodes import ImportConfig, run_import
        from training.recordings.report import show_report

        job = load_config(ImportConfig, config, overrides or (), options=options)
        show_report(run_import(job), Console())


def export_data(
    source: Annotated[Path, typer.Argument(help="A run folder, or its file of rows.")],
    output: Annotated[Path, typer.Option(help="File to write; .parquet for parquet.")],
    format_: Annotated[
        str, typer.Option("--format", help="trl-sft, trl-preference, trl-stepwise or parquet.")
    ],
    min_reward: Annotated[
        float | None, typer.Option(help="trl-sft: lowest reward of an episode.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="trl-stepwise: lowest value of a good step; else 0.5.")
    ] = None,
) -> None:
    """Export records to TRL's dataset formats or to parquet."""
    options = {name.removesuffix("_"): value for name, value in locals().items()}
    with shown_errors():
        from training.jobs.export_data import ExportConfig, run_export_data

        exported = run_export_data(load_config(ExportConfig, None, (), options=options))
        Console().print(
            f"{exported['rows']:,} rows of {exported['from']} → {exported['output']}", markup=False
        )
