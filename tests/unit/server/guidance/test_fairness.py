"""No key's work keeps another waiting for more than a slice, and hanging up is not free."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.engine.kv_buffer import PackedSegment
from qguide.qnet.engine.packed_model import PackedModel
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import Message, Sampling, ScoreRequest, ScoreResult
from qguide.qnet.work import Tenant, working_for
from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import open_account
from qguide.server.q_models.registry import Models, QModels
from qguide.server.q_models.served import MeteredPolicy, Runtime, ServedPolicy
from qguide.server.q_models.threaded import QModel, ScorerSource
from tests.support.gated_scorer import GatedScorer
from tests.support.queues import until_waiting
from tests.support.tiny_models import CONTEXT, WORDS, policy_model, q_model
from tests.unit.server.conftest import FAKES, SERVED

HISTORY = (Message("user", " ".join(WORDS * 4)),)
HOT = Sampling(temperature=1.0, max_tokens=100, seed=1)


class GatedPasses:
    """Lets so many forward passes of a model through; the next one waits for the gate."""

    def __init__(self, packed: PackedModel, *, free: int, patch: pytest.MonkeyPatch) -> None:
        self.passes = 0
        self.gate, self.entered = threading.Event(), threading.Event()
        self._read, self._free = packed._read, free
        patch.setattr(packed, "_read", self._gated)

    def _gated(self, rows: torch.Tensor | None, inputs: dict[str, Any]) -> torch.Tensor:
        self.passes += 1
        if self.passes > self._free:
            self.entered.set()
            assert self.gate.wait(30)
        return self._read(rows, inputs)


def models_of(scorer: CachingScorer, *, max_batch: int, max_waiting: int = 64) -> Models:
    """A Q model that takes so many requests at once."""
    thread = DeviceThread(max_waiting=max_waiting)
    runtime = Runtime(thread, DeviceThread(), Metrics(), SERVED.model_copy(update={"max_batch": max_batch}))
    q_models = QModels(runtime.metrics)
    model = QModel(scorer.name, "0", ScorerSource(lambda: scorer, "checkpoint"), runtime)
    model.open()
    q_models.add(model)
    q_models.configure({"default": {scorer.name: 1.0}}, {})
    policy = ScriptedPolicy()
    return Models(runtime, ServedPolicy(policy.name, policy, "checkpoint", CONTEXT), q_models)


@asynccontextmanager
async def serving(models: Models, keys_file: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client in the server's own event loop."""
    settings = FAKES.model_copy(update={"keys_file": keys_file})
    app = create_app(settings, build=lambda _: models)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server") as client,
    ):
        yield client


def item(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "candidates": ["look", "wait"]}


async def test_a_keys_batch_keeps_no_other_key_waiting_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ada, bob = ({"X-API-Key": create_key(file, name)} for name in ("ada", "bob"))
    scorer = GatedScorer()
    models = models_of(scorer, max_batch=1)
    async with serving(models, file) as client:
        body = {"items": [item(f"ada {n}") for n in range(6)]}
        batch = asyncio.create_task(client.post("/v1/score/batch", json=body, headers=ada))
        assert await asyncio.to_thread(scorer.entered.wait, 30)
        await until_waiting(models.runtime.thread, 5)
        one = asyncio.create_task(client.post("/v1/score", json=item("bob"), headers=bob))
        await until_waiting(models.runtime.thread, 6)
        scorer.gate.set()
        answers = await asyncio.gather(batch, one)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert scorer.asked == ["ada 0", "bob", *(f"ada {n}" for n in range(1, 6))]


