"""Support of every causal architecture of transformers, which the contract tests verify."""

import os
from collections.abc import Iterable
from typing import Final

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TRIES_ALL: Final = os.environ.get("TEST_ARCHITECTURES") == "all"
"""In `make test-architectures`, which takes minutes."""
_COMMON: Final = frozenset(
    {
        "deepseek_v3",
        "gemma3_text",
        "gpt2",
        "gpt_oss",
        "lfm2",
        "llama",
        "mamba",
        "mistral",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
    }
)
"""Served often, or the one of its kind."""
_EVERY: Final = 16

PACKED: Final = (
    "afmoe",
    "apertus",
    "apertus1p5_text",
    "arcee",
    "aria_text",
    "axk1",
    "beam",
    "biogpt",
    "bitnet",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "cohere_compass_text",
    "ctrl",
    "cwm",
    "dbrx",
    "deepseek_v2",
    "deepseek_v3",
    "doge",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone",
    "exaone4",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt-sw3",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "gptj",
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
    "longcat_flash",
    "mellum",
    "mimo_v2_flash",
    "minicpm3",
    "minimax_m2",
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
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "roc_bert",
    "sarvam_mla",
    "sarvam_moe",
    "seed_oss",
    "smollm3",
    "solar_open",
    "starcoder2",
    "vaultgemma",
    "youtu",
)
"""Architectures that the fast scorer takes."""

PACKED_TREES: Final = frozenset(
    {
        *PACKED,
        "axk2",
        "deepseek_v32",
        "diffllama",
        "dory",
        "dots3_note_text",
        "falcon",
        "glm_moe_dsa",
        "gpt_neo",
        "gpt_neox_japanese",
        "hrm_text",
        "hy_v4",
        "nemotron",
        "stablelm",
        "xglm",
    }
)
"""Architectures whose hidden states in a packed tree are those of each path, so that they train."""

TREE_BRANCHES: Final = frozenset(
    {
        "bamba",
        "deepseek_v4",
        "falcon_h1",
        "granitemoehybrid",
        "inkling2_loop_text",
        "inkling2_text",
        "inkling_text",
        "kimi_linear",
        "lara_mini",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "mamba2",
        "minimax",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "zamba2",
        "zaya",
    }
)
"""Architectures with recurrent layers that go on from a state with gradients, branch by branch."""

TREE_PATHS: Final = frozenset(
    {"falcon_mamba", "jamba", "mamba", "qwen4_exp_text", "recurrent_gemma", "rwkv", "xlstm", "zamba"}
)
"""Those that do not, and so train on the whole paths of trees."""

PADDED: Final = frozenset(
    {
        *PACKED_TREES,
        "bamba",
        "bloom",
        "deepseek_v4",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "inkling2_loop_text",
        "inkling2_text",
        "inkling_text",
        "jamba",
        "kimi_linear",
        "lara_mini",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "mamba",
        "mamba2",
        "minimax",
        "minimax_m3_vl_text",
        "mpt",
        "nemotron_h",
        "olmo_hybrid",
        "openai-gpt",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp_text",
        "recurrent_gemma",
        "rwkv",
        "xlm",
        "zamba",
        "zamba2",
        "zaya",
    }
)
"""Architectures in which padding on the right changes nothing before it."""

HISTORY_ONCE: Final = frozenset(
    {
        "axk2",
        "bamba",
        "bloom",
        "deepseek_v32",
        "deepseek_v4",
        "diffllama",
        "dots3_note_text",
        "falcon",
        "falcon_h1",
        "glm_moe_dsa",
        "gpt_neo",
        "gpt_neox_japanese",
        "granitemoehybrid",
        "hrm_text",
        "hy_v4",
        "inkling2_loop_text",
        "inkling2_text",
        "inkling_text",
        "kimi_linear",
        "lara_mini",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "mamba2",
        "minimax",
        "minimax_m3_vl_text",
        "mpt",
        "nemotron",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "stablelm",
        "xglm",
        "zamba2",
        "zaya",
    }
)
"""Architectures that are not packed, but go on behind the state that a history has left."""

ONE_ROW: Final = HISTORY_ONCE - {
    "axk2",
    "bloom",
    "deepseek_v32",
    "deepseek_v4",
    "dots3_note_text",
    "glm_moe_dsa",
    "gpt_neo",
    "gpt_neox_japanese",
    "hy_v4",
    "inkling2_loop_text",
    "inkling2_text",
    "inkling_text",
    "lara_mini",
    "minimax",
    "minimax_m3_vl_text",
    "mpt",
    "xglm",
    "zaya",
}
"""Those of them that read a history's new tokens and its continuations in one row."""

WHOLE_PADDED: Final = frozenset(
    {
        "dory",
        "falcon_mamba",
        "jamba",
        "mamba",
        "openai-gpt",
        "qwen4_exp_text",
        "recurrent_gemma",
        "rwkv",
        "xlm",
        "xlstm",
        "zamba",
    }
)
"""Architectures that are not packed, and whose sequences may lie in a padded batch."""

WITHOUT_FORWARD: Final = frozenset({"bailing_hybrid", "xlnet", "xmod"})
"""Architectures whose tiny model does not run on its own or takes no history."""

READS_MORE: Final = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Architectures that read images, too, and the text model that is loaded in their place."""

_BOTH: Final = "encoder and decoder"
NOT_BUILT: Final = {
    "bart": _BOTH,
    "bigbird_pegasus": _BOTH,
    "blenderbot": _BOTH,
    "blenderbot-small": _BOTH,
    "blt": "reads bytes by patches",
    "dots3_note": "reads images",
    "emu3": "reads images",
    "fuyu": "reads images",
    "gemma3": "reads images",
    "gemma3n": "reads images",
    "gemma4": "reads images",
    "gemma4_assistant": "drafts for another model",
    "gemma4_unified": "reads images",
    "gemma4_unified_assistant": "drafts for another model",
    "git": "reads images",
    "got_ocr2": "reads images",
    "llama4": "reads images",
    "marian": _BOTH,
    "mbart": _BOTH,
    "mllama": "reads images",
    "moss_transcribe_diarize": "reads sound",
    "musicgen": "writes music",
    "musicgen_melody": "writes music",
    "mvp": _BOTH,
    "pegasus": _BOTH,
    "phi4_multimodal": "reads images",
    "plbart": _BOTH,
    "prophetnet": _BOTH,
    "qwen3_5": "reads images",
    "qwen3_5_moe": "reads images",
    "qwen4_exp": "reads images",
    "reformer": "its hidden states are twice as wide as it says",
    "trocr": "reads images",
    "whisper": "reads sound",
}
"""Architectures without a tiny model of a decoder alone, and the reason."""


def sampled(names: Iterable[str]) -> list[str]:
    """The common ones of these and every sixteenth other; all in `make test-architectures`.

    Each of the hundreds is one model more for the same code: what breaks for many breaks for one of
    these, and an update of transformers or of the engine is tried on all.
    """
    every = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() & names)  # an older transformers has fewer
    if TRIES_ALL:
        return every
    others = [name for name in every if name not in _COMMON]
    return sorted({*others[::_EVERY], *_COMMON.intersection(every)})
