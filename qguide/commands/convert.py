"""Conversion of records that an earlier version wrote: `qguide convert-records`."""

from pathlib import Path
from typing import Annotated

import typer

from qguide.commands.errors import shown_errors


def convert_records(
    source: Annotated[
        list[Path], typer.Argument(help="Run folders of collect, explore, import, groups, rro; QGUIDE_EPISODES_DIR.")
    ],
) -> None:
    """Rewrite trees, decision groups and trajectories of before; the old files stay as *.v1.

    A source may also be a file of rows. Stop the server that writes to them first, and run this as
    its user. Nothing deletes the *.v1 files, which QGUIDE_EPISODES_MAX_FILES does not count: remove
    them when you need them no longer.
    """
    with shown_errors():
        from qguide.training.data.old_records import convert_file, record_files

        for path in (file for folder in source for file in record_files(folder)):
            typer.echo(f"{path}: {convert_file(path)} rows converted")
