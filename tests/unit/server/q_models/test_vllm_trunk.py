"""A Q model whose trunk runs elsewhere is served like any other and delays no other."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from qguide.qnet.errors import ConfigError, RoutingError
from qguide.qnet.models.checkpoint import load_qnet
from qguide.qnet.models.remote_trunk import load_remote_trunk
from qguide.qnet.models.trunk_export import export_trunk
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.scoring.vllm import VllmScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.server.app import create_app
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import ServedQModel
from qguide.server.q_models.threaded import QModel
from qguide.server.settings.remote_models import VllmTrunk
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.scripted_vllm import ScriptedVllm, scripted_vllm
from tests.support.tiny_models import CONTEXT, save_policy, save_qnet
from tests.unit.server.conftest import Serve

MESSAGES = [{"role": "user", "content": "go to desk take mug from shelf open Action : you see"}]
CANDIDATES = ["go to desk", "take mug"]
REQUEST = ScoreRequest(
    (Message("user", MESSAGES[0]["content"]),), tuple(Message("assistant", text) for text in CANDIDATES)
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("q")
    saved = save_qnet(folder / "qnet", save_policy(folder / "policy"))
    export_trunk(saved, folder / "trunk")
    return saved


@pytest.fixture
def vllm(checkpoint: Path) -> Iterator[ScriptedVllm]:
    name = load_remote_trunk(checkpoint).trunk_name
    with scripted_vllm(checkpoint.parent / "trunk", model=name, context=CONTEXT) as server:
        yield server


def settings_of(checkpoint: Path, vllm: ScriptedVllm, *, trunk: str = "big", **more: Any) -> Settings:
    return Settings(
        policy=SCRIPTED,
        q_models={"big@v1": str(checkpoint), "demo": SCRIPTED},
        vllm_trunks={trunk: VllmTrunk.model_validate({"url": vllm.url, "api_key": "key"})},
        default_q_model="demo",
        timeout_s=30,
        **more,
    )


def body(q_model: str) -> dict[str, object]:
    return {"messages": MESSAGES, "candidates": CANDIDATES, "q_model": q_model}


def on_threads(model: ServedQModel) -> QModel:
    assert isinstance(model, QModel)
    return model


def scorer_of(served: ServedQModel) -> VllmScorer:
    model = on_threads(served)
    scorer = model._resident._scorer
    assert isinstance(scorer, VllmScorer)
    return scorer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("trunk", ["big", "big@v1"])
def test_its_scores_are_the_naive_scorers(serve: Serve, checkpoint: Path, vllm: ScriptedVllm, trunk: str) -> None:
    client = serve(settings_of(checkpoint, vllm, trunk=trunk))
    answers = [client.post("/v1/score", json=body("big")).json() for _ in range(2)]
    [expected] = NaiveScorer(load_qnet(checkpoint)).score([REQUEST])
    found = [score["q_value"] for score in answers[0]["scores"]]
    assert found == pytest.approx(expected.q_values, abs=1e-5)
    assert answers[1]["usage"]["cached_tokens"] > answers[0]["usage"]["cached_tokens"]
    assert vllm.keys == {"Bearer key"}
    [card] = [c for c in client.get("/v1/models").json()["q_models"] if c["id"] == "big@v1"]
    assert (card["source"], card["context"], card["checkpoint"]) == ("vllm", CONTEXT, "tiny-q")


def test_a_server_that_fails_is_a_503_with_the_reason_and_without_the_address(
    serve: Serve, checkpoint: Path, vllm: ScriptedVllm
) -> None:
    client = serve(settings_of(checkpoint, vllm))
    vllm.fault = "status_500"
    answer = client.post("/v1/score", json=body("big"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "answered /pooling with 500" in answer.json()["error"]["message"]
    assert "127.0.0.1" not in answer.text
    assert "secret" not in answer.text
    vllm.fault = ""
    assert client.post("/v1/score", json=body("big")).status_code == 200
    assert client.get("/readyz").status_code == 200


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Models]]:
    """A server on this test's own loop, so that requests can overlap, and what it serves."""
    models = build_models(settings)
    app = create_app(settings, build=lambda _: models)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, models


async def test_a_silent_trunk_stalls_no_other_model(checkpoint: Path, vllm: ScriptedVllm) -> None:
    async with running(settings_of(checkpoint, vllm)) as (client, _):
        vllm.fault, vllm.faults_left = "silence", 1
        vllm.asked.clear()
        silent = asyncio.create_task(client.post("/v1/score", json=body("big")))
        while not vllm.asked:
            await asyncio.sleep(0.01)
        other = await client.post("/v1/score", json=body("demo"))
        assert other.status_code == 200
        assert not silent.done()
        vllm.released.set()
        assert (await silent).status_code in (200, 503)


