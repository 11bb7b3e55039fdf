"""The server's own web pages: /docs, Swagger UI over the OpenAPI document, and /playground.

They are the same for everyone and hold no secrets, so the playground needs no API key; the API that it calls does. The
framework's own page of /docs takes its assets from a CDN, and is blank where that cannot be reached.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Protocol

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import Field

from qguide.qnet.errors import InvalidRequestError
from qguide.server.http.bodies import BodyRoute
from qguide.server.own_bodies.schemas import Body, ChatMessage, Integer, ListOf
from qguide.server.routes.dependencies import ModelsDep, SettingsDep, of_app

docs = APIRouter(include_in_schema=False)
playground = APIRouter(tags=["playground"])


def _headers(policy: dict[str, str], **others: str) -> dict[str, str]:
    """Headers of a page that loads nothing but what its policy says."""
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        **policy,
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        **others,
        "Cache-Control": "no-cache",  # a page changes with the server's version
    }


_ROOT: Final = Path(__file__).parents[1]
_INDEX: Final = "index.html"
_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
DOCS_HEADERS: Final = _headers(
    {
        "style-src": "'self' 'unsafe-inline'",  # Swagger UI styles its parts in place
        "img-src": "'self' data:",  # icons in its style sheet
    }
)
HEADERS: Final = _headers(
    {
        "style-src": "'self'",
        "img-src": "'self'",
        # Model output must stay text: scripts cannot turn it into markup, even by mistake.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    },
    **{"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"},
)


@cache
def _files(folder: str) -> dict[str, Path]:
    """Files of a page by name; they are part of the package and do not change."""
    return {path.name: path for path in (_ROOT / folder).iterdir() if path.suffix in _MEDIA_TYPES}


@cache
def _docs_files() -> dict[str, Path]:
    """Files of /docs with Swagger UI 5 (Apache 2.0), which the package fastapi-offline (MIT) carries."""
    swagger = Path(str(resources.files("fastapi_offline") / "static"))
    return _files("api_docs") | {name: swagger / name for name in ("swagger-ui-bundle.js", "swagger-ui.css")}


def _answer(files: dict[str, Path], name: str, headers: dict[str, str]) -> FileResponse:
    """The file of that name; the name is looked up and never becomes a path."""
    path = files.get(name)
    if path is None:
        raise HTTPException(404, f"this page has no file {name[:40]!r}")
    return FileResponse(path, media_type=_MEDIA_TYPES[path.suffix], headers=headers)


@docs.get("/docs")
async def docs_page() -> FileResponse:
    """Serve the page; its URLs are relative, so that it works behind a proxy's path prefix."""
    return _answer(_docs_files(), _INDEX, DOCS_HEADERS)


@docs.get("/redoc")
async def redoc() -> RedirectResponse:
    """Redirect to the page: there is one of the two."""
    return RedirectResponse("docs")


@docs.get("/docs/{name}")
async def docs_file(name: str) -> FileResponse:
    """Serve Swagger UI, its style sheet, or the script that starts it: the policy allows none in the page."""
    return _answer(_docs_files(), name, DOCS_HEADERS)


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


@playground.get("/", include_in_schema=False)
async def start() -> RedirectResponse:
    """Redirect to the page by a relative URL, which also works behind a proxy's path prefix."""
    return RedirectResponse("playground")


@playground.get("/playground/", include_in_schema=False)
async def slash() -> RedirectResponse:
    """Redirect to the page; the framework's own redirect would be absolute."""
    return RedirectResponse("../playground")


@playground.get("/playground", include_in_schema=False)
async def page() -> FileResponse:
    """Serve the page."""
    return _answer(_files("playground"), _INDEX, HEADERS)


@playground.get("/playground/abilities")
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
        games=OfferedGames(name=games.name, count=games.count, most_replies=MOST_REPLIES) if games else None,
    )


@playground.get("/playground/{name}", include_in_schema=False)
async def file(name: str) -> FileResponse:
    """Serve a style sheet, a script or the icon."""
    return _answer(_files("playground"), name, HEADERS)


games = APIRouter(prefix="/v1/games", tags=["playground"], route_class=BodyRoute)
"""Games for the playground's race (`QGUIDE_PLAYGROUND_GAMES`), which whoever makes the application brings.

Nothing is kept between requests: each one plays a game from its start with all replies so far, so there is no session
to leak or to fill the memory with. The number of replies is limited, and a few games are played at a time, in threads
of their own: a game whose caller hangs up keeps its thread until it is over.
"""

MOST_REPLIES: Final = 60
GAMES_AT_ONCE: Final = 2
"""Threads that play; other requests wait for one."""


class GameAnswer(Body):
    """The game after these replies."""

    opening: list[ChatMessage] = Field(description="the messages before the first reply")
    observation: str = Field(description="after the last reply; empty before the first")
    reward: float = Field(description="of the last reply; 0 until the game is over")
    ended: bool = Field(description="true if the game takes no more replies")
    won: bool = Field(description="true if it ended in success, by the environment's own criterion")


class Games(Protocol):
    """A list of games; its methods block, and threads may share it."""

    name: str
    count: int

    def play(self, game: int, replies: Sequence[str]) -> GameAnswer:
        """Play a game from its start with these replies; those after its end are ignored."""


class GameRequest(Body):
    """A game and the replies so far."""

    game: Integer = Field(ge=0, description="number of the game, from 0")
    replies: ListOf[str] = Field(max_length=MOST_REPLIES, description="the agent's whole replies, first to last")


@games.post("/play")
async def play_game(
    body: GameRequest, games: Annotated[Games, of_app("games")], threads: Annotated[Executor, of_app("game_threads")]
) -> GameAnswer:
    """Play a game from its start with these replies."""
    if body.game >= games.count:
        raise InvalidRequestError(f"game is {body.game}; this server has games 0 to {games.count - 1}")
    return await asyncio.get_running_loop().run_in_executor(threads, games.play, body.game, body.replies)
