"""A Q model without a network: linear in hashed features of state and candidate.

    Q(s, a) = V(s) + A(s, a),   V(s) = v · x(s) + b,   A(s, a) = w · x(s, a)

Its folder holds `config.json`, `model.safetensors` and `manifest.json`, like any checkpoint's; it
has neither a tokenizer nor a trunk, and reading it needs no torch. Beside the weights are hashes of
the words of states that it reads, and quantiles of the numbers that were read after a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from qguide.qnet.errors import CheckpointError, OutdatedFeaturesError
from qguide.qnet.features.domain import Domain
from qguide.qnet.features.hashing import QUANTILES, Hasher, Sizes, Sparse
from qguide.qnet.features.state_action import FEATURES_VERSION, State, candidate_features, state_features, state_of
from qguide.qnet.models.manifest import Manifest, read_manifest, write_manifest
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import History, Message, ScoreRequest, ScoreResult

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
_TENSORS: Final = ("advantages", "values")
VOCABULARY: Final = "vocabulary"
_SIZES: Final = ("size_places", "size_quantiles")


class FeatureQConfig(BaseModel, frozen=True, extra="forbid"):
    """Configuration of a Q model without a network.

    Attributes:
        bits: weights have 2^bits places.
        salt: of the hashes, in hex.
        mean: value of a state of which nothing is known.
    """

    model_type: str = "qguide-features"
    features_version: int = FEATURES_VERSION
    bits: int = Field(ge=8, le=24)
    salt: str = Field(pattern=r"^([0-9a-f]{2}){0,64}$")
    mean: float = Field(allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class FeatureQ:
    """A Q model without a network.

    Attributes:
        values: (2^bits,) weights v of the state.
        advantages: (2^bits,) weights w of the candidate in it.
    """

    config: FeatureQConfig
    values: NDArray[np.float32]
    advantages: NDArray[np.float32]
    hasher: Hasher

    def q_values(self, history: History, candidates: tuple[Message, ...]) -> tuple[float, ...]:
        """Q of each candidate."""
        state = state_of(history, self.hasher)
        value = self._value(state)
        return tuple(value + _dot(candidate_features(state, one), self.advantages) for one in candidates)

    def value_of(self, history: History) -> float:
        """V(s) of the state that a history ends in."""
        return self._value(state_of(history, self.hasher))

    def _value(self, state: State) -> float:
        return self.config.mean + _dot(state_features(state), self.values)


def feature_q_of(
    values: NDArray[np.float32], advantages: NDArray[np.float32], *, mean: float, hasher: Hasher
) -> FeatureQ:
    """A Q model of these weights."""
    config = FeatureQConfig(bits=hasher.bits, salt=hasher.salt.hex(), mean=mean)
    return FeatureQ(config, values, advantages, hasher)


def save_feature_q(directory: Path, model: FeatureQ, manifest: Manifest, *, domain: Domain) -> Manifest:
    """Write weights, configuration, domain and manifest; the manifest gets the files' hashes."""
    directory.mkdir(parents=True, exist_ok=True)
    domain.save(directory)
    save_file(_tensors(model), directory / WEIGHTS)
    (directory / CONFIG).write_text(model.config.model_dump_json(indent=2) + "\n")
    return write_manifest(directory, manifest, packages=("numpy",))


