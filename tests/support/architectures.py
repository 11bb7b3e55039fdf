"""Every causal architecture of transformers as a tiny random Q model, if one can be built."""

from typing import Any, Final

import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qnet.errors import CheckpointError
from qnet.models.checkpoint import LoadedQNet
from qnet.models.manifest import Manifest
from qnet.models.qnet import QNet
from qnet.models.qnet_config import QNetConfig
from qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qnet.types import History, Message, ScoreRequest
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
_HYBRID: Final[dict[str, dict[str, Any]]] = {
    "lfm2": {"layer_types": ["full_attention", "conv", "full_attention"]},
}
"""Settings that make a tiny model as mixed as the large ones are."""

PACKED: Final = (
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "beam",
    "biogpt",
    "bitnet",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "cwm",
    "doge",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gemma4_unified_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt-sw3",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jetmoe",
    "kolibri1",
    "laguna",
    "llama",
    "llama4_text",
    "mellum",
    "mimo_v2_flash",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "modernbert-decoder",
    "moshi",
    "nanochat",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "solar_open",
    "starcoder2",
    "vaultgemma",
)
"""Architectures that the fast scorer takes."""

PACKED_TREES: Final = frozenset(
    {
        *PACKED,
        "diffllama",
        "falcon",
        "gpt_neox_japanese",
        "hrm_text",
        "nemotron",
        "stablelm",
        "xglm",
    }
)
"""Architectures whose hidden states in a packed tree are those of each path, so that they train."""

PADDED: Final = frozenset(
    {
        *PACKED_TREES,
        "bloom",
        "falcon_h1",
        "falcon_mamba",
        "lfm2",
        "lfm3",
        "mamba",
        "minimax",
        "mpt",
        "olmo_hybrid",
        "openai-gpt",
        "recurrent_gemma",
        "rwkv",
        "xlm",
    }
)
"""Architectures in which padding on the right changes nothing before it."""

NOT_BUILT: Final = frozenset(
    {
        "axk1",
        "axk2",
        "bamba",
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "blt",
        "cohere_compass_text",
        "cpmant",
        "ctrl",
        "dbrx",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots1",
        "dots3_note",
        "dots3_note_text",
        "emu3",
        "fuyu",
        "gemma3",
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "gemma4_assistant",
        "gemma4_unified",
        "gemma4_unified_assistant",
        "git",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "got_ocr2",
        "gpt_neo",
        "granitemoehybrid",
        "hy_v4",
        "inkling2_text",
        "inkling_text",
        "kimi_linear",
        "lfm2_moe",
        "llama4",
        "longcat_flash",
        "mamba2",
        "marian",
        "mbart",
        "minicpm3",
        "mllama",
        "moss_transcribe_diarize",
        "musicgen",
        "musicgen_melody",
        "mvp",
        "nemotron_h",
        "pegasus",
        "phi4_multimodal",
        "plbart",
        "prophetnet",
        "qwen2_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
        "reformer",
        "roc_bert",
        "trocr",
        "whisper",
        "youtu",
        "zamba",
        "zamba2",
        "zaya",
    }
)
"""Architectures without a tiny model: their configurations have rules or parts of their own."""


def tiny_config(model_type: str) -> PretrainedConfig:
    """Three layers of the architecture, with windows where it is one of `WINDOWED`."""
    config_class = CONFIG_MAPPING[model_type]
    known = {*vars(config_class()), *config_class.attribute_map}
    shape = {name: value for name, value in _SHAPE.items() if name in known}
    if model_type in WINDOWED:
        shape |= {"sliding_window": WINDOW, **WINDOWED[model_type]}
    shape["vocab_size"] = len(renderer().tokenizer)
    shape |= _HYBRID.get(model_type, {})
    config: PretrainedConfig = config_class(**shape)
    return config


def is_tiny(config: PretrainedConfig) -> bool:
    """True if the shape reached the whole model; configurations in configurations stay large."""
    with torch.device("meta"):
        trunk: nn.Module = AutoModel.from_config(config)
    return sum(parameter.numel() for parameter in trunk.parameters()) < _MOST_PARAMETERS


def tiny_pair(config: PretrainedConfig) -> tuple[LoadedQNet, LoadedQNet]:
    """The same random Q model twice, so that neither scorer can disturb the other."""
    one, other = (
        QNet(QNetConfig(trunk=config.to_dict(), head_width=16)).float().eval() for _ in range(2)
    )
    enliven(one)
    other.load_state_dict(one.state_dict())
    manifest = Manifest(kind="qnet", name="tiny")
    return (
        LoadedQNet("tiny", one, renderer(), manifest),
        LoadedQNet("tiny", other, renderer(), manifest),
    )


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


def enliven(model: nn.Module) -> None:
    """Draw weights that make layers differ from the identity."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or name.endswith(("bias", "sinks")):
                parameter.normal_(0.0, 0.15, generator=generator)