async def test_a_key_that_fills_the_queue_closes_it_to_no_other_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ada, bob = ({"X-API-Key": create_key(file, name)} for name in ("ada", "bob"))
    scorer = GatedScorer()
    models = models_of(scorer, max_batch=1, max_waiting=4)
    async with serving(models, file) as client:
        running = asyncio.create_task(client.post("/v1/score", json=item("ada"), headers=ada))
        assert await asyncio.to_thread(scorer.entered.wait, 30)
        body = {"items": [item(f"ada {n}") for n in range(4)]}
        batch = asyncio.create_task(client.post("/v1/score/batch", json=body, headers=ada))
        await until_waiting(models.runtime.thread, 4)
        one = asyncio.create_task(client.post("/v1/score", json=item("bob"), headers=bob))
        refused = await batch  # its newest request made room
        scorer.gate.set()
        assert [(await running).status_code, (await one).status_code] == [200, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")


async def test_a_draw_ends_when_its_caller_hangs_up_and_is_charged_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = DeviceThread()
    policy = LocalPolicy(policy_model(), thread=thread, tokens_per_forward=64)
    passes = GatedPasses(policy._packed, free=6, patch=monkeypatch)
    metered = MeteredPolicy(policy, Metrics(), stage="sample")
    prompt = len(policy._renderer.encode_history(HISTORY))
    with open_account() as account:
        drawing = asyncio.create_task(metered.sample(HISTORY, n=2, sampling=HOT))
        assert await asyncio.to_thread(passes.entered.wait, 30)
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
    passes.gate.set()
    await asyncio.wrap_future(thread.call(lambda: None))
    thread.close()
    assert passes.passes == 7  # the one that ran, and none after it
    decoded = 7 - -(-prompt // 64)
    assert prompt + decoded < account.tokens <= prompt + 2 * (decoded + 1)


async def test_a_score_ends_when_its_caller_hangs_up_and_is_charged_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = SharedPrefixScorer(q_model(), tokens_per_forward=8)
    passes = GatedPasses(scorer._packed, free=2, patch=monkeypatch)
    models = models_of(scorer, max_batch=4)
    with open_account() as account, models.q_models.hold(None) as held:
        request = ScoreRequest(HISTORY, (Message("assistant", "look"),))
        scoring = asyncio.create_task(held.score(request))
        assert await asyncio.to_thread(passes.entered.wait, 30)
        scoring.cancel()
        with suppress(asyncio.CancelledError):
            await scoring
    passes.gate.set()
    await asyncio.wrap_future(models.runtime.thread.call(lambda: None))
    await models.close()
    assert passes.passes == 3
    assert account.tokens == 3 * 8
    assert scorer.cache.nbytes == 0  # what was not finished is not kept


async def test_draws_give_way_to_a_score_between_two_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ada, bob = ({"X-API-Key": create_key(file, name)} for name in ("ada", "bob"))
    passes_before: list[int] = []

    class Noting(GatedScorer):
        def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
            passes_before.append(passes.passes)
            return super().score(requests)

    scorer = Noting()
    scorer.gate.set()
    models = models_of(scorer, max_batch=1)
    policy = LocalPolicy(policy_model(), thread=models.runtime.thread)
    passes = GatedPasses(policy._packed, free=3, patch=monkeypatch)
    served = ServedPolicy(policy.name, policy, "checkpoint", CONTEXT)
    async with serving(replace(models, policy=served), file) as client:
        body = {
            "messages": [{"role": "user", "content": HISTORY[0].content}],
            "num_candidates": 4,
            "max_tokens": 50,
            "temperature": 1.0,
        }
        act = asyncio.create_task(client.post("/v1/act", json=body, headers=ada))
        assert await asyncio.to_thread(passes.entered.wait, 30)
        one = asyncio.create_task(client.post("/v1/score", json=item("bob"), headers=bob))
        await until_waiting(models.runtime.thread, 1)
        assert not scorer.asked
        passes.gate.set()
        assert (await one).status_code == 200
        assert passes_before[0] <= 5  # not all of the tokens that were still to be drawn
        assert (await act).status_code == 200
    assert passes.passes > 5


@pytest.mark.parametrize(("flood", "shared"), [(40, False), (3, True)])
async def test_draws_of_two_keys_share_their_passes_only_if_both_are_few(
    monkeypatch: pytest.MonkeyPatch, flood: int, shared: bool
) -> None:
    thread, gate = DeviceThread(), threading.Event()
    policy = LocalPolicy(policy_model(), thread=thread, tokens_per_forward=64)
    rows: list[int] = []
    forward = policy._packed.forward

    def noted(batch: list[PackedSegment]) -> torch.Tensor:
        rows.append(len(batch))
        return forward(batch)

    monkeypatch.setattr(policy._packed, "forward", noted)
    thread.call(gate.wait)
    histories = {key: (*HISTORY, Message("assistant", key), *HISTORY) for key in ("ada", "bob")}
    drawing = []
    for key, n in (("ada", flood), ("bob", 2)):
        with working_for(Tenant(key, cache_salt=key)):
            drawing.append(asyncio.create_task(policy.sample(histories[key], n=n, sampling=HOT)))
    await until_waiting(thread, 2)
    gate.set()
    assert [len(drawn) for drawn in await asyncio.gather(*drawing)] == [flood, 2]
    thread.close()
    assert (max(rows) == 2) is shared, "histories in one pass"


async def test_a_history_of_a_megabyte_is_refused_before_it_is_tokenized(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    ada = {"X-API-Key": create_key(file, "ada")}
    loaded = q_model()
    longest = 0
    real = loaded.renderer.tokenizer.encode

    def encode(text: str, **options: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(text))
        return real(text, **options)

    monkeypatch.setattr(loaded.renderer.tokenizer, "encode", encode)
    async with serving(models_of(SharedPrefixScorer(loaded), max_batch=4), file) as client:
        answer = await client.post("/v1/score", json=item("go to desk " * 90_000), headers=ada)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "history_too_long")
    assert longest < 1000
