"""The fast scorer that fits a loaded Q model."""

from qnet.checkpoint import LoadedImplicitQ, LoadedQModel, LoadedQNet
from qnet.implicit_scoring import SharedPrefixImplicitScorer
from qnet.scoring import SharedPrefixScorer


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
