"""Routes that the operator passes on to an upstream as they are: embeddings, files and batches.

Only these paths go on, with the operator's key, and nothing of the caller's headers but the type of
the content.
"""

import re
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, Response

from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.server.chat.schemas import WholeRequest
from qguide.server.http.bodies import BodyRoute
from qguide.server.q_models.build import Models
from qguide.server.routes.dependencies import ModelsDep, SettingsDep
from qguide.server.settings.settings import PassedOn, Settings

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute, include_in_schema=False)

_QUERY: Final = ("after", "limit", "order", "purpose")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


def _upstream(kind: PassedOn, models: Models, settings: Settings) -> OpenAICompatiblePolicy:
    if kind not in settings.pass_through:
        raise HTTPException(404)
    upstream = models.policies[settings.pass_through[kind]].model
    assert isinstance(upstream, OpenAICompatiblePolicy)
    return upstream


@router.post("/embeddings")
async def embed(body: WholeRequest, models: ModelsDep, settings: SettingsDep) -> Response:
    """Embed texts by the upstream's model."""
    upstream = _upstream("embeddings", models, settings)
    answer = await upstream.ask("embeddings", body.parameters | {"model": upstream.model}, {})
    if answer is None:
        raise HTTPException(404)
    usage = answer.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    prompt = read if isinstance(read, int) else 0
    models.runtime.metrics.count_drawn(prompt=prompt, completion=0)
    return JSONResponse(answer)


async def _forward(
    kind: PassedOn, request: Request, models: Models, settings: Settings
) -> Response:
    if not all(map(_ID.fullmatch, request.path_params.values())):
        raise HTTPException(404)
    path = request.scope["path"].removeprefix(f"{router.prefix}/")
    query = {name: value for name, value in request.query_params.items() if name in _QUERY}
    declared = request.headers.get("content-type", "")
    upstream = _upstream(kind, models, settings)
    answer = await upstream.forward(request.method, path, await request.body(), declared, query)
    return Response(
        answer.content, answer.status_code, media_type=answer.headers.get("content-type")
    )


@router.api_route("/files", methods=["GET", "POST"])
@router.api_route("/files/{id}", methods=["GET", "DELETE"])
@router.get("/files/{id}/content")
async def pass_on_file(request: Request, models: ModelsDep, settings: SettingsDep) -> Response:
    """Keep, list, send or delete files in the upstream's account."""
    return await _forward("files", request, models, settings)


@router.api_route("/batches", methods=["GET", "POST"])
@router.get("/batches/{id}")
@router.post("/batches/{id}/cancel")
async def pass_on_batch(request: Request, models: ModelsDep, settings: SettingsDep) -> Response:
    """Begin, list, show or cancel batches in the upstream's account."""
    return await _forward("batches", request, models, settings)
