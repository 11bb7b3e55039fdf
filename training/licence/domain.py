"""Fit of a Q model's domain to the states that it is trained on; see `qguide.qnet.features.domain`.

The limits are those that 99.5 % of held-back states keep, with a margin, for each of the two
shares: each fifth of the tasks is measured by the words of the other four.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from qguide.qnet.features.domain import DOMAIN, AnyDomain, Domain, Hash, state_hashes, union
from qguide.qnet.models.manifest import Manifest, replace_manifest, sha256_of
from qguide.qnet.types import History

_KEPT: Final = 0.995
"""Share of held-back states within each limit; both are kept by 99 %."""
_COMMON: Final = 0.98
"""Share of the states that have a common word."""
_FOLDS: Final = 5
LEAST_LIMIT: Final = 0.05
"""Limit where all held-back states have a smaller share, so that one new word is no alarm."""
_UNKNOWN_LIMIT: Final = 0.4
"""Of both shares where there are fewer tasks than folds, so that nothing can be measured."""
_MOST_STATES: Final = 20_000
"""States that are read, evenly spread over those that are given."""
_SALT_DIGITS: Final = 32
_MARGIN: Final = 1.25
"""The limit over the quantile, because a few hundred states do not show the rarest."""


@dataclass(frozen=True, slots=True)
class _Words:
    known: frozenset[Hash]
    common: frozenset[Hash]


def salt_of(manifest: Manifest) -> str:
    """Salt of the hashes of a trained checkpoint: its data's, so that runs can be repeated."""
    return manifest.data_sha256[:_SALT_DIGITS]


def fit_domain(states: Iterable[tuple[str, History]], *, salt: str = "", least: float = LEAST_LIMIT) -> Domain:
    """The domain of these states, each with its task.

    Args:
        states: iterated twice; only those that are read are held.
        salt: of the words' hashes, in hex.
        least: limit of both shares where held-back states keep a smaller one.
    """
    count = sum(1 for _ in states)
    spread = islice(states, 0, None, 1 + count // _MOST_STATES)
    found = [(task, state_hashes(history, salt=salt)) for task, history in spread]
    number = {task: i for i, task in enumerate(dict.fromkeys(task for task, _ in found))}
    folds = _FOLDS if len(number) >= _FOLDS else 0
    unknown, missing = ([0.0], [0.0]) if folds else ([_UNKNOWN_LIMIT], [_UNKNOWN_LIMIT])
    for fold in range(folds):
        others = _words([words for task, words in found if number[task] % folds != fold])
        for task, words in found:
            if number[task] % folds == fold and words:
                unknown.append(len(words - others.known) / len(words))
                missing.append(len(others.common - words) / max(len(others.common), 1))
    whole = _words([words for _, words in found])
    return Domain(
        salt=salt,
        known=whole.known,
        common=whole.common,
        unknown_limit=_limit(unknown, least),
        missing_limit=_limit(missing, least),
    )


@dataclass(frozen=True, slots=True)
class Outside:
    """States of recorded episodes beside a domain.

    Attributes:
        distances: of each state, in order; above 1 is outside.
    """

    distances: tuple[float, ...]
    tasks: int
    tasks_outside: int

    @property
    def share(self) -> float:
        """Share of the states that are outside."""
        return sum(one > 1 for one in self.distances) / len(self.distances)


def outside_of(domain: AnyDomain, states: Sequence[tuple[str, History]]) -> Outside:
    """The states beside a domain, each with its task."""
    found = [(task, domain.distance(history).value) for task, history in states]
    return Outside(
        distances=tuple(distance for _, distance in found),
        tasks=len({task for task, _ in found}),
        tasks_outside=len({task for task, distance in found if distance > 1}),
    )


def put_domain(directory: Path, manifest: Manifest, domain: Domain) -> None:
    """Give a checkpoint a domain, and its manifest the file's hash."""
    domain.save(directory)
    files = manifest.files | {DOMAIN: sha256_of(directory / DOMAIN)}
    replace_manifest(directory, manifest.model_copy(update={"files": dict(sorted(files.items()))}))


def _words(states: Sequence[frozenset[Hash]]) -> _Words:
    counts = Counter(word for words in states for word in words)
    least = _COMMON * len(states)
    return _Words(union(states), frozenset(w for w, count in counts.items() if count >= least))


def _limit(shares: Sequence[float], least: float) -> float:
    quantile = float(np.quantile(shares, _KEPT)) * _MARGIN
    return min(max(quantile, least), 1.0)
