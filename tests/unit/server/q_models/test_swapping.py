"""Versions come and go while requests run: none fails, none mixes two, nothing stays behind."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.models.checkpoint import load_q_model, load_qnet
from qguide.qnet.models.ensemble import save_ensemble
from qguide.qnet.scoring.rendered_requests import RenderedRequest
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.types import Message, ScoreRequest, ScoreResult
from qguide.server.app import create_app
from qguide.server.q_models import build as builders
from qguide.server.q_models.build import build_models, build_runtime
from qguide.server.q_models.registry import Models, QModels
from qguide.server.q_models.served import ServedQModel
from qguide.server.q_models.threaded import QModel, ScorerSource
from qguide.server.settings.settings import SCRIPTED, Settings
from qguide.training.rollouts.models import Inference, build_scorer
from tests.support.tiny_models import q_model, save_features, save_policy, save_qnet

VERSIONS = ("v1", "v2", "v3")
CANDIDATES = ("Action: take mug", "go to desk", "open shelf")
HISTORIES = [f"you see a desk {'and a mug ' * n}" for n in range(4)]
REQUEST = ScoreRequest((Message("user", "you see a mug on the shelf " * 4),), (Message("assistant", "go"),))


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint per version, all with different weights."""
    folder = tmp_path_factory.mktemp("models")
    for seed, version in enumerate(VERSIONS):
        trunk = save_policy(folder / f"trunk-{version}", seed=seed)
        save_qnet(folder / version, trunk)
    return folder


@pytest.fixture(scope="module")
def expected(models_dir: Path) -> dict[tuple[str, str], tuple[float, ...]]:
    """Q-values of each version for each history, by the reference scorer."""
    said = tuple(Message("assistant", text) for text in CANDIDATES)
    found = {}
    for version in VERSIONS:
        naive = NaiveScorer(load_qnet(models_dir / version))
        for text in HISTORIES:
            [result] = naive.score([ScoreRequest((Message("user", text),), said)])
            found[version, text] = result.q_values
    return found


def settings_of(models_dir: Path, **more: Any) -> Settings:
    first = {"shop@v1": str(models_dir / "v1")}
    return Settings(policy=SCRIPTED, q_models=first, models_dir=models_dir, admin=True, **more)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Models]]:
    """A client in the server's own event loop, and what it serves."""
    app = create_app(settings, build=build_models)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client, app.state.models


def scorer_of(model: ServedQModel) -> SharedPrefixScorer:
    assert isinstance(model, QModel)
    scorer = model._resident._scorer
    assert isinstance(scorer, SharedPrefixScorer)
    return scorer


async def settle(*threads: DeviceThread) -> None:
    """Wait until what was queued on the threads so far has run."""
    for thread in threads:
        await asyncio.wrap_future(thread.call(lambda: None))


async def test_versions_are_swapped_and_dropped_under_load(
    models_dir: Path, expected: dict[tuple[str, str], tuple[float, ...]]
) -> None:
    answers: list[tuple[str, httpx.Response]] = []
    done = asyncio.Event()

    async def ask(client: httpx.AsyncClient, text: str) -> None:
        while not done.is_set():
            body = {"messages": [{"role": "user", "content": text}], "candidates": CANDIDATES}
            answers.append((text, await client.post("/v1/score", json=body)))

    async def change(client: httpx.AsyncClient, path: str, **body: Any) -> None:
        before = len(answers)
        response = await client.post(f"/v1/models/{path}", json=body)
        assert response.status_code == 200, response.text
        while len(answers) < before + 8:
            await asyncio.sleep(0.005)

    async with serving(settings_of(models_dir)) as (client, models):
        asking = [asyncio.create_task(ask(client, text)) for text in HISTORIES * 2]
        while len(answers) < 8:
            await asyncio.sleep(0.005)
        [first] = models.q_models
        store = scorer_of(first)._packed.store
        scorer, weights = weakref.ref(scorer_of(first)), weakref.ref(scorer_of(first)._loaded.model)
        assert store.nbytes > 0
        await change(client, "load", folder="v2", name="shop", version="v2", replace=True)
        await change(client, "load", folder="v3", name="shop", version="v3")
        await change(client, "alias", alias="shop", to="shop@v3")
        await change(client, "drop", q_model="shop@v2")
        done.set()
        await asyncio.gather(*asking)
        await settle(models.runtime.thread, models.runtime.shadow_thread)
        assert (store.nbytes, scorer(), weights()) == (0, None, None)
        assert [model.id for model in models.q_models] == ["shop@v3"]
        metrics = (await client.get("/metrics")).text

    assert {response.status_code for _, response in answers} == {200}
    versions = [response.json()["q_model_version"] for _, response in answers]
    assert set(versions) == set(VERSIONS)
    for (text, response), version in zip(answers, versions, strict=True):
        q_values = [score["q_value"] for score in response.json()["scores"]]
        for other in VERSIONS:
            same = q_values == pytest.approx(expected[other, text], abs=1e-5)
            assert same == (other == version)
    assert 'q_model="shop@v3"' in metrics
    assert 'q_model="shop@v1"' not in metrics
    assert 'q_model="shop@v2"' not in metrics


