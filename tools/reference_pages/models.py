"""Reference page of the model architectures covered by the scorers' contract suite."""

from collections.abc import Set
from typing import Final

import transformers
from transformers.models.auto import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.support.architecture_lists import (
    HISTORY_ONCE,
    NOT_BUILT,
    PACKED,
    PACKED_TREES,
    PADDED,
    READS_MORE,
    TREE_BRANCHES,
    TREE_PATHS,
    WHOLE_PADDED,
)
from tests.support.architectures import MODEL_TYPES, WINDOWED
from tests.support.tiny_models import ARCHITECTURES, config_of
from tools.reference_pages.markdown import code, page, table
from tools.reference_pages.vllm_models import listed_models

_INTRODUCTION: Final = (
    "The contract suite (`tests/contract/scorers`) compares the fast scorers with a plain forward "
    "pass of each full sequence, on tiny random models of these architectures, as QNet and as "
    "implicit Q, in float32 and bfloat16. It also runs on CUDA if torch finds a device."
)
_EVERY: Final = "All causal architectures of transformers {transformers}. *In process* names how Q is computed:"
_WAYS: Final = (
    "- `packed`: on packed tokens, with the Q of full sequences, in float32 on the CPU; tested on "
    "tiny random models (`tests/contract/scorers/test_every_architecture.py`). Each layer keeps "
    "its own sliding window, so a history may be longer than a window; *windows* says that this is "
    "tested too.\n"
    "- `states`: refused from packed tokens with the reason, for example because a layer remembers "
    "more than attention's keys and values. What its layers remember behind a history is kept "
    "beside keys and values, within `QGUIDE_CACHE_BYTES`, as the packed prefixes are: a step "
    "computes the history's new tokens once and its candidates behind copies of that state, the "
    "next step goes on from what the taken candidate left, and a branch goes back to the last turn "
    "whose state is kept.\n"
    "- `full sequences`: its layers do not go on from a state over several tokens, or not in "
    "copies, so nothing is kept between steps; `QGUIDE_FULL_SEQUENCES` allows it. *padded*: each "
    "candidate's whole sequence, in padded batches; otherwise one sequence at a time.\n"
    "  A self-check at load takes the first of these ways that gives the Q of sequences alone, and "
    "the log says why not a better one; tested by "
    "`tests/contract/scorers/test_full_sequences.py`.\n"
    "- `when loaded`: the tests build no tiny model of it, for the reason that stands there, so nothing is "
    "known before. A checkpoint whose Q differs between packed and full sequences is refused with the "
    "reason when it is loaded.\n"
    "- `as …`: the model reads images, too; its text model alone is loaded, as a policy and as a "
    "trunk (`tests/contract/scorers/test_models_that_read_more.py`). So is that of any other such "
    "model, if transformers has a causal LM of it; else the model is refused."
)
_BY_VLLM: Final = (
    "*By vLLM* is vLLM's own list of version {vllm}: it may serve the trunk (`QGUIDE_VLLM_TRUNKS`) "
    "and the policy. That list was not tried class by class; [vLLM](../operate/vllm.md) says what "
    "the tests run."
)
_TRAINING: Final = (
    "*SFT* and *QNet, DPO* say which trainings work with it, tested on the same tiny models "
    "(`tests/contract/trees/test_every_architecture.py`). SFT pads conversations on the right. "
    "QNets, DPO and policies train on packed trees, in which each distinct token is computed once; "
    "*branches*: an architecture with recurrent layers reads each stretch between two branching "
    "points once, behind a copy of the state before it, through which gradients flow; *paths*: one "
    "whose own code cannot, and any under gradient checkpointing, reads whole paths in padded "
    "batches. Loss and gradients are the same (`tests/unit/qnet/engine/test_tree_branches.py`); "
    "paths compute shared beginnings once for each. Sharded over GPUs (FSDP2), such an architecture "
    "reads paths ([shards](../train/hardware.md#shards)). *no*: its layers ignore the mask or take none, "
    "so it is refused before the first step."
)
_OTHERS: Final = (
    "RoPE types whose angles depend on the length (`dynamic`, `longrope`) are refused from packed "
    "tokens in every architecture. Policies are not restricted: an upstream can serve any model."
)


def models_page() -> str:
    """Table of the architectures."""
    rows = []
    for architecture in ARCHITECTURES:
        config = config_of(architecture)
        model = AutoModelForCausalLM.from_config(config)
        rows.append((code(config.model_type), code(type(model).__name__), "yes", "yes"))
    header = ("`model_type`", "class in transformers", "QNet", "implicit Q")
    listed = listed_models()
    return page(
        "Supported models",
        _INTRODUCTION,
        table(header, rows),
        "## Every architecture",
        _EVERY.format(transformers=transformers.__version__),
        _WAYS,
        _BY_VLLM.format(vllm=listed["version"]),
        _TRAINING,
        table(
            ("`model_type`", "in process", "by vLLM", "SFT", "QNet, DPO"),
            [_every_row(name, set(listed["classes"])) for name in sorted({*MODEL_TYPES, *READS_MORE})],
        ),
        _OTHERS,
    )


def _every_row(model_type: str, served: Set[str]) -> tuple[str, ...]:
    """Support of one architecture."""
    if text := READS_MORE.get(model_type):
        _, scored, by_vllm, *trained = _every_row(text, served)
        return (code(model_type), f"as {code(text)}: {scored}", by_vllm, *trained)
    if model_type in PACKED:
        scored = "packed, windows" if model_type in WINDOWED else "packed"
    elif model_type in NOT_BUILT:
        scored = f"when loaded: {NOT_BUILT[model_type]}"
    elif model_type in HISTORY_ONCE:
        scored = "states"
    else:
        scored = "full sequences, padded" if model_type in WHOLE_PADDED else "full sequences"
    by_vllm = "yes" if served & _classes_of(model_type) else ""
    return (code(model_type), scored, by_vllm, _trained(model_type, PADDED), _trained_on_trees(model_type))


def _trained_on_trees(model_type: str) -> str:
    if model_type in TREE_BRANCHES:
        return "yes, branches"
    return "yes, paths" if model_type in TREE_PATHS else _trained(model_type, PACKED_TREES)


def _trained(model_type: str, supported: Set[str]) -> str:
    if model_type in NOT_BUILT:
        return "when loaded"
    return "yes" if model_type in supported else "no"


def _classes_of(model_type: str) -> set[str]:
    """Names of a causal architecture's classes."""
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return {names} if isinstance(names, str) else set(names)
