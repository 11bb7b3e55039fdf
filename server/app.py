"""The application: settings in, routes out."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from qnet.perturbation import MemoryParaphraseCache, Paraphraser
from server.episodes.service import build_episodes
from server.errors import install_error_handlers
from server.middleware import BodyLimit, observe
from server.models import Models, build_models
from server.routes import act, admin, chat, episodes, health, rerank, score
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

    Raises:
        ConfigError: the redaction hook cannot be imported.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models = build(settings)
        app.state.models = models
        app.state.paraphraser = build_paraphraser(models)
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
    app.state.episodes = build_episodes(settings)
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    app.middleware("http")(observe)
    install_error_handlers(app)
    for module in (act, score, rerank, chat, episodes, models_route, health):
        app.include_router(module.router)
    if settings.admin:
        app.include_router(admin.router)
    return app


def build_paraphraser(models: Models) -> Paraphraser | None:
    """What rewords tasks, and what it said so far; None where the operator named no policy."""
    if models.paraphraser is None:
        return None
    return Paraphraser(models.paraphraser.model, MemoryParaphraseCache())
