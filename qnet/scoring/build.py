"""The scorers that fit a loaded Q model, the fast one and the reference."""

from qnet.models.checkpoint import LoadedImplicitQ, LoadedQModel, LoadedQNet
from qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer


def build_shared_prefix_scorer(
    loaded: LoadedQModel, *, cache_bytes: int
) -> SharedPrefixScorer | SharedPrefixImplicitScorer:
    """Scores with the Q model of either kind.

    Args:
        cache_bytes: for the histories kept between steps.

    Raises:
        CheckpointError: the architecture does not run on packed tokens.
    """
    match loaded:
        case LoadedQNet():
            return SharedPrefixScorer(loaded, cache_bytes=cache_bytes)
        case LoadedImplicitQ():
            return SharedPrefixImplicitScorer(loaded, cache_bytes=cache_bytes)


def build_naive_scorer(loaded: LoadedQModel) -> NaiveScorer | NaiveImplicitScorer:
    """What the fast one has to equal."""
    match loaded:
        case LoadedQNet():
            return NaiveScorer(loaded)
        case LoadedImplicitQ():
            return NaiveImplicitScorer(loaded)
