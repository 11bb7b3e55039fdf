"""The page of the architectures that the scorers' contract suite covers."""

from typing import Final

from transformers.models.auto import AutoModelForCausalLM

from tests.support.tiny_models import ARCHITECTURES, config_of
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    "The contract suite (`tests/contract/scorers`) compares the fast scorers with a plain forward "
    "pass of each whole sequence on tiny random models of these architectures, as a QNet and as "
    "an implicit Q, in float32 and bfloat16. On CUDA it runs where torch finds a device."
)
_OTHERS: Final = (
    "An architecture that is not in the table is tried when it is loaded: a checkpoint whose Q "
    "differs between packed and plain sequences is refused with the reason. Refused as well are "
    "architectures with a memory beside attention, and rope types whose angles change with the "
    "length (`dynamic`, `longrope`), unless vLLM runs the trunk. As a policy without a Q model, "
    "any architecture can be an upstream."
)


def models_page() -> str:
    """One row per architecture."""
    rows = []
    for architecture in ARCHITECTURES:
        config = config_of(architecture)
        model = AutoModelForCausalLM.from_config(config)
        rows.append((code(config.model_type), code(type(model).__name__), "yes", "yes"))
    header = ("`model_type`", "class in transformers", "QNet", "implicit Q")
    return page("Supported models", _INTRODUCTION, table(header, rows), _OTHERS)
