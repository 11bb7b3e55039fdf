"""`qguide`: the jobs, pipelines, the server, keys, and tools for checkpoints."""

from importlib.metadata import version as version_of
from typing import Annotated

import typer

from qguide.commands.data import export_data, import_episodes
from qguide.commands.demo import demo
from qguide.commands.environment import app as environment
from qguide.commands.export import ensemble, export_model, export_trunk
from qguide.commands.jobs import app
from qguide.commands.keys import app as keys
from qguide.commands.learning import domain, inspect, learn
from qguide.commands.report import report
from qguide.commands.run import run
from qguide.commands.serve import serve
from server.chat.fake_openai import fake_upstream

__all__ = ["app"]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"qguide {version_of('qguide')}")
        raise typer.Exit


@app.callback(help=app.info.help)
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Options of `qguide` itself."""


app.command()(run)
app.command()(report)
app.command()(serve)
app.command()(demo)
app.command("import")(import_episodes)
app.command()(learn)
app.command()(inspect)
app.command()(domain)
app.command()(export_data)
app.command()(export_trunk)
app.command()(ensemble)
app.command()(export_model)
app.command()(fake_upstream)
app.add_typer(keys, name="keys")
app.add_typer(environment, name="environment")
