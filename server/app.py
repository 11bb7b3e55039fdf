"""The FastAPI application, built from settings."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel
from starlette.routing import BaseRoute, WebSocketRoute

from qguide.qnet.decision.perturbation import Paraphraser
from qguide.server.episodes.archive import EpisodeArchive
from qguide.server.episodes.service import Episodes, build_recorder, build_store, outlasting
from qguide.server.http.admission import AdmissionMiddleware, Limiter, RateLimits, TrustedHosts, declare_keys
from qguide.server.http.bodies import BodyReader
from qguide.server.http.error_table import STATUSES, install_error_handlers
from qguide.server.http.errors import RATE_LIMIT_HEADERS
from qguide.server.http.event_stream import described_errors
from qguide.server.http.keys import KeyFile
from qguide.server.http.long_bodies import LongBodies
from qguide.server.http.middleware import ID_HEADERS, Addresses, CancelWhenGone, Drain, Observe
from qguide.server.learning.service import Learning
from qguide.server.observability.exposition import Exposition
from qguide.server.own_bodies.answers import ErrorBody
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import MeteredPolicy
from qguide.server.redis.client import SharedRows
from qguide.server.responses.socket import ResponsesSockets
from qguide.server.responses.stored import build_stored
from qguide.server.routes import (
    act,
    anthropic,
    chat,
    episodes,
    gemini,
    health,
    ollama,
    pages,
    pass_through,
    rerank,
    responses,
)
from qguide.server.routes import learning as learning_route
from qguide.server.routes import models as models_route
from qguide.server.routes.dependencies import DirectRoute
from qguide.server.routes.pages import Games
from qguide.server.settings.settings import Settings
from qguide.server.upstreams.health import UpstreamWatch
from qguide.server.upstreams.vllm_process import VllmProcess

_PARAPHRASES_TTL_S: Final = 7 * 24 * 3600.0
_DIALECTS: Final = tuple(module.DIALECT for module in (chat, responses, anthropic, gemini, ollama))


def create_app(
    settings: Settings,
    *,
    build: Callable[[Settings], Models] = build_models,
    vllm: VllmProcess | None = None,
    games: Games | None = None,
) -> FastAPI:
    """Create the application; models are loaded at startup, not here.

    Args:
        vllm: the vLLM child process of this server; readiness is red while it is lost.
        games: games for the playground's race; None if there are none.
    """
    app = _Application(
        title="QGuide",
        version=version("qguide"),
        description="A value function for any LLM agent.",
        lifespan=_lifespan(settings, build),
        # A redirect that adds or removes a trailing slash would be built from the Host header.
        redirect_slashes=False,
        # Their own pages need a CDN; see qguide.server.routes.pages.
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.vllm = vllm
    app.state.drain = Drain()
    folder = settings.episodes_folder
    app.state.archive = EpisodeArchive(folder) if folder else None
    app.state.games = games
    app.state.keys = KeyFile(settings.keys_file) if settings.keys_file else None
    _surround(app, settings)
    install_error_handlers(app, _DIALECTS)
    app.state.routes, included = _routes(
        admin=settings.admin,
        learns=settings.learn,
        plays=settings.playground,
        passes=bool(settings.pass_through),
        races=games is not None,
    )
    app.router.routes += included
    if settings.websockets_per_key:
        # All paths: the application finds out which of them a connection's requests mean.
        app.router.routes.append(WebSocketRoute("/{path:text}", ResponsesSockets(settings)))
    app.router.routes[:0] = _direct_routes()
    return app


@cache
def _routes(
    *, admin: bool, learns: bool, plays: bool, passes: bool, races: bool
) -> tuple[Sequence[BaseRoute], Sequence[BaseRoute]]:
    """The routes of such a server, and these with the errors that all describe.

    Made once a process: FastAPI prepares them at the first request, which is ten times as long as another.
    """
    routers = [one.router for one in (act, rerank, *_DIALECTS, episodes, models_route, health)] + [pages.docs]
    routers += [models_route.orders, episodes.recorded] if admin else []
    routers += [learning_route.router] if learns else []
    routers += [pages.playground] if plays else []
    routers += [pass_through.router] if passes else []
    routers += [pages.games] if races else []
    routers += [learning_route.orders] if learns and admin else []
    whole = APIRouter(responses=described_errors(ErrorBody, STATUSES))
    for router in routers:
        whole.include_router(router)
    return [route for router in routers for route in router.routes], whole.routes


@cache
def _direct_routes() -> Sequence[DirectRoute]:
    found = [*act.router.routes, *chat.router.routes]
    routes = {route.path: route for route in found if isinstance(route, APIRoute)}
    return [DirectRoute(routes[path]) for path in ("/v1/act", "/v1/score", "/v1/chat/completions")]


class _Application(FastAPI):
    """FastAPI, with a document that also has the schemas of errors and of the streams' events."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document; FastAPI itself collects no model that is only named."""
        if self.openapi_schema is None:
            components = super().openapi()["components"]
            schemas = components["schemas"] | _schemas_of((ErrorBody, *(one.error_body for one in _DIALECTS)))
            schemas = dict(sorted(schemas.items()))
            components["schemas"] = schemas | _schemas_of(one.event for one in _DIALECTS if one.event) | schemas
            declare_keys(super().openapi(), required=self.state.keys is not None)
        return super().openapi()


