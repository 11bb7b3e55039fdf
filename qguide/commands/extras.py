"""Commands that need an extra: which one to install is said where a package is missing."""

from typing import Any, Final

import typer
from typer.core import TyperGroup

from qguide.commands.errors import exit_with
from qnet.support.extras import MODELS, REPORT, TRAIN, install, left_out

_EXTRAS: Final = {
    "demo": MODELS,
    "ensemble": MODELS,
    "export-model": MODELS,
    "export-trunk": MODELS,
    "report": REPORT,
    "serve": MODELS,
}
"""Extra of each command; `train`, which has all of them, where none is named."""


class ExtrasGroup(TyperGroup):
    """Commands, with the name of the extra to install in place of a failed import."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command.

        Raises:
            Exit: a package is missing; the extra that brings it has been printed.
        """
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = left_out(error)
            if package is None:
                raise
            command = ctx.invoked_subcommand or ""
            extra = _EXTRAS.get(command, TRAIN)
            exit_with(
                f"qguide {command} needs {package}, which is not installed; {install(extra)}",
                1,
                error,
            )
