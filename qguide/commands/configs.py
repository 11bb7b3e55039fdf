"""`qguide configs …`: the job files that come with the package."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from qguide.commands.errors import shown_errors
from qguide.qnet.errors import ConfigError
from qguide.training.shipped_files import CONFIGS, headline, job_files, named_files

app = typer.Typer(help="Job files that come with the package.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A file or a folder of the list, such as errands/pipeline.toml.")]


@app.command("list")
def show_list(folder: Annotated[str, typer.Argument(help="Only those below this folder.")] = "") -> None:
    """List the files, each with what it is for; `--config` and `run` take them by these names."""
    with shown_errors():
        for file in job_files(_find(folder)):
            typer.echo(f"training/configs/{file.relative_to(CONFIGS)}")
            if said := headline(file.read_text(encoding="utf-8")):
                typer.echo(f"    {said}")


@app.command()
def show(name: Name) -> None:
    """Print a file."""
    with shown_errors():
        found = _find(name)
        if found.is_dir():
            raise ConfigError(f"{name} is a folder; `qguide configs list {name}` has its files")
        typer.echo(found.read_text(encoding="utf-8"), nl=False)


@app.command()
def copy(name: Name, to: Annotated[Path, typer.Option(help="Folder that gets the copies.")] = Path("configs")) -> None:
    """Copy a file or a folder, with the files that it extends or runs, to change them."""
    with shown_errors():
        found = {file: to / file.relative_to(CONFIGS) for file in _closure(job_files(_find(name)))}
        for target in found.values():
            if target.exists():
                raise ConfigError(f"{target} exists already; name another folder with --to")
        for file, target in found.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
            typer.echo(target)


def _find(name: str) -> Path:
    """The file or folder of a name of the list."""
    found = _normal(CONFIGS / name.removeprefix("training/configs/"))
    if not found.is_relative_to(CONFIGS) or not found.exists():
        raise ConfigError(f"there is no job file {name!r}; `qguide configs list` has their names")
    return found


def _closure(files: Iterable[Path]) -> list[Path]:
    """These files and all that they need, sorted."""
    from qguide.training.configs.job_files import read_toml

    found: set[Path] = set()
    pending = list(files)
    while pending:
        file = _normal(pending.pop())
        if file not in found:
            found.add(file)
            pending += named_files(file, read_toml(file))
    return sorted(found)


def _normal(path: Path) -> Path:
    """The path without `..`; links stay as they are."""
    return Path(os.path.normpath(path))
