"""Reference page of the model architectures covered by the scorers' contract suite."""

from typing import Final

from transformers.models.auto import AutoModelForCausalLM

from tests.support.architectures import PACKED, WINDOWED
from tests.support.tiny_models import ARCHITECTURES, config_of
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    "The contract suite (`tests/contract/scorers`) compares the fast scorers with a plain forward "
    "pass of each full sequence, on tiny random models of these architectures, as QNet and as "
    "implicit Q, in float32 and bfloat16. It also runs on CUDA if torch finds a device."
)
_EVERY: Final = (
    "Of all causal architectures of transformers that can be built as tiny random models, these "
    "run on packed tokens, in float32 on the CPU, with the Q of full sequences. Each layer keeps "
    "its own sliding window, so a history may be longer than a window."
)
_OTHERS: Final = (
    "Any other architecture is tested when it is loaded: a checkpoint whose Q differs between "
    "packed and plain sequences is refused with the reason. Architectures with state other than "
    "attention's keys and values, and RoPE types whose angles depend on the length (`dynamic`, "
    "`longrope`), are refused as well, unless vLLM runs the trunk or `QGUIDE_FULL_SEQUENCES` "
    "allows full sequences. Policies are not restricted: an upstream can serve any model."
)


def models_page() -> str:
    """Table of the architectures."""
    rows = []
    for architecture in ARCHITECTURES:
        config = config_of(architecture)
        model = AutoModelForCausalLM.from_config(config)
        rows.append((code(config.model_type), code(type(model).__name__), "yes", "yes"))
    header = ("`model_type`", "class in transformers", "QNet", "implicit Q")
    more = [(code(name), "yes" if name in WINDOWED else "") for name in PACKED]
    return page(
        "Supported models",
        _INTRODUCTION,
        table(header, rows),
        "## Every architecture that is taken",
        _EVERY,
        table(("`model_type`", "sliding windows tested"), more),
        _OTHERS,
    )
