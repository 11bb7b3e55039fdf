"""GET /docs: Swagger UI over the OpenAPI document, with assets of this installation.

The framework's own page takes them from a CDN, and is blank where that cannot be reached.
"""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

router = APIRouter(include_in_schema=False)

ASSETS: Final = ("swagger-ui-bundle.js", "swagger-ui.css")
"""Swagger UI 5 (Apache 2.0), which the package fastapi-offline (MIT) carries and keeps current."""
START: Final = "start.js"

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>QGuide: endpoints</title>
<link rel="icon" href="playground/icon.svg">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""
_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",  # Swagger UI styles its parts in place
    "img-src": "'self' data:",  # icons in its style sheet
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # it changes with the server's version
}


@router.get("/docs")
async def page() -> HTMLResponse:
    """Serve the page; its URLs are relative, so that it works behind a proxy's path prefix."""
    return HTMLResponse(_PAGE, headers=_HEADERS)


@router.get("/redoc")
async def redoc() -> RedirectResponse:
    """Redirect to the page: there is one of the two."""
    return RedirectResponse("docs")


@router.get(f"/docs/{START}")
async def start() -> Response:
    """Serve the script that starts Swagger UI; the policy allows none in the page."""
    return Response(_START, media_type="text/javascript", headers=_HEADERS)


@router.get(f"/docs/{ASSETS[0]}")
async def script() -> FileResponse:
    """Serve Swagger UI."""
    return FileResponse(_assets() / ASSETS[0], media_type="text/javascript", headers=_HEADERS)


@router.get(f"/docs/{ASSETS[1]}")
async def style() -> FileResponse:
    """Serve its style sheet."""
    return FileResponse(_assets() / ASSETS[1], media_type="text/css", headers=_HEADERS)


@cache
def _assets() -> Path:
    """Folder of the assets."""
    return Path(str(resources.files("fastapi_offline") / "static"))