def _schemas_of(models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for model in models:
        written = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found |= written.pop("$defs", {}) | {model.__name__: written}
    return {name: jsonable_encoder(schema, exclude_none=True) for name, schema in found.items()}


def _lifespan(
    settings: Settings, build: Callable[[Settings], Models]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    recorder = build_recorder(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models = build(settings)
        app.state.models = models
        app.state.paraphraser = build_paraphraser(models, settings)
        app.state.metrics = models.runtime.metrics
        app.state.exposition = Exposition(models.runtime.metrics, settings)
        redis = models.runtime.redis
        folder = settings.episodes_folder
        app.state.learning = learning = Learning(models, folder) if settings.learn and folder else None
        store = build_store(settings, redis)
        app.state.episodes = Episodes(
            store,
            recorder,
            models.runtime.metrics,
            settings=settings,
            ended=learning.ended if learning else None,
            heard=learning.heard if learning else None,
        )
        app.state.long_bodies = long_bodies = LongBodies()
        app.state.stored = build_stored(settings, redis, long_bodies)
        app.state.limiter = Limiter(redis, concurrent_requests=settings.concurrent_requests)
        models.runtime.metrics.watch_load(
            waiting=lambda: models.waiting,
            running=lambda: max(0, app.state.limiter.running - models.waiting),
            cache_share=lambda: models.cached_bytes / max(1, settings.most_cache_bytes),
        )
        app.state.game_threads = games = ThreadPoolExecutor(pages.GAMES_AT_ONCE, thread_name_prefix="game")
        app.state.upstreams = upstreams = UpstreamWatch(tuple(models.remote.values()), models.runtime.metrics)
        try:
            async with (
                redis.watched() if redis else nullcontext(),
                upstreams.watched(),
                learning.watched() if learning else nullcontext(),
                outlasting(app.state.episodes, store, settings),
            ):
                yield
                await app.state.episodes.settle()
        finally:
            games.shutdown(wait=False, cancel_futures=True)
            long_bodies.close()
            await models.close()

    return lifespan


def build_paraphraser(models: Models, settings: Settings) -> Paraphraser | None:
    """The paraphraser and its cache; None if no paraphraser is configured."""
    if (served := models.paraphraser) is None:
        return None
    manifest = served.manifest.model_dump_json() if served.manifest else ""
    return Paraphraser(
        MeteredPolicy(served.model, models.runtime.metrics, stage="paraphrase"),
        SharedRows(models.runtime.redis, "paraphrases", ttl_s=_PARAPHRASES_TTL_S),
        content=served.upstream_model or manifest,
        max_tokens=settings.paraphrase_max_tokens or None,
    )


def _surround(app: FastAPI, settings: Settings) -> None:
    """Add the middleware; the one added last is outermost."""
    app.add_middleware(CancelWhenGone)
    app.add_middleware(RateLimits)
    app.add_middleware(BodyReader, max_body_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
    app.add_middleware(AdmissionMiddleware, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[*RATE_LIMIT_HEADERS, "Retry-After", *ID_HEADERS, "X-QGuide-Replica"],
        )
    unversioned = [path for one in _DIALECTS for path in one.unversioned]
    app.add_middleware(Addresses, unversioned=unversioned)  # before admission, which decides by the path
    app.add_middleware(TrustedHosts, settings=settings)
    app.add_middleware(Observe)
