"""Subjects of the contract: each kind of Q model with its naive and its fast scorer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch

from qguide.qnet.engine.packed_model import DEFAULT_CACHE_BYTES
from qguide.qnet.models.checkpoint import LoadedImplicitQ, load_q_model, load_qnet
from qguide.qnet.models.ensemble import save_ensemble
from qguide.qnet.models.options import HeadFeatures
from qguide.qnet.scoring.build import build_naive_scorer, build_shared_prefix_scorer
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import Message, Scorer, ScoreRequest, ScoreResult
from tests.support.tiny_models import distinct_beginnings, renderer, save_implicit_q, save_policy, save_qnet

Kind = Literal["qnet", "matched-qnet", "observing-qnet", "matched-observing-qnet", "implicit-q", "ensemble"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""A value head on hidden states, one on match features too, the same two after the observation, and
no value head; and the mean of two value heads, each on its own trunk."""

FLOAT32 = float(torch.finfo(torch.float32).eps)


def close_to(q_values: Sequence[float]) -> Any:
    """Equal within what the rounding of float32 may add up to, on any processor."""
    return pytest.approx(q_values, abs=1e-5, rel=10 * FLOAT32)


class Asking(Scorer):
    """A scorer that gets each request as it takes it: with an answer to each candidate, or without.

    Args:
        reads_observation: Q is read after what each candidate was answered.
    """

    def __init__(self, scorer: Scorer, reads_observation: bool = False) -> None:
        self.name = scorer.name
        self.scorer = scorer
        self.reads_observation = reads_observation

    def asked(self, request: ScoreRequest) -> ScoreRequest:
        """The request as the scorer takes it."""
        if not self.reads_observation:
            return replace(request, observations=())
        return request if request.observations else tried(request)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return self.scorer.score([self.asked(request) for request in requests])


@dataclass(frozen=True, slots=True)
class Subject:
    """A Q model, loaded once for each scorer so that neither can disturb the other.

    Attributes:
        folder: with the checkpoints.
        naive: the reference.
        build_fast: a fast scorer with an empty cache; takes `cache_bytes`, `tokens_per_forward`.
        passes: how many models every token goes through.
        from_history: tokens at the history's end that are computed with the candidates: the last
            one, from which an implicit Q reads the first of an action.
    """

    folder: Path
    naive: Asking
    build_fast: Callable[..., Asking]
    passes: int = 1
    from_history: int = 0
    _known: dict[ScoreRequest, float] = field(default_factory=dict)

    def q_values(self, request: ScoreRequest) -> list[float]:
        """Reference values; each sequence is computed once, because that is slow."""
        alone = one_by_one(self.naive.asked(request))
        for one in alone:
            if one not in self._known:
                [self._known[one]] = self.naive.score([one])[0].q_values
        return [self._known[one] for one in alone]

    def tokens(self, request: ScoreRequest) -> int:
        """Minimum number of tokens that a scorer without a cache has to compute."""
        history = renderer().encode_history(request.history)
        paths = [behind(one) for one in one_by_one(self.naive.asked(request))]
        return self.passes * (len(history) + distinct_beginnings(paths))


def tried(request: ScoreRequest) -> ScoreRequest:
    """The request with an answer to each candidate."""
    answers = (Message("user", f"you see {c.text[:5]}") for c in request.candidates)
    return replace(request, observations=tuple((answer,) for answer in answers))


def one_by_one(request: ScoreRequest) -> list[ScoreRequest]:
    """One request for each candidate."""
    answers = request.observations or ((),) * len(request.candidates)
    return [
        replace(request, candidates=(candidate,), observations=(answer,) if answer else ())
        for candidate, answer in zip(request.candidates, answers, strict=True)
    ]


def behind(request: ScoreRequest) -> list[int]:
    """The tokens of a request's one candidate and of the answer to it."""
    [candidate] = request.candidates
    if not request.observations:
        return renderer().encode_candidate(candidate)
    whole = renderer().encode_history((*request.history, candidate, *request.observations[0]))
    return whole[len(renderer().encode_history(request.history)) :]


def build_subject(
    kind: Kind, architecture: str, folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Subject:
    """A tiny random Q model of that kind, by way of its checkpoint in `folder`."""
    policy = save_policy(folder / "policy", architecture)
    if kind == "ensemble":
        return _build_ensemble(policy, architecture, folder, dtype=dtype, device=device)
    if kind != "implicit-q":
        features: HeadFeatures = "match-1" if kind.startswith("matched") else "none"
        observing = kind.endswith("observing-qnet")
        saved = save_qnet(folder / "qnet", policy, head_features=features, reads_observation=observing)
        qnet = load_qnet(saved, dtype=dtype, device=device)
        assert {parameter.dtype for parameter in qnet.model.parameters()} == {dtype}
        naive = NaiveScorer(load_qnet(saved, dtype=dtype, device=device))
        return Subject(
            folder, Asking(naive, observing), lambda **options: Asking(SharedPrefixScorer(qnet, **options), observing)
        )
    reference = save_policy(folder / "reference", architecture, seed=1)
    saved = save_implicit_q(folder / "implicit", policy, reference)
    one, other = (load_implicit_q(saved, dtype=dtype, device=device) for _ in range(2))
    assert {parameter.dtype for parameter in one.model.parameters()} == {dtype}
    return Subject(
        folder,
        Asking(NaiveImplicitScorer(one)),
        lambda **options: Asking(SharedPrefixImplicitScorer(other, **options)),
        passes=2,
        from_history=1,
    )


def _build_ensemble(policy: Path, architecture: str, folder: Path, *, dtype: torch.dtype, device: str) -> Subject:
    """The mean of a QNet with match features and one without, on different trunks."""
    other_policy = save_policy(folder / "other-policy", architecture, seed=1)
    members = [save_qnet(folder / "first", policy, head_features="match-1"), save_qnet(folder / "second", other_policy)]
    save_ensemble(folder / "ensemble", members, name="tiny-ensemble")
    one, other = (load_q_model(folder / "ensemble", dtype=dtype, device=device) for _ in range(2))
    return Subject(
        folder,
        Asking(build_naive_scorer(one)),
        lambda **options: Asking(build_shared_prefix_scorer(other, **{"cache_bytes": DEFAULT_CACHE_BYTES} | options)),
        passes=2,
    )


def load_implicit_q(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LoadedImplicitQ:
    """Load an implicit Q from `folder`."""
    loaded = load_q_model(folder, dtype=dtype, device=device)
    assert isinstance(loaded, LoadedImplicitQ)
    return loaded
