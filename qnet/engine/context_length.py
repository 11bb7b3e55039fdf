"""Context length of a model, from its configuration alone."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_UNBOUNDED = 2**31
_LIMITS = ("max_position_embeddings", "attention_chunk_size")


def context_length(config: "PretrainedConfig") -> int:
    """Most tokens that the model takes."""
    limits = [getattr(config, name, None) for name in _LIMITS]
    return min((int(limit) for limit in limits if limit), default=_UNBOUNDED)
