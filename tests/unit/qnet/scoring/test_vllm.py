"""With the trunk on a vLLM server Q stays what it is, and a server that will not do is refused."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from math import isfinite
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.scoring_worker import ScoringWorker
from qguide.qnet.errors import ConfigError, ScorerUnavailableError, UnscorableError
from qguide.qnet.models.checkpoint import load_qnet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.models.remote_trunk import ArrayHead, RemoteTrunk, head_shapes, load_remote_trunk
from qguide.qnet.models.trunk_export import export_trunk
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.scoring.vllm import VllmScorer, share
from qguide.qnet.scoring.vllm_client import CacheCounters, VllmServer
from qguide.qnet.types import Message, ScoreRequest, ScoreResult
from tests.support.queues import until_waiting
from tests.support.scripted_vllm import BLOCK, Fault, ScriptedVllm, scripted_vllm
from tests.support.tiny_models import CONTEXT, renderer, save_policy, save_qnet

Connect = Callable[..., VllmScorer]

HISTORY = (Message("user", "go to desk take mug from shelf open Action : you see " * 3),)
OTHER = (Message("user", "take mug from shelf you see go to desk " * 3),)


def said(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("assistant", text) for text in texts)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("q")
    return save_qnet(folder / "qnet", save_policy(folder / "policy"))


@pytest.fixture(scope="module")
def trunk(checkpoint: Path) -> Path:
    export_trunk(checkpoint, checkpoint.parent / "trunk")
    return checkpoint.parent / "trunk"


@pytest.fixture(scope="module")
def head(checkpoint: Path) -> RemoteTrunk:
    return load_remote_trunk(checkpoint)


@pytest.fixture(scope="module")
def naive(checkpoint: Path) -> NaiveScorer:
    return NaiveScorer(load_qnet(checkpoint))


@pytest.fixture
def vllm(trunk: Path, head: RemoteTrunk) -> Iterator[ScriptedVllm]:
    with scripted_vllm(trunk, model=head.trunk_name, context=CONTEXT) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Builds scorers on a scripted server; they let go of it when the test ends."""
    with ExitStack() as stack:

        def build(
            vllm: ScriptedVllm, head: RemoteTrunk, *, timeout_s: float = 30, max_tokens: int | None = None
        ) -> VllmScorer:
            server = VllmServer(
                f"{vllm.url}/v1",
                model=head.trunk_name,
                hidden_size=head.trunk.hidden_size,
                api_key="key",
                timeout_s=timeout_s,
            )
            return stack.enter_context(closing(VllmScorer(head, server, max_tokens=max_tokens)))

        yield build


def test_q_equals_the_naive_scorers_step_after_step(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk, naive: NaiveScorer
) -> None:
    scorer = connect(vllm, head)
    histories = [HISTORY, OTHER, ()]
    for _ in range(3):
        requests = [ScoreRequest(h, said("go", "take mug", "go", "")) for h in histories]
        results = scorer.score(requests)
        for one, other in zip(results, naive.score(requests), strict=True):
            assert one.q_values == pytest.approx(other.q_values, abs=1e-5)
            assert len(set(one.q_values)) == 3
        histories = [(*h, *said("take mug"), Message("user", "you see")) for h in histories]
    assert vllm.keys == {"Bearer key"}


