"""Liveness, readiness and metrics."""

from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from qguide.server.http.admission import Caller
from qguide.server.http.errors import ForbiddenError
from qguide.server.own_bodies.answers import Health, Version
from qguide.server.routes.dependencies import DrainDep, ExpositionDep, ModelsDep, SettingsDep, UpstreamsDep, VllmDep
from qguide.server.settings.settings import VLLM

router = APIRouter(tags=["operation"])

_DEAD: Final = "a scoring thread is dead; restart the server"


@router.get("/healthz", responses={503: {"model": Health}})
@router.get("/health", include_in_schema=False)  # the name that vLLM has for it
async def live(models: ModelsDep, response: Response) -> Health:
    """Liveness: 503 if only a restart would help.

    If only the separate thread of one Q model has died, the server is alive but not ready.
    """
    if models.runtime.thread.healthy:
        return Health(status="ok")
    response.status_code = 503
    return Health(status="unavailable", reason=_DEAD)


@router.get("/readyz", responses={503: {"model": Health}})
async def ready(
    models: ModelsDep,
    drain: DrainDep,
    settings: SettingsDep,
    upstreams: UpstreamsDep,
    vllm: VllmDep,
    response: Response,
) -> Health:
    """Readiness: 503 if this replica cannot serve or is shutting down.

    Upstreams appear only in the details: other replicas depend on the same ones, and not every request needs them. A
    vLLM that this server started counts as part of it.
    """
    details, redis = upstreams.details, models.runtime.redis
    if redis is not None:
        details["redis"] = "ok" if redis.up else "down; falling back to memory until it is back"
    if drain.draining:
        reason = "the server is shutting down; another replica will answer"
    elif not models.healthy:
        reason = _DEAD
    elif vllm is not None and vllm.is_lost:
        reason = "its vLLM exited or stopped answering; it is being restarted"
    elif settings.vllm and upstreams.is_gone(VLLM):
        reason = "its vLLM does not answer; it is restarted after QGUIDE_VLLM_SILENT_S"
    else:
        return Health(status="ok", details=details)
    response.status_code = 503
    response.headers["Retry-After"] = "1"
    return Health(status="unavailable", reason=reason, details=details)


@router.get("/version")
async def version(request: Request) -> Version:
    """Version of the server."""
    return Version(version=request.app.version)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, exposition: ExpositionDep, settings: SettingsDep) -> Response:
    """Metrics in Prometheus text format; of keys and groups the caller's own, and all for admin keys."""
    reader: Caller | None = getattr(request.state, "metrics_reader", None)  # None: open to all (`public_metrics`)
    if reader is None or reader.all_metrics:
        return Response(await exposition.page(), media_type=CONTENT_TYPE_LATEST)
    if settings.admin_metrics:
        raise ForbiddenError(
            f"the key {reader.name!r} may not read the metrics (QGUIDE_ADMIN_METRICS); create one with "
            "`qguide keys create NAME --metrics`"
        )
    return Response(await exposition.page(reader.name), media_type=CONTENT_TYPE_LATEST)
