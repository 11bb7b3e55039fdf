"""`qguide`: every offline job, `bench`, and `serve`."""

from qnet.bench.__main__ import app as bench
from server.__main__ import serve
from training.__main__ import app

__all__ = ["app"]

app.command()(serve)
app.add_typer(bench, name="bench")