async def test_as_an_arm_it_is_held_until_its_last_answer_and_then_closed(checkpoint: Path, vllm: ScriptedVllm) -> None:
    settings = settings_of(checkpoint, vllm, aliases={"trial": {"big@v1": 1, "demo": 1}})
    async with running(settings) as (client, models):
        [big, _] = models.q_models
        http, thread = scorer_of(big)._server._http, on_threads(big)._thread
        arms = set()
        for episode in range(20):
            scored = await client.post("/v1/score", json=body("trial") | {"episode_id": str(episode)})
            arms.add(scored.json()["q_model"])
        assert arms == {"big", "demo"}

        models.q_models.change(models.q_models.routes.move("trial", {"demo": 1}))
        with models.q_models.hold("big") as held:
            models.q_models.change(models.q_models.routes.drop("big@v1"))
            assert "big" not in models.q_models.routes
            assert not http.is_closed
            assert len((await held.score(REQUEST)).q_values) == len(CANDIDATES)
        await until(lambda: not thread.healthy)
        assert http.is_closed
        assert 'q_model="big@v1"' not in (await client.get("/metrics")).text
        assert (await client.post("/v1/score", json=body("trial"))).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


async def test_as_a_shadow_it_scores_again_and_its_own_client_is_closed_on_drop(
    checkpoint: Path, vllm: ScriptedVllm
) -> None:
    async with running(settings_of(checkpoint, vllm, shadows={"demo": "big"})) as (client, models):
        [big, _] = models.q_models
        vllm.asked.clear()
        assert (await client.post("/v1/score", json=body("demo"))).status_code == 200
        await until(lambda: not models.q_models._shadows._tasks)
        metrics = (await client.get("/metrics")).text
        assert 'qguide_shadow_requests_total{outcome="failed"' not in metrics
        assert vllm.asked[-1]["input"]
        again = on_threads(big)._shadow_resident._scorer
        assert isinstance(again, VllmScorer)
        models.q_models.change(models.q_models.routes.shadow("demo", None))
        models.q_models.change(models.q_models.routes.drop("big@v1"))
        await until(lambda: again._server._http.is_closed)


async def test_the_servers_end_closes_its_thread_and_client(checkpoint: Path, vllm: ScriptedVllm) -> None:
    async with running(settings_of(checkpoint, vllm)) as (_, models):
        [big, _] = models.q_models
        http = scorer_of(big)._server._http
        assert not http.is_closed
    assert http.is_closed
    assert not big.healthy


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_its_dead_thread_turns_readiness_red_until_it_is_dropped(
    checkpoint: Path, vllm: ScriptedVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemExit

    async with running(settings_of(checkpoint, vllm)) as (client, models):
        [big, _] = models.q_models
        http = scorer_of(big)._server._http
        monkeypatch.setattr(VllmScorer, "slices", die)
        assert (await client.post("/v1/score", json=body("big"))).status_code == 503
        await until(lambda: not big.healthy)
        red = await client.get("/readyz")
        assert (red.status_code, red.json()["status"]) == (503, "unavailable")
        assert (await client.get("/healthz")).status_code == 200  # the others are served
        assert (await client.post("/v1/score", json=body("demo"))).status_code == 200
        models.q_models.change(models.q_models.routes.drop("big@v1"))
        assert http.is_closed
        assert (await client.get("/readyz")).status_code == 200


def test_a_refused_server_start_closes_what_was_opened(
    checkpoint: Path, vllm: ScriptedVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[QModel] = []
    close = QModel.close

    def seen(model: QModel) -> None:
        closed.append(model)
        close(model)

    monkeypatch.setattr(QModel, "close", seen)
    with pytest.raises(RoutingError):
        build_models(settings_of(checkpoint, vllm, shadows={"demo": "nothing"}))
    assert [model.id for model in closed] == ["demo@0", "big@v1"]
    assert not closed[1].healthy


def test_weights_that_its_server_does_not_have_are_refused_by_load(
    serve: Serve, checkpoint: Path, vllm: ScriptedVllm
) -> None:
    other = checkpoint.parent / "other"
    if not other.exists():
        save_qnet(other, save_policy(checkpoint.parent / "policy-other", seed=7))
    client = serve(settings_of(checkpoint, vllm, admin=True, models_dir=checkpoint.parent))
    load = {"folder": "other", "name": "big", "version": "v2"}
    refused = client.post("/v1/models/load", json=load)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "config_refused")
    assert "qguide export-trunk" in refused.json()["error"]["message"]
    loaded = client.post("/v1/models/load", json=load | {"folder": "qnet"})
    [card] = [c for c in loaded.json()["q_models"] if c["id"] == "big@v2"]
    assert card["source"] == "vllm"


@pytest.mark.parametrize(
    ("q_models", "reason"),
    [
        ({"demo": SCRIPTED}, "QGUIDE_VLLM_TRUNKS .*'demo', .*scripted"),
        ({"a": SCRIPTED}, "QGUIDE_VLLM_TRUNKS .*'demo', .*QGUIDE_Q_MODELS"),
    ],
)
def test_a_trunk_of_no_checkpoint_is_refused(q_models: dict[str, str], reason: str) -> None:
    trunks = {"demo": VllmTrunk.model_validate({"url": "http://127.0.0.1:1"})}
    settings = Settings(policy=SCRIPTED, q_models=q_models, vllm_trunks=trunks)
    with pytest.raises(ConfigError, match=reason):
        build_models(settings)


def test_the_environment_names_trunks_and_hides_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    value = '{"big": {"url": "http://trunk:8001", "api_key": "hidden", "max_tokens": 4096}}'
    monkeypatch.setenv("QGUIDE_VLLM_TRUNKS", value)
    trunk = Settings().vllm_trunks["big"]
    assert (str(trunk.url), trunk.max_tokens) == ("http://trunk:8001/", 4096)
    assert "hidden" not in repr(Settings())
