"""`qguide`: every offline job, `bench`, `serve`, `keys`, `fake-upstream` and `export-trunk`."""

from qnet.bench.__main__ import app as bench
from server.__main__ import serve
from server.export import export_trunk
from server.fake_upstream import fake_upstream
from server.keys_cli import app as keys
from training.__main__ import app

__all__ = ["app"]

app.command()(serve)
app.command()(export_trunk)
app.command()(fake_upstream)
app.add_typer(bench, name="bench")
app.add_typer(keys, name="keys")
