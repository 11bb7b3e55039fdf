"""A Q model whose trunk is elsewhere is served like any other, and stalls no other."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from qnet.checkpoint import load_qnet
from qnet.errors import ConfigError
from qnet.scoring import NaiveScorer
from qnet.trunk import export_trunk, load_head
from qnet.types import Message, ScoreRequest
from server.app import create_app
from server.models import build_models
from server.settings import SCRIPTED, Settings, VllmTrunk
from tests.scripted_vllm import ScriptedVllm, scripted_vllm
from tests.tiny_models import CONTEXT, save_policy, save_qnet
from tests.unit.server.conftest import Serve

MESSAGES = [{"role": "user", "content": "go to desk take mug from shelf open Action : you see"}]
CANDIDATES = ["go to desk", "take mug"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("q")
    saved = save_qnet(folder / "qnet", save_policy(folder / "policy"))
    export_trunk(saved, folder / "trunk")
    return saved


@pytest.fixture
def vllm(checkpoint: Path) -> Iterator[ScriptedVllm]:
    name = load_head(checkpoint).trunk_name
    with scripted_vllm(checkpoint.parent / "trunk", model=name, context=CONTEXT) as server:
        yield server


def settings_of(checkpoint: Path, vllm: ScriptedVllm, *, timeout_s: float = 30) -> Settings:
    return Settings(
        policy=SCRIPTED,
        q_models={"big": str(checkpoint), "demo": SCRIPTED},
        vllm_trunks={"big": VllmTrunk.model_validate({"url": vllm.url, "api_key": "key"})},
        timeout_s=timeout_s,
    )


def body(q_model: str) -> dict[str, object]:
    return {"messages": MESSAGES, "candidates": CANDIDATES, "q_model": q_model}


def test_its_scores_are_the_naive_scorers(
    serve: Serve, checkpoint: Path, vllm: ScriptedVllm
) -> None:
    client = serve(settings_of(checkpoint, vllm))
    answers = [client.post("/v1/score", json=body("big")).json() for _ in range(2)]
    request = ScoreRequest(
        (Message("user", MESSAGES[0]["content"]),),
        tuple(Message("assistant", text) for text in CANDIDATES),
    )
    [expected] = NaiveScorer(load_qnet(checkpoint)).score([request])
    found = [score["q_value"] for score in answers[0]["scores"]]
    assert found == pytest.approx(expected.q_values, abs=1e-6)
    assert answers[1]["usage"]["cached_tokens"] > answers[0]["usage"]["cached_tokens"]
    assert vllm.keys == {"Bearer key"}
    [card] = [c for c in client.get("/v1/models").json()["data"] if c["id"] == "big"]
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
async def running(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A server on this test's own loop, so that requests can overlap."""
    models = build_models(settings)
    app = create_app(settings, build=lambda _: models)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://qguide") as client:
            yield client


async def test_a_silent_trunk_stalls_no_other_model(checkpoint: Path, vllm: ScriptedVllm) -> None:
    async with running(settings_of(checkpoint, vllm)) as client:
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


@pytest.mark.parametrize(
    ("q_models", "reason"),
    [({"demo": SCRIPTED}, "'demo', which is scripted"), ({"a": SCRIPTED}, "which is no Q model")],
)
def test_a_trunk_of_no_checkpoint_is_refused(q_models: dict[str, str], reason: str) -> None:
    trunks = {"demo": VllmTrunk.model_validate({"url": "http://127.0.0.1:1"})}
    settings = Settings(policy=SCRIPTED, q_models=q_models, vllm_trunks=trunks)
    with pytest.raises(ConfigError, match=reason):
        build_models(settings)


def test_the_environment_names_trunks_and_hides_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = '{"big": {"url": "http://trunk:8001", "api_key": "hidden", "max_tokens": 4096}}'
    monkeypatch.setenv("QGUIDE_VLLM_TRUNKS", value)
    trunk = Settings().vllm_trunks["big"]
    assert (str(trunk.url), trunk.max_tokens) == ("http://trunk:8001/", 4096)
    assert "hidden" not in repr(Settings())
