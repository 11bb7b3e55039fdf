"""Every causal architecture of transformers as a tiny random Q model, if one can be built."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import History, Message, ScoreRequest
from tests.support.tiny_models import renderer

MODEL_TYPES: Final = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
WINDOW: Final = 9
_LAYERS: Final = 3
_TOLERANCE: Final = 2e-6
_MOST_PARAMETERS: Final = 1_000_000

_SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "n_embd": 32,
    "n_layer": _LAYERS,
    "n_head": 4,
    "n_positions": 512,
    "d_model": 32,
    "ffn_dim": 48,
    "num_layers": _LAYERS,
    "num_heads": 4,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_MIXED: Final = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWED: Final[dict[str, dict[str, Any]]] = {
    "cohere2": {"layer_types": _MIXED},
    "exaone4": {"layer_types": _MIXED},
    "gemma2": {"layer_types": _MIXED},
    "gemma3_text": {"layer_types": _MIXED},
    "gemma4_text": {
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "global_head_dim": 8,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 320,
        "num_experts": None,
    },
    "gpt_oss": {"layer_types": _MIXED},
    "mistral": {},
    "olmo3": {"layer_types": _MIXED},
    "phi3": {},
    "qwen2": {"layer_types": _MIXED, "use_sliding_window": True},
}
"""Architectures with windows shorter than the tests' histories, and what makes them so."""
_GATED_DELTA: Final[dict[str, Any]] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA2: Final[dict[str, Any]] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_expand": 2,
}
_LATENT: Final[dict[str, Any]] = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 4,
    "num_key_value_heads": 4,
}
"""Multi-head latent attention."""
_ROUTED: Final[dict[str, Any]] = {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
_CHOOSING: Final[dict[str, Any]] = {"index_n_heads": 16, "index_head_dim": 8, "index_topk": 8}
"""Attention to chosen tokens, fewer than the tests' histories have; with few heads, scores would tie."""
_RELATIVE: Final[dict[str, Any]] = {
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "sliding_window_size": WINDOW,
    "d_rel": 4,
    "rel_extent": 16,
}
"""Inkling's positions and windows."""
_PARTICULAR: Final[dict[str, dict[str, Any]]] = {
    "axk1": _LATENT | _ROUTED,
    "axk2": _LATENT | _ROUTED | _CHOOSING,
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "cpmant": {"dim_head": 8, "dim_ff": 48, "prompt_types": 4, "prompt_length": 4, "segment_types": 4},
    "ctrl": {"dff": 48},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v32": _LATENT | _ROUTED | _CHOOSING,
    "deepseek_v4": {
        **_CHOOSING,
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"],
        "q_lora_rank": 8,
        "o_groups": 2,
        "o_lora_rank": 8,
        "sliding_window": WINDOW,
    },
    "dots3_note_text": {
        **_LATENT,
        **_ROUTED,
        **_CHOOSING,
        "shared_experts_intermediate_size": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 8,
        "swa_kv_lora_rank": 8,
        "swa_qk_nope_head_dim": 8,
        "swa_qk_rope_head_dim": 4,
        "swa_v_head_dim": 8,
        "swa_head_dim": 12,
    },
    "gemma3n_text": {
        "layer_types": _MIXED,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 299,
        "laurel_rank": 4,
        "activation_sparsity_pattern": None,
        "intermediate_size": 48,
    },
    "glm_moe_dsa": _LATENT | _ROUTED | _CHOOSING,
    "hy_v4": _LATENT | _ROUTED | _CHOOSING,
    "inkling_text": _RELATIVE,
    "inkling2_text": _RELATIVE | {"n_layers_per_attn_res_block": 2},
    "inkling2_loop_text": {
        **_RELATIVE,
        "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 2,
        "loop_num_passes": 2,
        "loop_gate_rank": 4,
    },
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": _LATENT | _ROUTED,
    "deepseek_v3": _LATENT | _ROUTED,
    "dots1": _ROUTED,
    "glm4_moe_lite": _LATENT | _ROUTED,
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]]},
    "gptj": {"rotary_dim": 4},
    "kimi_linear": {
        **_LATENT,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "longcat_flash": {
        **_LATENT,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 1,
        "moe_topk": 2,
    },
    "minicpm3": _LATENT,
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_topk_blocks": 2,
        "index_block_size": 8,
        "index_n_heads": 2,
        "index_head_dim": 8,
    },
    "sarvam_mla": _LATENT | _ROUTED,
    "qwen2_moe": {"shared_expert_intermediate_size": 16},
    "youtu": _LATENT,
    "bamba": {"attn_layer_indices": [1], **_MAMBA2},
    "falcon_h1": _MAMBA2 | {"mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_chunk_size": 16},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 16, **_MAMBA2},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
    },
    "lfm2": {"layer_types": ["full_attention", "conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["full_attention", "conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8, "chunk_size": 16},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "mlp"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 16,
    },
    "qwen3_5_moe_text": {**_GATED_DELTA, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": _GATED_DELTA,
    "qwen3_next": {**_GATED_DELTA, "shared_expert_intermediate_size": 16},
    "qwen4_exp_text": {
        **_GATED_DELTA,
        "shared_expert_intermediate_size": 16,
        "hc_lowrank": 4,
        "ngram_vocab_size_base": 300,
        "split_ngram_parts": 2,
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "roc_bert": {
        "is_decoder": True,
        "pronunciation_embed_dim": 8,
        "pronunciation_vocab_size": 299,
        "shape_embed_dim": 8,
        "shape_vocab_size": 299,
    },
    "zamba": {
        "layers_block_type": ["hybrid", "mamba", "hybrid"],
        "mamba_d_state": 8,
        "n_mamba_heads": 2,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    },
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "mamba_ngroups": 1,
        "mamba_d_state": 8,
        "chunk_size": 16,
        "num_mem_blocks": 1,
        "attention_head_dim": 16,
        "time_step_min": 1e-9,  # transformers holds a step's time above it in a sequence, and not for a single token
    },
}
"""Settings that make a tiny model as mixed as the large ones are, or let it run at all."""


