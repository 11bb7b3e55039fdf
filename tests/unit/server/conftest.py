"""Servers in this process: with the fakes that ship, or with tiny random models."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import Policy, TaskMarker
from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.observability.exposition import Exposition
from qguide.server.observability.metrics import Metrics
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models, QModels
from qguide.server.q_models.served import Runtime, ServedPolicy
from qguide.server.q_models.threaded import QModel, ScorerSource
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.tiny_models import CONTEXT, policy_model, q_model

FAKES = Settings(
    policy=SCRIPTED,
    q_models={"demo": SCRIPTED, "other": SCRIPTED},
    task_markers=(TaskMarker("Your task is to:"),),
    max_candidates=8,
    timeout_s=30,
    unknown_models="error",
)

SERVED = Settings(q_models={"q": SCRIPTED}, unknown_models="error", timeout_s=30, max_batch_tokens=2048)
"""Settings of models that a test makes itself."""

Serve = Callable[..., TestClient]


def models_of(policy: Policy, scorer: CachingScorer, thread: DeviceThread) -> Models:
    """One policy and one Q model on one device thread."""
    runtime = Runtime(thread, DeviceThread(), Metrics(), SERVED)
    q_models = QModels(runtime.metrics)
    model = QModel(scorer.name, "0", ScorerSource(lambda: scorer, "checkpoint"), runtime)
    model.open()
    q_models.add(model)
    q_models.configure({"default": {scorer.name: 1.0}}, {})
    return Models(runtime, ServedPolicy(policy.name, policy, "checkpoint", CONTEXT), q_models)


@pytest.fixture(autouse=True)
def _fresh_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scrape sees what was counted before it; a server keeps its page for a second."""
    monkeypatch.setattr("qguide.server.app.Exposition", partial(Exposition, kept_s=0.0))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server for these settings; it stops when the test ends."""
    with ExitStack() as stack:

        def start(settings: Settings = FAKES, build: Callable[[Settings], Models] = build_models) -> TestClient:
            app = create_app(settings, build=build)
            return stack.enter_context(TestClient(app, "http://127.0.0.1", raise_server_exceptions=False))

        yield start


@pytest.fixture
def client(serve: Serve) -> TestClient:
    """A server of fakes."""
    return serve()


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """The OpenAPI document of a server of fakes."""
    return create_app(FAKES).openapi()


@pytest.fixture
def tiny_client(serve: Serve) -> TestClient:
    """A server of tiny random models, with the real policy and the real scorer."""

    def build(_: Settings) -> Models:
        thread = DeviceThread()
        policy = LocalPolicy(policy_model(), thread=thread)
        return models_of(policy, SharedPrefixScorer(q_model()), thread)

    return serve(build=build)


def settings_of(url: str, **more: Any) -> Settings:
    """The fakes, with the upstream at this address as the policy."""
    served = Upstream.model_validate({"url": url, "model": "fake-1", "retries": 0})
    return FAKES.model_copy(update={"upstreams": {"demo": served}, "policy": "demo"} | more)


@pytest.fixture
def guided(serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream) -> TestClient:
    """A server in front of the fake upstream, with the scripted Q model."""
    return serve(settings_of(address[1]))
