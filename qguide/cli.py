"""`qguide`: the server, its keys and reports, the jobs, pipelines, and tools for checkpoints."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version as version_of
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from qguide.commands.checkpoint import domain, ensemble, export_model, export_trunk, inspect, licence, progress
from qguide.commands.configs import app as configs
from qguide.commands.demo import demo, fake_upstream
from qguide.commands.doctor import doctor
from qguide.commands.environment import app as environment
from qguide.commands.environment import generate, play
from qguide.commands.errors import exit_with, shown_errors
from qguide.commands.jobs import add_jobs
from qguide.commands.keys import app as keys
from qguide.commands.mcp import mcp
from qguide.commands.plan import plan
from qguide.commands.report import compare, convert_records, report
from qguide.commands.run import run
from qguide.commands.scorer import app as scorer
from qguide.commands.scorer import plugins as plugin
from qguide.commands.serve import serve
from qguide.jobs.table import find_job
from qguide.qnet.errors import QGuideError
from qguide.qnet.packages import LEARN, MCP, MODELS, REMOTE, REPORT, TRAIN, install, left_out, plugins

__all__ = ["app"]

_EXTRAS: Final = {
    "compare": REPORT,
    "demo": MODELS,
    "domain": LEARN,
    "ensemble": MODELS,
    "export-model": MODELS,
    "export-trunk": MODELS,
    "inspect": LEARN,
    "learn": LEARN,
    "mcp": MCP,
    "plan": REMOTE,
    "report": REPORT,
    "progress": MODELS,
    "serve": MODELS,
}
"""Extra of each command; `train`, which has all of them, where none is named."""


class ExtrasGroup(TyperGroup):
    """Commands, with the name of the extra to install in place of a failed import."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Names of all commands, the jobs of installed packages last."""
        ours = super().list_commands(ctx)
        with shown_errors():
            return [*ours, *(name for name in plugins("jobs") if name not in ours)]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """The command of a name: ours, an installed package's job, or a job's import path."""
        ours = super().get_command(ctx, cmd_name)
        with shown_errors():
            if ours is not None or (":" not in cmd_name and cmd_name not in plugins("jobs")):
                return ours
        try:
            job = find_job(cmd_name)
        except QGuideError as error:
            return _failing(cmd_name, error)
        own = typer.Typer()
        add_jobs(own, [job])
        return typer.main.get_command(own)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = left_out(error)
            if package is None:
                raise
            command = ctx.invoked_subcommand or ""
            extra = _EXTRAS.get(command, TRAIN)
            exit_with(f"qguide {command} needs {package}, which is not installed; {install(extra)}", 1, error)


def _failing(name: str, error: QGuideError) -> TyperCommand:
    """A command in place of a job that cannot be found: the help of all others is still shown."""
    return TyperCommand(
        name,
        help=str(error),
        callback=partial(exit_with, str(error), 2, error),
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


app = typer.Typer(
    cls=ExtrasGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Train Q models from an agent's own exploration, serve them, and evaluate guidance.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"qguide {version_of('qguide')}")
        raise typer.Exit


@app.callback(help=app.info.help)
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of `qguide` itself."""


def _add(group: str, *commands: Callable[..., None]) -> None:
    """Add commands below a heading of the help; headings stand in the order of their first one."""
    for command in commands:
        app.command(rich_help_panel=group)(command)


_add("Server", serve, doctor, plan, demo, report, mcp, fake_upstream)
_add("Pipelines", run)
app.add_typer(configs, name="configs", rich_help_panel="Pipelines")
add_jobs(app)
_add("Checkpoints", inspect, licence, domain, ensemble, progress, export_model, export_trunk)
_add("Evaluation", compare)
_add("Records", convert_records)
_add("Environments", play, generate)
app.add_typer(keys, name="keys", rich_help_panel="Server")
app.add_typer(environment, name="environment", rich_help_panel="Environments")
app.add_typer(scorer, name="scorer", rich_help_panel="Checkpoints")
app.add_typer(plugin, name="plugin", rich_help_panel="Pipelines")
