"""`qguide keys …`: create, list and revoke API keys."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from qguide.commands.errors import shown_errors
from qguide.server.http.keys import create_key, read_keys, revoke_key

app = typer.Typer(help="API keys of `qguide serve`.", no_args_is_help=True)

File = Annotated[Path, typer.Option(envvar="QGUIDE_KEYS_FILE", help="Keys file; or set QGUIDE_KEYS_FILE.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the key in logs and metrics.")],
    file: File,
    admin: Annotated[bool, typer.Option(help="May also change which Q models are served.")] = False,
    metrics: Annotated[bool, typer.Option(help="May read the metrics of all keys: for Prometheus.")] = False,
    requests_per_minute: Annotated[int | None, typer.Option(help="0 is no limit.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(help="0 is no limit.")] = None,
    cache_group: Annotated[str | None, typer.Option(help="Keys of the same group share caches.")] = None,
) -> None:
    """Print a new key, once, and add its hash to the file."""
    with shown_errors(config_status=1):
        key = create_key(
            file,
            name,
            admin=admin,
            metrics=metrics,
            requests_per_minute=requests_per_minute,
            tokens_per_day=tokens_per_day,
            cache_group=cache_group,
        )
    typer.echo(key)


@app.command("list")
def list_keys(file: File) -> None:
    """List all keys and their limits."""
    with shown_errors(config_status=1):
        keys = read_keys(file).keys
    table = Table("name", "admin", "metrics", "requests/min", "tokens/day", "cache group", "created")
    for key in keys:
        limits = (key.requests_per_minute, key.tokens_per_day)
        shown = ("default" if limit is None else f"{limit:,}" for limit in limits)
        may = ("yes" if role else "" for role in (key.admin, key.metrics))
        table.add_row(key.name, *may, *shown, key.cache_group or "", str(key.created))
    Console().print(table)


@app.command()
def revoke(name: str, file: File) -> None:
    """Remove a key from the file; a running server refuses it from the next request on."""
    with shown_errors(config_status=1):
        revoke_key(file, name)
