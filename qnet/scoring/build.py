"""Builders of the scorers for a loaded Q model: the fast one and the reference."""

from qguide.qnet.engine.packed_model import DEFAULT_TOKENS_PER_FORWARD
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import LoadedEnsemble, LoadedImplicitQ, LoadedQModel, LoadedQNet
from qguide.qnet.scoring.ensemble import EnsembleScorer, NaiveEnsembleScorer
from qguide.qnet.scoring.full_sequences import FullSequenceScorer
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer

FastScorer = SharedPrefixScorer | SharedPrefixImplicitScorer | EnsembleScorer
ReferenceScorer = NaiveScorer | NaiveImplicitScorer | NaiveEnsembleScorer


def build_shared_prefix_scorer(
    loaded: LoadedQModel,
    *,
    cache_bytes: int,
    tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
) -> FastScorer:
    """The fast scorer of a Q model of any kind."""
    match loaded:
        case LoadedQNet():
            return SharedPrefixScorer(
                loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
            )
        case LoadedImplicitQ():
            return SharedPrefixImplicitScorer(
                loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
            )
        case LoadedEnsemble():
            share = cache_bytes // len(loaded.members)
            members = [
                build_shared_prefix_scorer(
                    member, cache_bytes=share, tokens_per_forward=tokens_per_forward
                )
                for member in loaded.members
            ]
            return EnsembleScorer(loaded.name, members)


def build_serving_scorer(
    loaded: LoadedQModel, *, cache_bytes: int, tokens_per_forward: int, full_sequences: bool
) -> FastScorer | FullSequenceScorer:
    """The fast scorer, or full sequences where that one refuses the architecture.

    Args:
        full_sequences: allow these where no history is kept between steps, too; without it such an
            architecture is refused with the reason.
    """
    try:
        return build_shared_prefix_scorer(
            loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
        )
    except CheckpointError:
        members = loaded.members if isinstance(loaded, LoadedEnsemble) else (loaded,)
        scorers = [
            FullSequenceScorer(
                member,
                tokens_per_forward=tokens_per_forward,
                cache_bytes=cache_bytes // len(members),
            )
            for member in members
        ]
        if not full_sequences and not all(scorer.keeps_histories for scorer in scorers):
            raise
    return scorers[0] if loaded is members[0] else EnsembleScorer(loaded.name, scorers)


def build_naive_scorer(loaded: LoadedQModel) -> ReferenceScorer:
    """The reference, which the fast one has to equal."""
    if isinstance(loaded, LoadedEnsemble):
        return NaiveEnsembleScorer(loaded.name, list(map(_naive_scorer, loaded.members)))
    return _naive_scorer(loaded)


def _naive_scorer(loaded: LoadedQNet | LoadedImplicitQ) -> NaiveScorer | NaiveImplicitScorer:
    match loaded:
        case LoadedQNet():
            return NaiveScorer(loaded)
        case LoadedImplicitQ():
            return NaiveImplicitScorer(loaded)