def load_feature_q(directory: Path) -> tuple[FeatureQ, Manifest]:
    """The Q model of a folder, and its manifest."""
    manifest = read_manifest(directory)
    if manifest is None or manifest.kind != "features":
        kind = "without a manifest" if manifest is None else f"of kind {manifest.kind}"
        raise CheckpointError(f"{directory} is {kind}, not features; see `qguide learn`")
    try:
        config = FeatureQConfig.model_validate_json((directory / CONFIG).read_bytes())
        tensors = load_file(directory / WEIGHTS)
    except (ValidationError, SafetensorError, OSError) as error:
        raise CheckpointError(f"{directory} does not load: {error}; learn it again") from error
    if config.features_version != FEATURES_VERSION:
        raise OutdatedFeaturesError(
            f"{directory} has features of version {config.features_version}; this version makes "
            f"{FEATURES_VERSION}; learn it again"
        )
    _require_fit(directory, tensors, places=1 << config.bits)
    places, quantiles = (tensors.get(name) for name in _SIZES)
    hasher = Hasher(
        bytes.fromhex(config.salt),
        bits=config.bits,
        vocabulary=tensors.get(VOCABULARY),
        sizes=None if places is None or quantiles is None else Sizes(places, quantiles),
    )
    return FeatureQ(config, tensors["values"], tensors["advantages"], hasher), manifest


def _tensors(model: FeatureQ) -> dict[str, NDArray[Any]]:
    """The weights, and the vocabulary and the sizes of numbers where there are such."""
    tensors: dict[str, NDArray[Any]] = {"values": model.values, "advantages": model.advantages}
    if model.hasher.vocabulary is not None:
        tensors[VOCABULARY] = model.hasher.vocabulary
    if (sizes := model.hasher.sizes) is not None:
        tensors |= dict(zip(_SIZES, (sizes.places, sizes.quantiles), strict=True))
    return tensors


def _require_fit(directory: Path, tensors: dict[str, NDArray[Any]], *, places: int) -> None:
    for name in _TENSORS:
        weights = tensors.get(name)
        if weights is None or weights.shape != (places,) or weights.dtype != np.float32:
            raise CheckpointError(f"{directory}: {name} is not {places:,} numbers of float32; learn it again")
        if not np.isfinite(weights).all():
            raise CheckpointError(f"{directory}: {name} holds values that are not finite; learn it again")
    words = tensors.get(VOCABULARY)
    if words is not None and (words.ndim != 1 or words.dtype != np.uint64):
        raise CheckpointError(f"{directory}: {VOCABULARY} is no list of hashes; learn it again")
    labels, quantiles = (tensors.get(name) for name in _SIZES)
    if labels is None and quantiles is None:
        return
    if labels is None or quantiles is None or not _are_sizes(labels, quantiles):
        raise CheckpointError(
            f"{directory}: {_SIZES[1]} are not {QUANTILES} ascending numbers of each of {_SIZES[0]}; learn it again"
        )


def _are_sizes(labels: NDArray[Any], quantiles: NDArray[Any]) -> bool:
    typed = labels.dtype == np.uint64 and quantiles.dtype == np.float32
    if not typed or labels.ndim != 1 or quantiles.shape != (len(labels), QUANTILES):
        return False
    return bool(np.isfinite(quantiles).all() and (quantiles[:, 1:] >= quantiles[:, :-1]).all())


def _dot(vector: Sparse, weights: NDArray[np.float32]) -> float:
    indices, values = vector
    return float(weights[indices] @ values)


class FeatureScorer(CachingScorer):
    """Q of each candidate by its words; see `qguide.qnet.models.feature_q`.

    Of a candidate that brings what it was answered it is the value of the state that came of it. A
    word counts as a token: nothing else is computed, and nothing is kept between requests.
    """

    def __init__(self, name: str, model: FeatureQ) -> None:
        self.name = name
        self._model = model

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate."""
        return [self._score(request) for request in requests]

    def _score(self, request: ScoreRequest) -> ScoreResult:
        request.require_readable(name=self.name, reads_observation=bool(request.observations))
        history, candidates = request.history, request.candidates
        if request.observations:
            tried = zip(candidates, request.observations, strict=True)
            q_values = tuple(self._model.value_of((*history, candidate, *answer)) for candidate, answer in tried)
        else:
            q_values = self._model.q_values(history, candidates)
        messages = (*history, *candidates, *chain.from_iterable(request.observations))
        return ScoreResult(q_values, sum(len(message.text.split()) for message in messages))
