"""`qguide export-trunk`: write a QNet's trunk to a folder that vLLM can load."""

from pathlib import Path
from typing import Annotated

import typer

from qguide.commands.errors import shown_errors


def export_trunk(
    checkpoint: Annotated[Path, typer.Argument(help="A QNet checkpoint folder, or embedded.")],
    output: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
) -> None:
    """Write a QNet's trunk for vLLM; prints the model name that vLLM must serve it under."""
    from qnet.models.checkpoint import embedded_path
    from qnet.models.trunk_export import export_trunk as write
    from server.settings.settings import EMBEDDED

    folder = embedded_path("qnet") if str(checkpoint) == EMBEDDED else checkpoint
    with shown_errors(config_status=1):
        name = write(folder, output)
    typer.echo(name)
