"""Memory planned on the meta device is what models take."""

import pytest
import torch
from transformers import AutoModel, LlamaConfig

from qguide.qnet.engine.model_memory import ScoringMemory, scoring_memory
from qguide.qnet.engine.windows import window_of
from qguide.qnet.scoring.full_sequences import FullSequenceScorer
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.qnet.types import Message, ScoreRequest
from tests.support.architectures import steps, tiny_config, tiny_pair
from tests.support.tiny_models import ARCHITECTURES, config_of, q_model

WIDE = LlamaConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def planned(history: int, *, tokens_per_forward: int = 512) -> ScoringMemory:
    return scoring_memory(WIDE, history=history, tokens_per_forward=tokens_per_forward, dtype=torch.bfloat16)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_and_a_kept_history_are_those_of_a_scorer(architecture: str) -> None:
    loaded = q_model(architecture)
    history = (Message("user", "go to desk take mug"),)
    scorer = SharedPrefixScorer(loaded)
    [scored] = scorer.score([ScoreRequest(history, (Message("assistant", "see"),))])
    memory = scoring_memory(
        config_of(architecture), history=scored.computed_tokens, tokens_per_forward=16, dtype=torch.float32
    )
    assert memory.parameters == loaded.model.trunk.num_parameters()
    own = (*loaded.model.trunk.parameters(), *loaded.model.trunk.buffers())
    assert memory.weights == sum(tensor.nbytes for tensor in own)
    # Where windows need positions, those lie on the CPU.
    positions = 256 * 8 if window_of(loaded.model.trunk.config) else 0
    assert memory.session == scorer.cache.nbytes - positions


def test_keys_values_and_a_mask_grow_as_by_arithmetic() -> None:
    head_size, layers, kv_heads, rows = 16, 2, 2, 512
    short, long = planned(4096), planned(8192)
    assert short.token == 2 * layers * kv_heads * head_size * 2
    assert long.session == 8192 * long.token == 2 * short.session
    # The mask in bfloat16; a GPU's kernel keeps no scores.
    assert long.forward - short.forward == pytest.approx(rows * 4096 * 2, rel=0.02)
    assert planned(8192, tokens_per_forward=1024).forward > long.forward


def test_sessions_fit_beside_the_weights_and_a_forward_pass() -> None:
    memory = planned(4096)
    needed = memory.weights + memory.forward + 3 * memory.session
    assert (memory.sessions(needed), memory.sessions(needed - 1), memory.sessions(0)) == (3, 2, 0)


@pytest.mark.parametrize("model_type", ["falcon_h1", "lfm2", "mamba2", "qwen3_5_text"])
def test_a_hybrid_keeps_a_state_behind_a_history_and_each_candidate(model_type: str) -> None:
    config = tiny_config(model_type)
    loaded, _ = tiny_pair(config)
    scorer = FullSequenceScorer(loaded, tokens_per_forward=2048, cache_bytes=10**8)
    [request, *_] = steps()
    prepared = scorer.prepare(request)
    scorer.score([request])
    memory = scoring_memory(
        config,
        history=len(prepared.history),
        tokens_per_forward=2048,
        dtype=torch.float32,
        candidates=len(prepared.candidates),
    )
    of_candidates = memory.token * sum(map(len, prepared.candidates))
    assert memory.session + of_candidates + config.hidden_size * 4 == scorer.cache.nbytes
    assert 0 < memory.state < memory.forward


def test_what_runs_only_with_weights_is_not_planned() -> None:
    config = tiny_config("qwen3_next")  # experts take bfloat16 alone without weights
    memory = scoring_memory(config, history=32, tokens_per_forward=32, dtype=torch.float32)
    assert (memory.token, memory.session, memory.forward) == (0, 0, 0)
    assert memory.parameters == AutoModel.from_config(config).num_parameters()
    assert scoring_memory(config, history=32, tokens_per_forward=32, dtype=torch.bfloat16).state
