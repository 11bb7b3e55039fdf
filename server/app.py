"""The application: settings in, routes out."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from server.errors import install_error_handlers
from server.middleware import BodyLimit, observe
from server.models import Models, build_models
from server.routes import act, admin, chat, health, score
from server.routes import models as models_route
from server.schemas import ErrorBody
from server.settings import Settings

ERROR_STATUSES = (400, 404, 409, 413, 422, 500, 502, 503, 504)


def create_app(
    settings: Settings, *, build: Callable[[Settings], Models] = build_models
) -> FastAPI:
    """The server; models are loaded when it starts, not when it is created.

    Args:
        settings: what the operator configured.
        build: loads the models; tests bring their own.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models = build(settings)
        app.state.models = models
        app.state.telemetry = models.runtime.telemetry
        try:
            yield
        finally:
            await models.close()

    app = FastAPI(
        title="QGuide",
        version=version("qguide"),
        description="A value function for any LLM agent.",
        lifespan=lifespan,
        responses={
            status: {"model": ErrorBody} for status in (400, 404, 409, 413, 422, 500, 502, 503, 504)
        },
    )
    app.state.settings = settings
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    app.middleware("http")(observe)
    install_error_handlers(app)
    for module in (act, score, chat, models_route, health):
        app.include_router(module.router)
    if settings.admin:
        app.include_router(admin.router)
    return app
