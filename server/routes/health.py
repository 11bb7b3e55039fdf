"""Liveness, readiness and metrics."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from server.dependencies import DrainDep, ModelsDep, TelemetryDep
from server.models import Models
from server.schemas import Health

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def live() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health}})
async def ready(models: ModelsDep, drain: DrainDep, response: Response) -> Health:
    """Requests can be served; 503 where a thread that serves them is dead, and before the end."""
    if drain.draining:
        reason = "the server is about to end; another will answer"
    elif not models.healthy:
        reason = "a thread that scores is dead; restart the server"
    else:
        return Health(status="ok", details=_details(models))
    response.status_code = 503
    response.headers["Retry-After"] = "1"
    return Health(status="unavailable", reason=reason, details=_details(models))


@router.get("/metrics", response_class=Response)
async def metrics(telemetry: TelemetryDep) -> Response:
    """Prometheus text format."""
    return Response(generate_latest(telemetry.registry), media_type=CONTENT_TYPE_LATEST)


def _details(models: Models) -> dict[str, str]:
    redis = models.runtime.redis
    if redis is None:
        return {}
    return {"redis": "ok" if redis.up else "gone; memory serves until it is back"}
