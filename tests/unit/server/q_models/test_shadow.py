"""A second Q model scores the same requests; the answer and its time are the first's alone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from threading import Event

import pytest
import structlog
from prometheus_client import generate_latest

from qguide.qnet.errors import RoutingError
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import Message, ScoreRequest, ScoreResult
from qguide.server.observability.request_context import open_account
from qguide.server.q_models.build import build_runtime
from qguide.server.q_models.registry import QModels
from qguide.server.q_models.served import Runtime
from qguide.server.q_models.threaded import QModel, ScorerSource
from qguide.server.settings.settings import Settings
from tests.support.tiny_models import q_model

CANDIDATES = (Message("assistant", "look"), Message("assistant", "open"))
REQUEST = ScoreRequest((Message("user", "a secret place"),), CANDIDATES)


class Crashing(ScriptedScorer):
    """Fails with what it read."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Fail."""
        raise ZeroDivisionError(requests[0].history[0].content)


class Deadly(ScriptedScorer):
    """Takes its thread with it."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Die."""
        raise SystemExit


class Slow(ScriptedScorer):
    """Scores once its gate is open."""

    def __init__(self) -> None:
        super().__init__({"look": 1.0})
        self.gate, self.entered, self.cleared = Event(), Event(), Event()

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Wait, then score."""
        self.entered.set()
        assert self.gate.wait(30)
        return super().score(requests)

    def close(self) -> None:
        """Say so."""
        self.cleared.set()


def broken() -> CachingScorer:
    """Cannot even be built."""
    raise RuntimeError("no such thing")


@asynccontextmanager
async def shadowed(
    shadow: Callable[[], CachingScorer],
    first: Callable[[], CachingScorer] = lambda: ScriptedScorer({"look": 1.0}),
    *,
    timeout_s: float = 60,
) -> AsyncIterator[tuple[QModels, Runtime]]:
    """A Q model `first@1` with the shadow `second@1`."""
    runtime = build_runtime(Settings(timeout_s=timeout_s))
    models = QModels(runtime.metrics)
    for name, build in (("first", first), ("second", shadow)):
        model = QModel(name, "1", ScorerSource(build, "checkpoint"), runtime)
        models.add(model)
    models.change(models.routes.shadow("first", "second"))
    try:
        yield models, runtime
    finally:
        await models.close()
        runtime.thread.close()
        runtime.shadow_thread.close()


async def ask(models: QModels) -> ScoreResult:
    with models.hold("first") as held:
        return await held.score(REQUEST)


def count(runtime: Runtime, outcome: str) -> float:
    labels = {"q_model": "second@1", "outcome": outcome}
    name = "qguide_shadow_requests_total"
    return runtime.metrics.registry.get_sample_value(name, labels) or 0.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_both_are_recorded_and_the_first_one_answers() -> None:
    with structlog.testing.capture_logs() as logged:
        async with shadowed(lambda: ScriptedScorer({"open": 0.5})) as (models, runtime):
            result = await ask(models)
            await until(lambda: count(runtime, "disagreed") == 1)
    assert result.q_values == (1.0, 0.0)
    assert logged == [
        {
            "event": "shadow_scored",
            "log_level": "info",
            "q_model": "first@1",
            "shadow": "second@1",
            "chosen": 0,
            "shadow_chosen": 1,
            "q_values": [1.0, 0.0],
            "shadow_q_values": [0.0, 0.5],
        }
    ]


async def test_a_real_model_shadows_itself_under_another_name() -> None:
    loaded = q_model()
    real = lambda: SharedPrefixScorer(loaded)  # noqa: E731
    with structlog.testing.capture_logs() as logged:
        async with shadowed(real, real) as (models, runtime):
            result = await ask(models)
            await until(lambda: count(runtime, "agreed") == 1)
    [alone] = NaiveScorer(q_model()).score([REQUEST])
    assert result.q_values == pytest.approx(alone.q_values, abs=1e-5)
    assert logged[0]["shadow_q_values"] == pytest.approx(alone.q_values, abs=1e-5)


@pytest.mark.parametrize("shadow", [lambda: Crashing({}), broken, lambda: Deadly({})])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_crashing_shadow_is_harmless(shadow: Callable[[], CachingScorer]) -> None:
    with structlog.testing.capture_logs() as logged:
        async with shadowed(shadow) as (models, runtime):
            for _ in range(3):
                assert (await ask(models)).q_values == (1.0, 0.0)
            await until(lambda: count(runtime, "failed") == 3)
            assert runtime.thread.healthy
    assert {line["event"] for line in logged} == {"shadow_failed"}
    assert "secret" not in str(logged)


def told(runtime: Runtime, name: str, **labels: str) -> float:
    return runtime.metrics.registry.get_sample_value(f"qguide_{name}", labels) or 0.0


async def test_a_shadows_work_and_cache_are_told_under_its_own_name() -> None:
    loaded = q_model()
    async with shadowed(lambda: SharedPrefixScorer(loaded), lambda: SharedPrefixScorer(q_model())) as (models, runtime):
        await ask(models)
        await until(lambda: count(runtime, "agreed") == 1)
        for q_model_id in ("first@1", "second@1"):
            one = {"q_model": q_model_id}
            assert told(runtime, "batch_requests_sum", **one) == 1
            assert told(runtime, "batch_seconds_count", **one) == 1
            assert told(runtime, "queue_seconds_count", ended="answered", **one) == 1
        computed = told(runtime, "scorer_tokens_total", q_model="second@1", kind="computed")
        kept = told(runtime, "cache_bytes", q_model="second@1")
        assert min(computed, kept) > 0
        with models.hold("second") as held:
            await held.score(REQUEST)  # itself now, and with a cache of its own
        assert told(runtime, "cache_bytes", q_model="second@1") == 2 * kept


async def test_nobody_is_charged_for_a_shadow() -> None:
    async with shadowed(lambda: ScriptedScorer({"look": 1.0})) as (models, runtime):
        with open_account() as account:
            result = await ask(models)
            await until(lambda: count(runtime, "agreed") == 1)
    assert account.tokens == result.computed_tokens > 0


async def test_a_shadow_that_outlasts_its_model_leaves_no_series() -> None:
    slow = Slow()
    async with shadowed(lambda: slow, timeout_s=0.5) as (models, runtime):
        await ask(models)
        await until(lambda: count(runtime, "failed") == 1)
        assert told(runtime, "queue_seconds_count", q_model="second@1", ended="given_up") == 1
        models.change(models.routes.shadow("first", None))
        models.change(models.routes.drop("second@1"))
        slow.gate.set()
        for thread in (runtime.thread, runtime.shadow_thread):
            await asyncio.wrap_future(thread.call(lambda: None))
        assert b"second@1" not in generate_latest(runtime.metrics.registry)


async def test_a_slow_shadow_keeps_nobody_waiting_and_is_closed_when_it_ends() -> None:
    slow = Slow()
    async with shadowed(lambda: slow) as (models, runtime):
        assert (await ask(models)).q_values == (1.0, 0.0)
        await asyncio.to_thread(slow.entered.wait, 30)
        async with asyncio.timeout(30):
            for _ in range(10):
                assert (await ask(models)).q_values == (1.0, 0.0)
        models.change(models.routes.shadow("first", None))
        models.change(models.routes.drop("second@1"))
        assert not slow.cleared.is_set()
        slow.gate.set()
        await until(lambda: count(runtime, "agreed") == 11 or slow.cleared.is_set())
        assert await asyncio.to_thread(slow.cleared.wait, 30)


async def test_a_shadow_that_is_not_served_is_refused() -> None:
    async with shadowed(lambda: ScriptedScorer({})) as (models, _):
        with pytest.raises(RoutingError, match=r"shadow .*'first' .*'third', .* first@1, second@1$"):
            models.change(models.routes.shadow("first", "third"))
