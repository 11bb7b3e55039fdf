"""Conversion of records that an earlier version wrote: `qguide convert-records`."""

from pathlib import Path
from typing import Annotated

import typer

from qguide.commands.errors import shown_errors


def convert_records(
    source: Annotated[
        list[Path],
        typer.Argument(help="Run folders of explore or import, rows, or QGUIDE_EPISODES_DIR."),
    ],
) -> None:
    """Rewrite trees of an earlier version; the old files stay beside the new ones as *.v1.

    Stop the server that writes to them first, and run this as its user. Nothing deletes the *.v1
    files, which QGUIDE_EPISODES_MAX_FILES does not count: remove them when you need them no longer.
    """
    with shown_errors():
        from qguide.training.data.old_trees import convert_file, tree_files

        for path in (file for folder in source for file in tree_files(folder)):
            typer.echo(f"{path}: {convert_file(path)} trees converted")
