"""`qguide`: every offline job, and `serve`."""

from server.__main__ import serve
from training.__main__ import app

__all__ = ["app"]

app.command()(serve)
