"""`qguide export-trunk`, `export-model` and `ensemble`: checkpoints made of checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from qguide.commands.errors import shown_errors


def export_trunk(
    checkpoint: Annotated[Path, typer.Argument(help="A QNet checkpoint folder, or embedded.")],
    output: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
) -> None:
    """Write a QNet's trunk for vLLM; prints the model name that vLLM must serve it under."""
    from qguide.qnet.models.loading import embedded_path
    from qguide.qnet.models.trunk_export import export_trunk as write
    from qguide.server.settings.settings import EMBEDDED

    folder = embedded_path("qnet") if str(checkpoint) == EMBEDDED else checkpoint
    with shown_errors(config_status=1):
        name = write(folder, output)
    typer.echo(name)


def ensemble(
    checkpoints: Annotated[list[Path], typer.Argument(help="Q model folders, or embedded.")],
    output: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    name: Annotated[str, typer.Option(help="The name it is served under.")] = "ensemble",
) -> None:
    """Combine Q models into one checkpoint, whose Q is their mean."""
    from qguide.qnet.models.ensemble import save_ensemble
    from qguide.qnet.models.loading import embedded_path
    from qguide.server.settings.settings import EMBEDDED

    members = [embedded_path("qnet") if str(c) == EMBEDDED else c for c in checkpoints]
    with shown_errors(config_status=1):
        save_ensemble(output, members, name=name)
    typer.echo(output)


def export_model(
    checkpoint: Annotated[Path, typer.Argument(help="A QNet checkpoint folder, or embedded.")],
    output: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
) -> None:
    """Write a QNet for a stock vLLM, transformers and others; prints the folder's format.

    An MLP head makes a Sentence-Transformers folder, a linear one a sequence classifier.
    """
    from qguide.qnet.models.loading import embedded_path
    from qguide.qnet.models.model_export import export_model as write
    from qguide.server.settings.settings import EMBEDDED

    folder = embedded_path("qnet") if str(checkpoint) == EMBEDDED else checkpoint
    with shown_errors(config_status=1):
        written = write(folder, output)
    typer.echo(written)
