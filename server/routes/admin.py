"""POST /v1/models/…: load, drop, alias and shadow Q models at run time (`QGUIDE_ADMIN`).

With API keys these routes need an admin key; without keys the server must be bound to loopback.
Every change is answered with the models served after it. A refused change has no effect.
"""

import structlog
from fastapi import APIRouter, Depends

from qguide.server.http.admission import require_admin
from qguide.server.http.bodies import BodyRoute
from qguide.server.q_models.aliases import shares_of
from qguide.server.q_models.build import serve_folder
from qguide.server.q_models.schemas import AliasRequest, DropRequest, LoadRequest, ModelList, ShadowRequest
from qguide.server.routes.dependencies import ModelsDep, SettingsDep
from qguide.server.routes.models import model_list

_log = structlog.get_logger(__name__)

router = APIRouter(prefix="/v1/models", tags=["admin"], dependencies=[Depends(require_admin)], route_class=BodyRoute)


@router.post("/load")
async def load_q_model(body: LoadRequest, settings: SettingsDep, models: ModelsDep) -> ModelList:
    """Verify a checkpoint and serve it, in addition to the others or in place of one."""
    await serve_folder(
        models,
        settings,
        body.folder,
        name=body.name,
        version=body.version,
        replacing=body.replace,
        unlicensed=body.unlicensed,
    )
    _log.info("q_model_loaded", name=body.name, version=body.version, replace=body.replace)
    return model_list(models)


@router.post("/drop")
async def drop_q_model(body: DropRequest, models: ModelsDep) -> ModelList:
    """Stop serving a version; running requests still complete with it."""
    models.q_models.drop(body.q_model)
    _log.info("q_model_dropped", q_model=body.q_model)
    return model_list(models)


@router.post("/alias")
async def move_alias(body: AliasRequest, models: ModelsDep) -> ModelList:
    """Point an alias to another Q model, split its episodes or remove it, from the next request."""
    to = None if body.to is None else shares_of(body.to)
    models.q_models.move(body.alias, to)
    _log.info("alias_moved", alias=body.alias, to=to)
    return model_list(models)


@router.post("/shadow")
async def set_shadow(body: ShadowRequest, models: ModelsDep) -> ModelList:
    """Let a second Q model score the same requests, without effect on the answers."""
    models.q_models.shadow(body.q_model, body.shadow)
    _log.info("shadow_set", q_model=body.q_model, shadow=body.shadow)
    return model_list(models)
