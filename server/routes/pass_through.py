"""Routes that the operator passes on to an upstream as they are: embeddings, files and batches.

Only these paths go on, with the operator's key, and nothing of the caller's headers but the type of the content.
"""

import re
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, Response

from qguide.qnet.decision.guide import AT_UPSTREAM
from qguide.qnet.policies.answers import usage_of
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.server.chat.schemas import WholeRequest
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.http.bodies import BodyRoute
from qguide.server.routes.dependencies import StepperDep
from qguide.server.settings.settings import PassedOn

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute, include_in_schema=False)

_QUERY: Final = ("after", "limit", "order", "purpose")
_TOLD: Final = ("content-type", "retry-after")  # of the headers of an answer
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


def _upstream(kind: PassedOn, stepper: GuidedStepService) -> OpenAICompatiblePolicy:
    if (name := stepper.settings.pass_through.get(kind)) is None:
        raise HTTPException(404)
    return stepper.models.remote[name]


@router.post("/embeddings")
async def embed(body: WholeRequest, stepper: StepperDep) -> Response:
    """Embed texts by the upstream's model."""
    upstream = _upstream("embeddings", stepper)
    async with stepper.deadline.enforce(AT_UPSTREAM):
        answer = await upstream.ask("embeddings", body.parameters | {"model": upstream.model}, {})
    if answer is None:
        raise HTTPException(404)
    stepper.metrics.count_drawn(prompt=usage_of(answer).prompt_tokens, completion=0)
    return JSONResponse(answer)


async def _forward(kind: PassedOn, request: Request, stepper: GuidedStepService) -> Response:
    if not all(map(_ID.fullmatch, request.path_params.values())):
        raise HTTPException(404)
    path = request.scope["path"].removeprefix(f"{router.prefix}/")
    query = {name: value for name, value in request.query_params.items() if name in _QUERY}
    declared = request.headers.get("content-type", "")
    upstream = _upstream(kind, stepper)
    body = await request.body()
    async with stepper.deadline.enforce(AT_UPSTREAM):
        answer = await upstream.forward(request.method, path, body, declared, query)
    told = {name: answer.headers[name] for name in _TOLD if name in answer.headers}
    headers = told | {"X-Content-Type-Options": "nosniff"}
    return Response(answer.content, answer.status_code, headers)


@router.api_route("/files", methods=["GET", "POST"])
@router.api_route("/files/{id}", methods=["GET", "DELETE"])
@router.get("/files/{id}/content")
async def pass_on_file(request: Request, stepper: StepperDep) -> Response:
    """Keep, list, send or delete files in the upstream's account."""
    return await _forward("files", request, stepper)


@router.api_route("/batches", methods=["GET", "POST"])
@router.get("/batches/{id}")
@router.post("/batches/{id}/cancel")
async def pass_on_batch(request: Request, stepper: StepperDep) -> Response:
    """Begin, list, show or cancel batches in the upstream's account."""
    return await _forward("batches", request, stepper)
