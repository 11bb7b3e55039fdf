"""`qguide`: every offline job, `serve`, and `export-trunk`."""

from server.__main__ import serve
from server.export import export_trunk
from training.__main__ import app

__all__ = ["app"]

app.command()(serve)
app.command()(export_trunk)
