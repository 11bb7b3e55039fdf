"""Context length and kind of positions of a model, from its configuration alone."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_UNBOUNDED = 2**31
_SHIFTING = {"dynamic", "longrope"}  # rope types whose angles depend on the longest sequence of a batch
_LIMITS = ("max_position_embeddings", "attention_chunk_size")


def context_length(config: "PretrainedConfig") -> int:
    """Most tokens that the model takes."""
    limits = [getattr(config, name, None) for name in _LIMITS]
    return min((int(limit) for limit in limits if limit), default=_UNBOUNDED)


def shifting_rope(config: "PretrainedConfig") -> str | None:
    """The rope type of a model whose angles change with the length; None where they stay.

    What was computed for a shorter sequence, or beside a longer one, is not what such a model
    computes for a sequence alone.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    of_layers = [kind for kind in rope.values() if isinstance(kind, dict)]
    kinds = {str(one.get("rope_type")) for one in (rope, *of_layers)}
    return min(kinds & _SHIFTING, default=None)
