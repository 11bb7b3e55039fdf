"""What the contract is about: each kind of Q model with its plain and its fast scorer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from qnet.models.checkpoint import LoadedImplicitQ, load_q_model, load_qnet
from qnet.models.qnet import HeadFeatures
from qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qnet.types import Scorer, ScoreRequest
from tests.support.tiny_models import (
    distinct_tokens,
    renderer,
    save_implicit_q,
    save_policy,
    save_qnet,
)

Kind = Literal["qnet", "matched-qnet", "implicit-q"]
KINDS: tuple[Kind, ...] = ("qnet", "matched-qnet", "implicit-q")
"""A value head on hidden states, one on match features too, and none."""

FLOAT32 = float(torch.finfo(torch.float32).eps)


def close_to(q_values: Sequence[float]) -> Any:
    """Equal within 1e-6, or within what float32 can tell apart where Q is larger than that."""
    return pytest.approx(q_values, abs=1e-6, rel=FLOAT32)


@dataclass(frozen=True, slots=True)
class Subject:
    """A Q model, loaded once for each scorer so that neither can disturb the other.

    Attributes:
        folder: with the checkpoints.
        naive: the reference.
        build_fast: a fast scorer with an empty cache; takes `cache_bytes`, `tokens_per_forward`.
        passes: how many models every token goes through.
    """

    folder: Path
    naive: Scorer
    build_fast: Callable[..., Scorer]
    passes: int = 1
    _known: dict[ScoreRequest, float] = field(default_factory=dict)

    def q_values(self, request: ScoreRequest) -> list[float]:
        """What the reference says; it is slow, so each sequence is asked for once."""
        alone = [ScoreRequest(request.history, (c,)) for c in request.candidates]
        for one in alone:
            if one not in self._known:
                [self._known[one]] = self.naive.score([one])[0].q_values
        return [self._known[one] for one in alone]

    def tokens(self, request: ScoreRequest) -> int:
        """What a scorer without a cache has to compute at least."""
        history = renderer().encode_history(request.history)
        return self.passes * (len(history) + distinct_tokens(request.candidates))


def build_subject(
    kind: Kind,
    architecture: str,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Subject:
    """A tiny random Q model of that kind, by way of its checkpoint in `folder`."""
    policy = save_policy(folder / "policy", architecture)
    if kind != "implicit-q":
        features: HeadFeatures = "match-1" if kind == "matched-qnet" else "none"
        saved = save_qnet(folder / "qnet", policy, head_features=features)
        qnet = load_qnet(saved, dtype=dtype, device=device)
        assert {parameter.dtype for parameter in qnet.model.parameters()} == {dtype}
        naive = NaiveScorer(load_qnet(saved, dtype=dtype, device=device))
        return Subject(folder, naive, lambda **options: SharedPrefixScorer(qnet, **options))
    reference = save_policy(folder / "reference", architecture, seed=1)
    saved = save_implicit_q(folder / "implicit", policy, reference)
    one, other = (load_implicit_q(saved, dtype=dtype, device=device) for _ in range(2))
    assert {parameter.dtype for parameter in one.model.parameters()} == {dtype}
    return Subject(
        folder,
        NaiveImplicitScorer(one),
        lambda **options: SharedPrefixImplicitScorer(other, **options),
        passes=2,
    )


def load_implicit_q(
    folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> LoadedImplicitQ:
    """What `folder` holds, which has to be an implicit Q."""
    loaded = load_q_model(folder, dtype=dtype, device=device)
    assert isinstance(loaded, LoadedImplicitQ)
    return loaded
