"""A baseline Q without a network: ridge regression on the outcome, over hashed binary features.

    q(s, a) = w · x(s, a) + b,   min |X w + b − y|² + alpha |w|²

y is the return-to-go, which is the episode's outcome. Nothing here is tuned; it is the floor.
"""

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import lsqr

from qguide.qnet.chat_messages import message_key
from qguide.qnet.types import History, Message, Scorer, ScoreRequest, ScoreResult
from qguide.training.data.trajectories import Trajectory

Keys = NDArray[np.uint64]
BUCKETS: Final = 2**18
_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)
_WORD = re.compile(r"\w+")


class RidgeScorer(Scorer):
    """See `qguide.qnet.types.Scorer`."""

    name = "ridge"

    def __init__(self, weights: NDArray[np.float64], bias: float) -> None:
        self._weights, self._bias = weights, bias

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate."""
        return [ScoreResult(tuple(self._q(request.history, c) for c in request.candidates), 0) for request in requests]

    def _q(self, history: History, candidate: Message) -> float:
        return float(self._weights[features(history, candidate)].sum() + self._bias)


class Ridge:
    """See `benchmarks.strangers.protocol.Learner`."""

    name = "ridge"

    def __init__(self, alpha: float = 30.0) -> None:
        self._alpha = alpha

    def fit(self, rows: Sequence[Trajectory]) -> RidgeScorer:
        """Fit Q to the outcomes of recorded episodes."""
        found: list[NDArray[np.int64]] = []
        outcomes: list[float] = []
        for row in rows:
            messages = row.messages
            for turn, message in enumerate(messages):
                if message.role == "assistant":
                    found.append(features(messages[:turn], message))
                    outcomes.append(row.reward)
        ends = np.cumsum([0, *map(len, found)])
        ones = np.ones(ends[-1])
        design = sparse.csr_matrix((ones, np.concatenate(found), ends), (len(found), BUCKETS))
        target = np.asarray(outcomes)
        bias = float(target.mean())
        weights = lsqr(design, target - bias, damp=sqrt(self._alpha), iter_lim=200)[0]
        return RidgeScorer(weights, bias)


def features(history: History, candidate: Message) -> NDArray[np.int64]:
    """Buckets of the features of a candidate in a state, each once."""
    task = next(message.content for message in history if message.role == "user")
    replies = [message_key(message) for message in history if message.role == "assistant"]
    observed = [message.content for message in history if message.role in ("user", "tool")][1:]
    said = message_key(candidate)
    action = _hash(" ".join(_WORD.findall(said.lower())))
    verb = _hash((_WORD.findall(said.lower()) or [""])[0])
    asked, last = _words(task), _words(observed[-1] if observed else "")
    recent, near = _all(observed[-6:]), _all(observed[-3:])
    answers = [a for reply, a in zip(replies, observed, strict=False) if reply == said]
    groups = [
        np.asarray([action], np.uint64),
        _pair(verb, np.asarray([len(replies)], np.uint64), 1),
        _pair(action, asked, 2),
        _pair(action, last, 3),
        _pair(action, recent, 4),
        _pair(action, np.asarray([len(answers)], np.uint64), 5),
        _pair(action, _all(answers), 6),
        _pair(action, np.intersect1d(asked, last), 7),
        _pair(action, (asked[:, None] * _PRIME + near[None, :]).ravel(), 8),
    ]
    keys = np.concatenate(groups)
    return np.unique((keys >> np.uint64(20)) % np.uint64(BUCKETS)).astype(np.int64)


def _pair(action: np.uint64, others: Keys, kind: int) -> Keys:
    """Keys of an action and each of the others, different for each kind of pair."""
    own = np.asarray([action], np.uint64) * np.uint64(2 * kind + 1)
    mixed: Keys = (others + own) * _PRIME
    return mixed


@lru_cache(maxsize=100_000)
def _hash(text: str) -> np.uint64:
    data = text.encode()
    return np.uint64(zlib.crc32(data) << 32 | zlib.adler32(data))


@lru_cache(maxsize=20_000)
def _words(text: str) -> Keys:
    return np.asarray([_hash(word) for word in sorted(set(_WORD.findall(text.lower())))], np.uint64)


def _all(texts: Sequence[str]) -> Keys:
    """The words of several texts, each once."""
    if not texts:
        return np.empty(0, np.uint64)
    found: Keys = np.unique(np.concatenate([_words(text) for text in texts]))
    return found
