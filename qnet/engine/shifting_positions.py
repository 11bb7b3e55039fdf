"""Rope types whose angles depend on the longest sequence of a batch."""

from typing import Final

from transformers import PretrainedConfig

_SHIFTING: Final = {"dynamic", "longrope"}


def shifting_rope(config: PretrainedConfig) -> str | None:
    """The rope type of a model whose angles change with the length; None where they stay.

    What was computed for a shorter sequence, or beside a longer one, is not what such a model
    computes for a sequence alone.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    of_layers = [kind for kind in rope.values() if isinstance(kind, dict)]
    kinds = {str(one.get("rope_type")) for one in (rope, *of_layers)}
    return min(kinds & _SHIFTING, default=None)
