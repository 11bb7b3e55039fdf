"""GET /playground: a web page to try guided steps, score candidates and view recorded episodes.

Its files are the same for everyone and hold no secrets, so they need no API key; the API that the
page calls does.
"""

from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import Field

from qguide.server.own_bodies.schemas import Body
from qguide.server.routes.dependencies import ModelsDep, SettingsDep
from qguide.server.routes.games import MOST_REPLIES, Games

router = APIRouter(tags=["playground"])

_FOLDER: Final = Path(__file__).parents[1] / "playground"
_INDEX: Final = "index.html"
_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    # Model output must stay text: scripts cannot turn it into markup, even by mistake.
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
HEADERS: Final = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the page changes with the server's version
}


class OfferedGames(Body):
    """Games that this server has for a race."""

    name: str
    count: int
    most_replies: int


class PageFeatures(Body):
    """Features of this server that the page needs to know before a key is entered."""

    needs_key: bool
    perturb: bool = Field(description="true if a paraphraser is configured")
    num_candidates: int = Field(description="default M of a chat completion")
    max_candidates: int
    recorded: bool = Field(description="true if an admin key may list recorded episodes")
    learns: bool = Field(description="true if it learns while it serves")
    games: OfferedGames | None = Field(description="null if this server has no games")


@router.get("/", include_in_schema=False)
async def start() -> RedirectResponse:
    """Redirect to the page by a relative URL, which also works behind a proxy's path prefix."""
    return RedirectResponse("playground")


@router.get("/playground/", include_in_schema=False)
async def slash() -> RedirectResponse:
    """Redirect to the page; the framework's own redirect would be absolute."""
    return RedirectResponse("../playground")


@router.get("/playground", include_in_schema=False)
async def page() -> FileResponse:
    """Serve the page."""
    return _answer(_INDEX)


@router.get("/playground/abilities")
async def abilities(settings: SettingsDep, models: ModelsDep, request: Request) -> PageFeatures:
    """Describe the features of this server to the page."""
    games: Games | None = request.app.state.games
    return PageFeatures(
        needs_key=settings.keys_file is not None,
        perturb=models.paraphraser is not None,
        num_candidates=settings.num_candidates,
        max_candidates=settings.max_candidates,
        recorded=settings.admin and settings.episodes_folder is not None,
        learns=settings.learn and settings.episodes_folder is not None,
        games=OfferedGames(name=games.name, count=games.count, most_replies=MOST_REPLIES)
        if games
        else None,
    )


@router.get("/playground/{name}", include_in_schema=False)
async def file(name: str) -> FileResponse:
    """Serve a style sheet, a script or the icon."""
    return _answer(name)


def _answer(name: str) -> FileResponse:
    """The file of that name; the name is looked up and never becomes a path."""
    path = _files().get(name)
    if path is None:
        raise HTTPException(404, f"the playground has no file {name[:40]!r}")
    return FileResponse(path, media_type=_MEDIA_TYPES[path.suffix], headers=HEADERS)


@cache
def _files() -> dict[str, Path]:
    """Files of the page by name; they are part of the package and do not change."""
    return {path.name: path for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}
