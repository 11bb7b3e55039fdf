"""Liveness, readiness and metrics."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from server.dependencies import ModelsDep, TelemetryDep
from server.schemas import Health

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def live() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health}})
async def ready(models: ModelsDep, response: Response) -> Health:
    """Requests can be served; 503 where a thread that serves them is dead."""
    if models.healthy:
        return Health(status="ok")
    response.status_code = 503
    response.headers["Retry-After"] = "1"
    return Health(status="unavailable", reason="a thread that scores is dead; restart the server")


@router.get("/metrics", response_class=Response)
async def metrics(telemetry: TelemetryDep) -> Response:
    """Prometheus text format."""
    return Response(generate_latest(telemetry.registry), media_type=CONTENT_TYPE_LATEST)
