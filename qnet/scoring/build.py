"""Builders of the scorers for a loaded Q model: the fast one and the reference."""

from qnet.engine.packed_model import DEFAULT_TOKENS_PER_FORWARD
from qnet.errors import CheckpointError
from qnet.models.checkpoint import LoadedImplicitQ, LoadedQModel, LoadedQNet
from qnet.scoring.full_sequences import FullSequenceScorer
from qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer


def build_shared_prefix_scorer(
    loaded: LoadedQModel,
    *,
    cache_bytes: int,
    tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
) -> SharedPrefixScorer | SharedPrefixImplicitScorer:
    """The fast scorer of a Q model of either kind.

    Args:
        cache_bytes: for the histories kept between steps.
        tokens_per_forward: longest packed row of one forward pass.

    Raises:
        CheckpointError: the architecture does not run on packed tokens.
    """
    match loaded:
        case LoadedQNet():
            return SharedPrefixScorer(
                loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
            )
        case LoadedImplicitQ():
            return SharedPrefixImplicitScorer(
                loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
            )


def build_serving_scorer(
    loaded: LoadedQModel, *, cache_bytes: int, tokens_per_forward: int, full_sequences: bool
) -> SharedPrefixScorer | SharedPrefixImplicitScorer | FullSequenceScorer:
    """The fast scorer, or full sequences where that one refuses the architecture.

    Args:
        full_sequences: allow these; without it such an architecture is refused with the reason.

    Raises:
        CheckpointError: the architecture does not run on packed tokens, and nothing else may.
    """
    try:
        return build_shared_prefix_scorer(
            loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
        )
    except CheckpointError:
        if not full_sequences:
            raise
        return FullSequenceScorer(build_naive_scorer(loaded))


def build_naive_scorer(loaded: LoadedQModel) -> NaiveScorer | NaiveImplicitScorer:
    """The reference, which the fast one has to equal."""
    match loaded:
        case LoadedQNet():
            return NaiveScorer(loaded)
        case LoadedImplicitQ():
            return NaiveImplicitScorer(loaded)
