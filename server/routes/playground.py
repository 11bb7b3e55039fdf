"""GET /playground: a page in the browser that acts, scores and shows what was recorded.

Its files and what it offers are the same for everybody and hold no secret, so they need no key;
the API that it calls does.
"""

from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import Field

from server.messages.schemas import Body
from server.routes.dependencies import ModelsDep, SettingsDep

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
    # What a model says is text; no script of ours could make markup of it, even by mistake.
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
    "Cache-Control": "no-cache",  # another version of the server has another page
}


class Abilities(Body):
    """What the page has to know of a server before anybody has given a key."""

    needs_key: bool
    perturb: bool = Field(description="there is a policy that paraphrases")
    num_candidates: int = Field(description="M, where nobody says")
    max_candidates: int


@router.get("/", include_in_schema=False)
async def start() -> RedirectResponse:
    """To the page; relative, so that it also works behind a proxy's prefix."""
    return RedirectResponse("playground")


@router.get("/playground/", include_in_schema=False)
async def slash() -> RedirectResponse:
    """To the page; the framework's own redirect would be absolute."""
    return RedirectResponse("../playground")


@router.get("/playground", include_in_schema=False)
async def page() -> FileResponse:
    """The page."""
    return _answer(_INDEX)


@router.get("/playground/abilities")
async def abilities(settings: SettingsDep, models: ModelsDep) -> Abilities:
    """What the page offers here."""
    return Abilities(
        needs_key=settings.keys_file is not None,
        perturb=models.paraphraser is not None,
        num_candidates=settings.num_candidates,
        max_candidates=settings.max_candidates,
    )


@router.get("/playground/{name}", include_in_schema=False)
async def file(name: str) -> FileResponse:
    """A style sheet, a module, the icon."""
    return _answer(name)


def _answer(name: str) -> FileResponse:
    """The file of that name; a caller's text is looked up and never becomes a path."""
    path = _files().get(name)
    if path is None:
        raise HTTPException(404, f"the playground has no file {name[:40]!r}")
    return FileResponse(path, media_type=_MEDIA_TYPES[path.suffix], headers=HEADERS)


@cache
def _files() -> dict[str, Path]:
    """What there is, by name; it comes with the package and does not change."""
    return {path.name: path for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}
