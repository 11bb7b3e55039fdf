"""On every trunk, Q equals that of the full sequence alone, whatever was scored before."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GPTNeoConfig, Lfm2Config, Llama4TextConfig, PretrainedConfig

from qguide.qnet.engine import attention, kernels
from qguide.qnet.engine import prefix_cache as kvstore
from qguide.qnet.engine.context_length import context_length
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.scoring import value_head
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.qnet.types import ScoreRequest
from tests.contract.scorers.batches import batches
from tests.contract.scorers.subjects import KINDS, Subject, build_subject, close_to
from tests.support.architecture_lists import TRIES_ALL
from tests.support.devices import needs_cuda
from tests.support.tiny_models import ARCHITECTURES, renderer

ONE_SLAB = 150_000
"""Cache bytes for one or two conversations of these tiny models."""

EVERY = [
    pytest.param(
        (kind, architecture, device),
        id=f"{kind}-{architecture}-{device}",
        # What an implicit Q reads on a trunk, a QNet has read there, too.
        marks=[*marks, *([] if kind == "qnet" or architecture == "llama" else [pytest.mark.slow])],
    )
    for kind in KINDS
    for architecture in ARCHITECTURES
    if architecture == "llama" or kind in ("qnet", "implicit-q") or TRIES_ALL
    for device, marks in (("cpu", ()), ("cuda", needs_cuda))
]


# The same batches on every run: the bound is a few float32 roundings away, which is no place for
# a draw to decide whether a build is red.
the_same_on_every_run = settings(max_examples=10, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", params=EVERY)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    kind, architecture, device = request.param
    return build_subject(kind, architecture, tmp_path_factory.mktemp("q"), device=device)


@the_same_on_every_run
@given(
    batches=batches(),
    cache_bytes=st.sampled_from((1, ONE_SLAB, 10**8)),
    tokens_per_forward=st.sampled_from((16, 64, 2048)),
    shared_tokens=st.sampled_from((16, 24, 64)),
    tiles_from=st.sampled_from((1, 8, 10**9)),
    block_tokens=st.sampled_from((1, 5, 64)),
    chunked=st.booleans(),
)
def test_q_is_that_of_the_full_sequence(
    subject: Subject,
    batches: list[list[ScoreRequest]],
    cache_bytes: int,
    tokens_per_forward: int,
    shared_tokens: int,
    tiles_from: int,
    block_tokens: int,
    chunked: bool,
) -> None:
    fast = subject.build_fast(cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kvstore, "SHARED_TOKENS", shared_tokens)
        patch.setattr(attention, "FEWEST_TILED_ROWS", tiles_from)
        patch.setattr(attention, "FEWEST_TILED_COLUMNS", tiles_from)
        patch.setattr(value_head, "BLOCK_TOKENS", block_tokens)
        patch.setattr(attention, "CHUNKED_ON", {"cpu", "cuda"} if chunked else set())
        for batch in batches:
            for request, result in zip(batch, fast.score(batch), strict=True):
                assert result.q_values == close_to(subject.q_values(request))
                assert result.computed_tokens + result.cached_tokens == subject.tokens(request)
                assert min(result.computed_tokens, result.cached_tokens) >= 0


@pytest.fixture(scope="module", params=["qnet", "implicit-q"])
def turned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return build_subject(request.param, "llama", tmp_path_factory.mktemp("q"))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@settings(the_same_on_every_run, max_examples=4)
@given(batches=batches(), cache_bytes=st.sampled_from((1, ONE_SLAB, 10**8)))
def test_q_of_turned_weights_is_that_of_plain_ones(
    turned: Subject, batches: list[list[ScoreRequest]], cache_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "one_dnn_is_faster_on_turned", lambda: True)
        patch.setattr(kernels, "_FEWEST_WEIGHTS", 0)
        fast = turned.build_fast(cache_bytes=cache_bytes)
    for batch in batches:
        for request, result in zip(batch, fast.score(batch), strict=True):
            assert result.q_values == close_to(turned.q_values(request))


HALVED = [
    pytest.param(
        case.values[0], id=case.id, marks=[*case.marks, *([] if "-llama-" in str(case.id) else [pytest.mark.slow])]
    )
    for case in EVERY
]


@pytest.fixture(scope="module", params=HALVED)
def halved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    kind, architecture, device = request.param
    folder = tmp_path_factory.mktemp("q")
    return build_subject(kind, architecture, folder, dtype=torch.bfloat16, device=device)


@settings(the_same_on_every_run, max_examples=4)  # the way is the same, and so are its mistakes
@given(batches=batches(), cache_bytes=st.sampled_from((1, ONE_SLAB, 10**8)))
def test_half_precision_stays_close(halved: Subject, batches: list[list[ScoreRequest]], cache_bytes: int) -> None:
    fast = halved.build_fast(cache_bytes=cache_bytes)
    for batch in batches:
        for request, result in zip(batch, fast.score(batch), strict=True):
            assert result.q_values == pytest.approx(halved.q_values(request), abs=0.05)


def q_model_on(trunk: PretrainedConfig) -> LoadedQNet:
    qnet = QNet(QNetConfig(trunk=trunk.to_dict(), head_width=16)).eval()
    return LoadedQNet("foreign", qnet, renderer(), Manifest(kind="qnet", name="foreign"))


SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("trunk", "reason"),
    [
        (
            GPTNeoConfig(
                vocab_size=300,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global", "local"], 1]],
                bos_token_id=0,
                eos_token_id=0,
            ),
            "0 .* 2 layers",
        ),
        (Lfm2Config(**SHAPE, layer_types=["full_attention", "conv"]), "1 .* 2 layers"),
        (Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]), "layer 1 .*attention"),
    ],
    ids=["attention-of-its-own", "convolution-last", "convolution-first"],
)
def test_a_trunk_that_would_score_wrongly_is_refused_at_load(trunk: PretrainedConfig, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"packed .*{reason}"):
        SharedPrefixScorer(q_model_on(trunk))


def test_a_trunk_that_attends_in_chunks_takes_one_chunk() -> None:
    assert context_length(Llama4TextConfig(attention_chunk_size=64)) == 64