def tiny_config(model_type: str) -> PretrainedConfig:
    """Three layers of the architecture, with windows where it is one of `WINDOWED`."""
    config: PretrainedConfig = CONFIG_MAPPING[model_type](**tiny_shape(model_type))
    return config


def tiny_shape(model_type: str) -> dict[str, Any]:
    """The settings of `tiny_config`."""
    config_class = CONFIG_MAPPING[model_type]
    known = {*vars(config_class()), *config_class.attribute_map}
    shape = {name: value for name, value in _SHAPE.items() if name in known}
    if model_type in WINDOWED:
        shape |= {"sliding_window": WINDOW, **WINDOWED[model_type]}
    shape["vocab_size"] = len(renderer().tokenizer)
    return shape | _PARTICULAR.get(model_type, {})


def is_tiny(config: PretrainedConfig) -> bool:
    """True if the shape reached the whole model; configurations in configurations stay large."""
    with torch.device("meta"):
        trunk: nn.Module = AutoModel.from_config(config)
    return sum(parameter.numel() for parameter in trunk.parameters()) < _MOST_PARAMETERS


def tiny_pair(config: PretrainedConfig) -> tuple[LoadedQNet, LoadedQNet]:
    """The same random Q model twice, so that neither scorer can disturb the other."""
    with seeded():
        one, other = (QNet(QNetConfig(trunk=config.to_dict(), head_width=16)).float().eval() for _ in range(2))
    enliven(one)
    other.load_state_dict(one.state_dict())
    manifest = Manifest(kind="qnet", name="tiny")
    return (LoadedQNet("tiny", one, renderer(), manifest), LoadedQNet("tiny", other, renderer(), manifest))


def steps() -> list[ScoreRequest]:
    """Three steps of one episode, whose candidates share beginnings and outgrow a window."""
    words = ("go", "to", "desk", "take", "mug", "from", "shelf", "open", "you", "see")
    history: History = (Message("user", " ".join(words[i * 7 % 10] for i in range(40))),)
    found = []
    for step in range(3):
        said = ["go to desk", "go to desk take mug", "open shelf", "go to desk " * 9, "see"]
        candidates = tuple(Message("assistant", f"{text} {words[step]}") for text in said)
        found.append(ScoreRequest(history, candidates))
        seen = " ".join(words[(step + i * 3) % 10] for i in range(15))
        history = (*history, candidates[step], Message("user", seen))
    return found


def refusal_of(config: PretrainedConfig) -> str | None:
    """Reason for which the fast scorer refuses the architecture; None where it takes it.

    Raises:
        AssertionError: it takes it, and its Q differ from those of the full sequences.
    """
    naive_model, fast_model = tiny_pair(config)
    try:
        fast = SharedPrefixScorer(fast_model)
    except CheckpointError as error:
        return str(error)
    naive = NaiveScorer(naive_model)
    for request in steps():
        [reference], [found] = naive.score([request]), fast.score([request])
        for expected, q_value in zip(reference.q_values, found.q_values, strict=True):
            assert abs(expected - q_value) <= _TOLERANCE, (expected, q_value)
    return None


@contextmanager
def seeded() -> Iterator[None]:
    """Make a model of the same weights each time: rare decays of a recurrent layer exceed the tolerances."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def enliven(model: nn.Module) -> None:
    """Draw weights that make layers differ from the identity."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or name.endswith(("bias", "sinks")):
                parameter.normal_(0.0, 0.15, generator=generator)
