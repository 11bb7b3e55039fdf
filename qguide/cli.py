"""`qguide`: every offline job, `bench`, `serve`, and `export-trunk`."""

from qnet.bench.__main__ import app as bench
from server.__main__ import serve
from server.export import export_trunk
from training.__main__ import app

__all__ = ["app"]

app.command()(serve)
app.command()(export_trunk)
app.add_typer(bench, name="bench")
