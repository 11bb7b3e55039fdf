"""GET /v1/models: list the served models, or show one by any of its names; POST changes them.

Google's SDK asks the same paths, and is answered as Gemini answers.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from qguide.qnet.errors import UnknownModelError
from qguide.qnet.policies.upstream_dialects import GEMINI
from qguide.server.chat.schemas import OpenAIErrorBody
from qguide.server.gemini.answers import GeminiModel, GeminiModels
from qguide.server.http.admission import require_admin
from qguide.server.http.bodies import BodyRoute
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import described_errors
from qguide.server.q_models.build import serve_folder
from qguide.server.q_models.registry import DEFAULT, Models, shares_of
from qguide.server.q_models.schemas import (
    AliasRequest,
    DropRequest,
    LoadRequest,
    ModelCard,
    ModelList,
    PriorCard,
    ShadowRequest,
)
from qguide.server.q_models.served import ServedPolicy, ServedQModel
from qguide.server.routes.dependencies import ModelsDep
from qguide.server.routes.gemini import list_gemini_models, show_gemini_model

_log = structlog.get_logger(__name__)

router = APIRouter(prefix="/v1", tags=["models"])

_OURSELVES: Final = "qguide"


@router.get("/models", response_model=ModelList | GeminiModels)
async def list_models(request: Request, models: ModelsDep) -> ModelList | Response:
    """List policies, and in `q_models` Q models, with the metadata of their checkpoints."""
    if GEMINI.key_header in request.headers:
        return _as_google(await list_gemini_models(models))
    return model_list(models)


@router.get(
    "/models/{model_id:text}",
    response_model=ModelCard | GeminiModel,
    responses=described_errors(OpenAIErrorBody, STATUSES),
)
async def show_model(model_id: str, request: Request, models: ModelsDep) -> ModelCard | Response:
    """Show a policy or a Q model by any of its names; a split has no single model."""
    if GEMINI.key_header in request.headers:
        return _as_google(await show_gemini_model(model_id, models))
    listed = model_list(models)
    cards = {card.id: card for card in (*listed.q_models, *listed.data)}
    return cards[model_id if model_id in cards else _id_of(model_id, models)]


def _as_google(told: BaseModel) -> JSONResponse:
    return JSONResponse(told.model_dump(by_alias=True, exclude_none=True))


def _id_of(name: str, models: Models) -> str:
    versions = models.q_models.routes.reachable(name)
    if name == DEFAULT or not versions:
        with suppress(UnknownModelError):
            return models.find_policy(name).name
    elif len(versions) == 1:
        return versions.pop()
    names = [*models.policies, *sorted(models.q_models.routes.aliases)]
    raise UnknownModelError(f"there is no single model {name!r}; this server has {', '.join(names)}")


def model_list(models: Models) -> ModelList:
    """The served models and their aliases."""
    routes = models.q_models.routes
    default = routes.reachable(DEFAULT)
    return ModelList(
        data=[
            _card(
                policy,
                models.started_at,
                id=policy.name,
                kind="policy",
                version=None,
                owned_by=policy.name if policy.upstream_model else _OURSELVES,
                default=policy is models.policy,
                judge=None,
            )
            for policy in models.policies.values()
        ],
        q_models=[
            _card(
                model,
                models.started_at,
                id=model.id,
                kind="q_model",
                version=model.version,
                owned_by=_OURSELVES,
                default=model.id in default,
                prior=PriorCard.of(model.manifest),
                judge=model.prompted,
            )
            for model in models.q_models
        ],
        aliases={name: next(iter(to)) for name, to in routes.aliases.items() if len(to) == 1},
        splits={name: dict(to) for name, to in routes.aliases.items() if len(to) > 1},
        shadows=dict(routes.shadows),
    )


def _card(model: ServedPolicy | ServedQModel, created: int, *, id: str, **own: Any) -> ModelCard:
    manifest = model.manifest
    licence = manifest.licence if manifest else None
    return ModelCard(
        id=id,
        display_name=id,
        name=model.name,
        created=created,
        created_at=datetime.fromtimestamp(created, UTC),
        source=model.source,
        context=model.context,
        max_model_len=model.context,
        max_input_tokens=model.context,
        checkpoint=manifest.name if manifest else None,
        environment=manifest.environment if manifest else None,
        read_at=manifest.read_at or None if manifest else None,
        licensed=licence.granted if licence else None,
        licence=licence.reason if licence else None,
        target=manifest.target or None if manifest else None,
        metrics=manifest.metrics if manifest else {},
        **own,
    )


orders = APIRouter(prefix="/v1/models", tags=["admin"], dependencies=[Depends(require_admin)], route_class=BodyRoute)
"""Served where the operator allows it (`QGUIDE_ADMIN`); every change is answered with the models after it.

With API keys they need an admin key; without keys the server must be bound to loopback. A refused change has no effect.
"""


@orders.post("/load")
async def load_q_model(body: LoadRequest, models: ModelsDep) -> ModelList:
    """Verify a checkpoint and serve it, in addition to the others or in place of one."""
    await serve_folder(
        models, body.folder, name=body.name, version=body.version, replacing=body.replace, unlicensed=body.unlicensed
    )
    _log.info("q_model_loaded", name=body.name, version=body.version, replace=body.replace)
    return model_list(models)


@orders.post("/drop")
async def drop_q_model(body: DropRequest, models: ModelsDep) -> ModelList:
    """Stop serving a version; running requests still complete with it."""
    models.q_models.change(models.q_models.routes.drop(body.q_model))
    _log.info("q_model_dropped", q_model=body.q_model)
    return model_list(models)


@orders.post("/alias")
async def move_alias(body: AliasRequest, models: ModelsDep) -> ModelList:
    """Point an alias to another Q model, split its episodes or remove it, from the next request."""
    to = None if body.to is None else shares_of(body.to)
    models.q_models.change(models.q_models.routes.move(body.alias, to))
    _log.info("alias_moved", alias=body.alias, to=to)
    return model_list(models)


@orders.post("/shadow")
async def set_shadow(body: ShadowRequest, models: ModelsDep) -> ModelList:
    """Let a second Q model score the same requests, without effect on the answers."""
    models.q_models.change(models.q_models.routes.shadow(body.q_model, body.shadow))
    _log.info("shadow_set", q_model=body.q_model, shadow=body.shadow)
    return model_list(models)
