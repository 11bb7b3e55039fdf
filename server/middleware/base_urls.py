"""Base URLs of other services: Azure's paths, and the paths of clients that leave out `/v1`."""

import re
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

_FOREIGN: Final = re.compile(
    r"(?:/openai(?:/v1|/deployments/(?P<deployment>[^?]+?))?|/v1(?=/v1/))?(?:/v1)?"
    r"(?P<path>/(?:chat/completions|completions|responses|conversations|messages|models)(?:/.*)?)",
    re.DOTALL,
)
"""`/openai/deployments/NAME/…` and `/openai/v1/…` of Azure, `/v1/v1/…` of Anthropic's clients whose
base URL ends in `/v1`, and `/chat/completions` of OpenAI's whose base URL does not."""


class BaseUrls:
    """Serves the paths of other services as those under `/v1`.

    The name of a deployment is the model of a request whose body names none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request by the path that it means."""
        found = _FOREIGN.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found and not scope["path"].startswith(f"/v1{found['path']}"):
            scope["path"] = f"/v1{found['path']}"
            if found["deployment"]:
                scope["state"]["account"].deployment = found["deployment"]
        await self.app(scope, receive, send)