async def test_a_sum_of_kinds_is_loaded_shadowed_and_acts(models_dir: Path) -> None:
    features = save_features(models_dir / "features")
    save_ensemble(models_dir / "sum", [features, models_dir / "v2"], name="sum", spreads=(0.5, 0.25))
    body = {"messages": [{"role": "user", "content": HISTORIES[1]}], "num_candidates": 3, "out_of_domain": "guide"}
    async with serving(settings_of(models_dir)) as (client, _):
        for path, sent in (
            ("load", {"folder": "sum", "name": "sum", "version": "v1"}),
            ("shadow", {"q_model": "shop", "shadow": "sum"}),
        ):
            response = await client.post(f"/v1/models/{path}", json=sent)
            assert response.status_code == 200, response.text
        shadowed = (await client.post("/v1/act", json=body)).json()
        acted = (await client.post("/v1/act", json=body | {"q_model": "sum"})).json()

    assert (shadowed["q_model"], acted["q_model"], acted["guided"]) == ("shop", "sum", True)
    said = tuple(Message("assistant", one["message"]["content"]) for one in acted["candidates"])
    request = ScoreRequest((Message("user", HISTORIES[1]),), said)
    [[first], [second]] = [
        build_scorer(str(folder), Inference()).score([request]) for folder in (features, models_dir / "v2")
    ]
    expected = [(a + 2 * b) / 2 for a, b in zip(first.q_values, second.q_values, strict=True)]
    assert [one["q_value"] for one in acted["candidates"]] == pytest.approx(expected, abs=1e-5)


class GatedScorer(SharedPrefixScorer):
    """A real scorer that works while its gate is open."""

    def __init__(self) -> None:
        super().__init__(q_model())
        self.gate, self.entered = Event(), Event()

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """Wait for the gate, then score."""
        self.entered.set()
        assert self.gate.wait(30)
        return super().slices(prepared)


@asynccontextmanager
async def gated(timeout_s: float = 30) -> AsyncIterator[tuple[GatedScorer, QModels, Any]]:
    """A gated Q model `old@1` and another, the default."""
    runtime = build_runtime(Settings(timeout_s=timeout_s))
    models = QModels(runtime.metrics)
    scorer = GatedScorer()
    for name, build in (("old", lambda: scorer), ("new", lambda: SharedPrefixScorer(q_model()))):
        model = QModel(name, "1", ScorerSource(build, "checkpoint"), runtime)
        await asyncio.to_thread(model.open)
        models.add(model)
    try:
        yield scorer, models, runtime.thread
    finally:
        scorer.gate.set()
        runtime.thread.close()
        runtime.shadow_thread.close()


async def test_a_request_ends_with_the_version_it_began_with_and_then_its_cache_goes() -> None:
    async with gated() as (scorer, models, thread):
        scorer.gate.set()
        store = scorer._packed.store
        with models.hold("old") as held:
            models.change(models.routes.drop("old@1"))
            assert "old" not in models.routes
            result = await held.score(REQUEST)
            await settle(thread)
            assert store.nbytes > 0
            again = await held.score(REQUEST)
        await settle(thread)
        assert store.nbytes == 0
    assert again.cached_tokens > 0
    assert again.q_values == pytest.approx(result.q_values, abs=1e-5)
    [alone] = NaiveScorer(q_model()).score([REQUEST])
    assert result.q_values == pytest.approx(alone.q_values, abs=1e-5)


async def test_a_cache_goes_even_where_the_device_outlasts_the_request() -> None:
    async with gated(timeout_s=1.0) as (scorer, models, thread):
        store = scorer._packed.store
        with models.hold("old") as held, pytest.raises(ScorerUnavailableError, match=r"1\.0 s"):
            await held.score(REQUEST)
        assert scorer.entered.is_set()
        models.change(models.routes.drop("old@1"))
        scorer.gate.set()
        await settle(thread)
        assert (len(store), store.nbytes) == (0, 0)


async def test_requests_are_answered_while_a_checkpoint_loads(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = Event(), Event()

    def slow(*args: Any, **options: Any) -> Any:
        entered.set()
        assert gate.wait(30)
        return load_q_model(*args, **options)

    async with serving(settings_of(models_dir)) as (client, _):
        monkeypatch.setattr("qguide.server.q_models.local_models.load_q_model", slow)
        body = {"folder": "v2", "name": "shop"}
        loaded = asyncio.create_task(client.post("/v1/models/load", json=body))
        await asyncio.to_thread(entered.wait, 30)
        score = {"messages": [{"role": "user", "content": "go"}], "candidates": ["open"]}
        assert (await client.post("/v1/score", json=score)).status_code == 200
        assert not loaded.done()
        gate.set()
        assert (await loaded).status_code == 200


async def test_a_load_whose_caller_hangs_up_leaves_no_series_and_no_weights(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered, opened = Event(), Event(), Event()
    weights: list[weakref.ref[Any]] = []

    def slow(*args: Any, **options: Any) -> Any:
        entered.set()
        assert gate.wait(30)
        loaded = load_q_model(*args, **options)
        weights.append(weakref.ref(loaded.model))
        return loaded

    whole = builders.open_q_model

    def open_q_model(*args: Any, **options: Any) -> ServedQModel:
        try:
            return whole(*args, **options)
        finally:
            opened.set()

    async with serving(settings_of(models_dir)) as (client, models):
        monkeypatch.setattr("qguide.server.q_models.local_models.load_q_model", slow)
        monkeypatch.setattr("qguide.server.q_models.build.open_q_model", open_q_model)
        body = {"folder": "v2", "name": "shop", "version": "v2"}
        loading = asyncio.create_task(client.post("/v1/models/load", json=body))
        await asyncio.to_thread(entered.wait, 30)
        loading.cancel()
        gate.set()
        await asyncio.to_thread(opened.wait, 30)
        await asyncio.gather(loading, return_exceptions=True)
        await settle(models.runtime.thread, models.runtime.shadow_thread)
        assert [model.id for model in models.q_models] == ["shop@v1"]
        assert 'q_model="shop@v2"' not in (await client.get("/metrics")).text
        assert [weight() for weight in weights] == [None]
        monkeypatch.undo()
        answer = await client.post("/v1/models/load", json=body)
        assert answer.status_code == 200, answer.text