def test_a_batch_is_one_request_of_distinct_sequences(connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    scorer = connect(vllm, head)
    vllm.asked.clear()
    scorer.score([ScoreRequest(h, said("go", "take", "go")) for h in (HISTORY, OTHER)])
    [body] = vllm.asked
    assert body["input"] == [
        renderer().encode_history(h) + candidate
        for h in (HISTORY, OTHER)
        for candidate in sorted(map(renderer().encode_candidate, said("go", "take")))
    ]


def test_tokens_are_told_apart_by_what_the_server_found(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk
) -> None:
    scorer = connect(vllm, head)
    request = ScoreRequest(HISTORY, said("go", "take mug"))
    lengths = [
        len(renderer().encode_history(HISTORY)) + len(renderer().encode_candidate(c)) for c in request.candidates
    ]
    shared = len(renderer().encode_history(HISTORY)) // BLOCK * BLOCK
    [first] = scorer.score([request])
    assert (first.computed_tokens + first.cached_tokens, first.cached_tokens) == (sum(lengths), shared)
    [again] = scorer.score([request])
    assert again.cached_tokens == sum((length - 1) // BLOCK * BLOCK for length in lengths)


def test_what_others_may_have_found_is_not_counted(connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    scorer = connect(vllm, head)
    request = ScoreRequest(HISTORY, said("go", "take mug"))
    scorer.score([request])
    [alone] = scorer.score([request])
    vllm.fault = "other_traffic"
    [together] = scorer.score([request])
    assert alone.cached_tokens - together.cached_tokens == 10


def test_lost_counters_cost_the_count_and_not_the_score(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk, naive: NaiveScorer
) -> None:
    scorer = connect(vllm, head)
    request = ScoreRequest(HISTORY, said("go", "take mug"))
    scorer.score([request])
    vllm.fault = "no_metrics"
    [blind] = scorer.score([request])
    vllm.fault = ""
    scorer.score([request])
    [seeing] = scorer.score([request])
    assert blind.q_values == pytest.approx(naive.score([request])[0].q_values, abs=1e-5)
    assert blind.cached_tokens == 0 < seeing.cached_tokens


FAULTS: list[tuple[Fault, str]] = [
    ("status_500", r"answered /pooling with 500$"),
    ("status_400", "400: token id 9 is out of vocabulary"),
    ("silence", r"no answer within 1 s"),
    ("garbage", "another shape"),
    ("not_base64", "no base64 of float32"),
    ("too_narrow", "of 31 numbers; the value head takes 32"),
    ("one_state_short", "1 states for 2 sequences"),
    ("truncated", "tokens where .* were sent"),
    ("lost_connection", "cannot be reached"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_a_bad_answer_is_no_score(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk, fault: Fault, reason: str
) -> None:
    scorer = connect(vllm, head, timeout_s=1.0 if fault == "silence" else 30)
    request = ScoreRequest(HISTORY, said("go", "take"))
    [before] = scorer.score([request])
    vllm.fault = fault
    with pytest.raises(ScorerUnavailableError, match=reason) as caught:
        scorer.score([request])
    assert vllm.url not in str(caught.value)
    vllm.fault = ""
    assert scorer.score([request])[0].q_values == before.q_values


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_a_server_that_answers_badly_at_start_is_refused(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk, fault: Fault, reason: str
) -> None:
    vllm.fault = fault
    reason = reason.replace("1 states for 2", "0 states for 1")
    with pytest.raises(ConfigError, match=f"{vllm.url}: .*{reason}"):
        connect(vllm, head, timeout_s=1.0 if fault == "silence" else 30)


def test_a_state_that_is_not_finite_is_no_number_for_its_candidate_alone(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk
) -> None:
    scorer = connect(vllm, head)
    first, second = sorted(said("go", "take"), key=renderer().encode_candidate)
    requests = [ScoreRequest(h, (first, second)) for h in (HISTORY, OTHER)]
    before = scorer.score(requests)
    vllm.fault, vllm.faults_left = "not_finite", 1
    broken, sound = scorer.score(requests)
    assert [isfinite(q) for q in broken.q_values] == [False, True]
    assert (broken.q_values[1], sound.q_values) == (before[0].q_values[1], before[1].q_values)


def test_a_server_without_finite_states_is_refused(connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    vllm.fault = "not_finite"
    with pytest.raises(ConfigError, match=r"finite; .*--dtype"):
        connect(vllm, head)


@pytest.mark.parametrize(("fault", "is_the_inputs"), [("status_400", True), ("status_500", False)])
def test_what_the_server_says_of_the_input_is_told_apart(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk, fault: Fault, is_the_inputs: bool
) -> None:
    scorer = connect(vllm, head)
    vllm.fault = fault
    with pytest.raises(ScorerUnavailableError) as caught:
        scorer.score([ScoreRequest(HISTORY, said("go"))])
    assert isinstance(caught.value, UnscorableError) == is_the_inputs


async def test_of_a_batch_that_the_server_refuses_only_the_request_at_fault_fails(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk, naive: NaiveScorer
) -> None:
    scorer, thread, release = connect(vllm, head), DeviceThread(), Event()
    requests = [ScoreRequest(h, said("go", "take")) for h in (HISTORY, OTHER)]
    worker = ScoringWorker(scorer, thread)
    thread.call(release.wait)
    tasks = [asyncio.create_task(worker.score(request)) for request in requests]
    await until_waiting(thread, len(tasks))
    vllm.fault, vllm.faults_left = "status_400", 2  # both together, then the first alone
    release.set()
    refused, answered = await asyncio.gather(*tasks, return_exceptions=True)
    thread.close()
    assert "400: token id 9 is out of vocabulary" in str(refused)
    assert isinstance(answered, ScoreResult)
    [expected] = naive.score(requests[1:])
    assert answered.q_values == pytest.approx(expected.q_values, abs=1e-5)


def test_a_lost_connection_is_tried_once_more_and_silence_is_not(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk
) -> None:
    scorer = connect(vllm, head, timeout_s=1.0)
    request = ScoreRequest(HISTORY, said("go", "take"))
    vllm.asked.clear()
    vllm.fault, vllm.faults_left = "lost_connection", 1
    assert len(scorer.score([request])[0].q_values) == 2
    assert len(vllm.asked) == 2
    vllm.fault, vllm.faults_left = "silence", 1
    with pytest.raises(ScorerUnavailableError, match="within 1 s"):
        scorer.score([request])
    assert len(vllm.asked) == 3


def test_a_server_without_prefix_caching_is_refused(connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    vllm.caching = False
    with pytest.raises(ConfigError, match=r"256 tokens.*--enable-prefix-caching"):
        connect(vllm, head)


@pytest.mark.parametrize("fault", ["wrong_when_cached", "not_finite_when_cached"])
def test_a_server_whose_cache_changes_q_is_refused(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk, fault: Fault
) -> None:
    vllm.fault = fault
    with pytest.raises(ConfigError, match=r"0\.1 .*--prefix-match-unit"):
        connect(vllm, head)


def test_a_server_without_counters_is_refused(connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    vllm.fault = "no_metrics"
    with pytest.raises(ConfigError, match="without --disable-log-stats"):
        connect(vllm, head)


def test_another_trunk_is_refused_at_start_and_later(connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    scorer = connect(vllm, head)
    vllm.model = "tiny-q@000000000000"
    with pytest.raises(ScorerUnavailableError, match=r"/pooling .*404: .*`"):
        scorer.score([ScoreRequest(HISTORY, said("go"))])
    with pytest.raises(ConfigError, match=f"not {head.trunk_name}; .*qguide export-trunk"):
        connect(vllm, head)


def test_too_short_a_context_is_refused_unless_the_operator_wants_it(
    connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk
) -> None:
    vllm.context = 128
    with pytest.raises(ConfigError, match=r"takes 128 tokens .*--max-model-len 256"):
        connect(vllm, head)
    assert connect(vllm, head, max_tokens=128).context == 128


def test_a_server_that_is_not_there_is_refused(vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    server = VllmServer("http://127.0.0.1:1", model=head.trunk_name, hidden_size=32)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1: .*\(ConnectError\)"):
        VllmScorer(head, server)


def test_a_head_that_gives_no_number_gives_no_score(connect: Connect, vllm: ScriptedVllm, head: RemoteTrunk) -> None:
    config = QNetConfig(head_width=16)
    weights = {
        name: np.full(shape, np.inf if name == "out.bias" else 0, np.float32)
        for name, shape in head_shapes(config, 32).items()
    }
    broken = replace(head, head=ArrayHead(config, weights))
    with pytest.raises(ConfigError, match=r"finite; .*--dtype"):
        connect(vllm, broken)


@pytest.mark.parametrize(("total", "weights"), [(0, [3, 1]), (7, [1, 1, 1]), (10, [1, 9]), (99, [50, 1, 49])])
def test_shares_add_up_and_exceed_no_weight(total: int, weights: list[int]) -> None:
    total = min(total, sum(weights))
    shares = share(total, weights)
    assert sum(shares) == total
    assert all(0 <= mine <= weight for mine, weight in zip(shares, weights, strict=True))


def test_hits_are_a_lower_bound() -> None:
    start = CacheCounters(100, 50)
    assert CacheCounters(200, 130).hits_of(100, since=start) == 80
    assert CacheCounters(210, 130).hits_of(100, since=start) == 70
    assert CacheCounters(500, 130).hits_of(100, since=start) == 0
    assert CacheCounters(0, 0).hits_of(100, since=start) == 0
