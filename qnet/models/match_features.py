"""Match features: where a candidate's tokens occurred in the history, and what followed.

Telling valid from invalid actions is mostly matching: is the thing that an action names in the text
just read, was this very action tried before, and what followed? A large trunk finds that out by
itself. In a small one the value head, which reads at the action's last token, does not, so it gets
the answers beside the hidden state.

The features depend on token ids and on where turns begin and end, on nothing else: no environment,
no tokenizer, no hidden state. So they are the same in training and in every scorer, wherever the
trunk runs and whatever its cache holds.
"""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import log, log1p
from typing import Final

import numpy as np
from numpy.typing import NDArray

Tokens = tuple[int, ...]

FLAGS: Final = (
    "in_last_observation",
    "in_observation_before_last",
    "in_first_observation",
    "in_last_three_observations",
    "in_any_observation",
    "in_last_action",
    "in_any_action",
    "observed_recently",
    "said_recently",
    "follows_its_neighbour_in_last_observation",
)
"""Flags of one token; the last but two fade with every turn since its last occurrence."""

TAIL: Final = 8
"""Last tokens of a candidate whose flags are told one by one: the action after the thoughts."""
RELATED: Final = 6
"""Last tokens whose joint occurrence is told."""
SUFFIXES: Final = (1, 3, 4)
"""Actions whose last so many tokens are the candidate's are taken for the same."""
FADE: Final = 0.7

_WHOLE: Final = 0
"""All of an action: the end of it that begins at 0 tokens from its end, as `tokens[-0:]` is."""
_RELATIONS: Final = [(i, j) for j in range(1, RELATED + 1) for i in range(1, RELATED + 1) if i != j]
_POOLED: Final = (
    "share",
    "minimum",
    "first",
    "second",
    *(f"last-{back}" for back in range(TAIL)),
)
_POOLED_FLAGS: Final = len(_POOLED) * len(FLAGS)
_FOLLOWED: Final = ("said", "times", "recency", "answer_count", "answer_is_last", "answer_length")
_SIMILARITY: Final = ("suffix", "suffix_of_last", "prefix", "prefix_of_last")
_STATE: Final = (
    "turns",
    "last_two_observations_equal",
    "last_observation_count",
    "last_observation_length",
    "candidate_length",
    "last_observation_is_the_third_last",
    "distinct_of_last_four_observations",
)

MATCH_FEATURES: Final = tuple(
    chain(
        (f"{place}.{flag}" for place in _POOLED for flag in FLAGS),
        (f"last-{i - 1}.with.last-{j - 1}" for i, j in _RELATIONS),
        (f"same.{name}" for name in _FOLLOWED),
        (f"same_last_{n}.{name}" for n in SUFFIXES for name in _FOLLOWED),
        _SIMILARITY,
        _STATE,
    )
)
"""Name of each feature, in order."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A history's tokens, cut at its actions.

    Attributes:
        observations: what stands before each action, the template's framing included; the last
            one is what stands before the candidate.
        actions: one fewer, each without its end-of-turn token.
    """

    observations: tuple[Tokens, ...]
    actions: tuple[Tokens, ...]


def turns_of(token_ids: Sequence[int], action_spans: Sequence[tuple[int, int]]) -> Turns:
    """The turns of a history that ends where a candidate begins.

    Args:
        token_ids: of the history, the generation prompt included.
        action_spans: [start, end) of each assistant message, its end-of-turn token included.
    """
    starts = [0, *(end for _, end in action_spans)]
    ends = [*(start for start, _ in action_spans), len(token_ids)]
    return Turns(
        tuple(tuple(token_ids[a:b]) for a, b in zip(starts, ends, strict=True)),
        tuple(tuple(token_ids[start : end - 1]) for start, end in action_spans),
    )


def match_features(turns: Turns, candidates: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """(C, F) features of the candidates that may follow a history, as `MATCH_FEATURES` names them.

    All lie between 0 and about 4, most of them being 0 or 1.

    Args:
        turns: the history.
        candidates: token ids, end-of-turn token included.
    """
    history = _History(turns)
    features_CF = np.zeros((len(candidates), len(MATCH_FEATURES)), dtype=np.float32)
    for row_F, candidate in zip(features_CF, candidates, strict=True):
        tokens = tuple(candidate[:-1])
        row_F[:_POOLED_FLAGS] = _pooled(history.flags(tokens))
        row_F[_POOLED_FLAGS:] = [
            *_relations(history, tokens),
            *_repetitions(history, tokens),
            *history.state(len(tokens)),
        ]
    return features_CF


def observed_features(
    history: Sequence[int],
    action_spans: Sequence[tuple[int, int]],
    action: Sequence[int],
    observed: Sequence[int],
) -> NDArray[np.float32]:
    """(1, F) features of an action in the state after it, where its answer is the last observation.

    Args:
        history: token ids of the state before it, the generation prompt included.
        action_spans: of that state's actions.
        action: token ids, end-of-turn token included.
        observed: token ids of what follows, the next generation prompt included.
    """
    span = (len(history), len(history) + len(action))
    turns = turns_of([*history, *action, *observed], [*action_spans, span])
    return match_features(turns, [action])


class _History:
    """Lookup tables of a history, so that a candidate costs its own tokens alone."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.seen = [frozenset(observation) for observation in turns.observations]
        self.last_seen = _last_turns(turns.observations)
        self.counts = Counter(turns.observations)
        self.in_order = sorted(turns.actions)
        self.reversed_in_order = sorted(action[::-1] for action in turns.actions)
        self.turns_of_ending: dict[tuple[int, Tokens], list[int]] = defaultdict(list)
        for turn, action in enumerate(turns.actions):
            for length in (*SUFFIXES, _WHOLE):
                self.turns_of_ending[length, action[-length:]].append(turn)
        self._last_said = _last_turns(turns.actions)
        self._neighbours = frozenset(pairwise(turns.observations[-1]))
        self._flags: dict[int, tuple[float, ...]] = {}

    def flags(self, tokens: Tokens) -> list[tuple[float, ...]]:
        """Flags of each token, named in `FLAGS`."""
        rows = []
        for before, token in pairwise((-1, *tokens)):
            known = self._flags.get(token)
            if known is None:
                known = self._flags[token] = self._flags_of(token)
            rows.append((*known, float((before, token) in self._neighbours)))
        return rows

    def state(self, candidate_tokens: int) -> Iterator[float]:
        """Features that do not depend on which tokens the candidate has."""
        observations = self.turns.observations
        last = observations[-1]
        yield min(len(observations), 60) / 20
        yield float(last in observations[-2:-1])
        yield log(self.counts[last])
        yield _length(last)
        yield min(candidate_tokens, 60) / 20
        yield float(last in observations[-3:-2])
        yield len(set(observations[-4:])) / len(observations[-4:])

    def _flags_of(self, token: int) -> tuple[float, ...]:
        """All but the last of `FLAGS`, which depends on the token before it, too."""
        last = len(self.seen) - 1
        seen, said = self.last_seen.get(token, -1), self._last_said.get(token, -1)
        return (
            float(seen == last),
            float(last > 0 and token in self.seen[last - 1]),
            float(token in self.seen[0]),
            float(seen >= max(0, last - 2)),
            float(seen >= 0),
            float(said >= 0 and said == last - 1),
            float(said >= 0),
            FADE ** (last - seen) if seen >= 0 else 0.0,
            FADE ** (last - 1 - said) if said >= 0 else 0.0,
        )


def _last_turns(turns: Sequence[Tokens]) -> dict[int, int]:
    """By token, the last turn that holds it."""
    last: dict[int, int] = {}
    for turn, tokens in enumerate(turns):
        last.update(dict.fromkeys(tokens, turn))
    return last


def _pooled(flags: Sequence[tuple[float, ...]]) -> NDArray[np.float32]:
    """Flags by place, flattened; zeros where a candidate has no such token."""
    pooled_PF = np.zeros((len(_POOLED), len(FLAGS)), dtype=np.float32)
    if flags:
        flags_TF = np.array(flags, dtype=np.float32)
        pooled_PF[0] = flags_TF.mean(axis=0)
        pooled_PF[1] = flags_TF.min(axis=0)
        pooled_PF[2 : 2 + min(2, len(flags))] = flags_TF[:2]
        pooled_PF[4 : 4 + min(TAIL, len(flags))] = flags_TF[::-1][:TAIL]
    return pooled_PF.ravel()


def _relations(history: _History, tokens: Tokens) -> Iterator[float]:
    """1 where the latest observation that holds token j from the end holds token i, too."""
    nowhere: frozenset[int] = frozenset()
    tail = tokens[: -RELATED - 1 : -1]
    for j in range(RELATED):
        turn = history.last_seen.get(tail[j]) if j < len(tail) else None
        together = nowhere if turn is None else history.seen[turn]
        for i in range(RELATED):
            if i != j:
                yield float(i < len(tail) and tail[i] in together)


def _repetitions(history: _History, tokens: Tokens) -> Iterator[float]:
    """Answers to the same candidate and to those that end alike, and its likeness to others."""
    for length in (_WHOLE, *SUFFIXES):
        turns = history.turns_of_ending.get((length, tokens[-length:]), ())
        yield from _followed(history, turns)
    last = history.turns.actions[-1] if history.turns.actions else ()
    backwards = tokens[::-1]
    yield _likeness(_longest_shared(history.reversed_in_order, backwards))
    yield _likeness(_shared(last[::-1], backwards))
    yield _likeness(_longest_shared(history.in_order, tokens))
    yield _likeness(_shared(last, tokens))


def _followed(history: _History, turns: Sequence[int]) -> tuple[float, ...]:
    """Answer to the latest of these actions."""
    if not turns:
        return (0.0,) * len(_FOLLOWED)
    observations = history.turns.observations
    answer = observations[turns[-1] + 1]
    return (
        1.0,
        log1p(len(turns)),
        FADE ** (len(observations) - 2 - turns[-1]),
        log(history.counts[answer]),
        float(answer == observations[-1]),
        _length(answer),
    )


def _length(observation: Tokens) -> float:
    return min(len(observation), 60) / 30


def _likeness(shared: int) -> float:
    return min(shared, 16) / 8


def _longest_shared(in_order: Sequence[Tokens], tokens: Tokens) -> int:
    """Longest prefix shared with one of these, in tokens; its neighbours share the most."""
    at = bisect(in_order, tokens)
    return max((_shared(other, tokens) for other in in_order[max(0, at - 1) : at + 1]), default=0)


def _shared(one: Tokens, other: Tokens) -> int:
    """Length of the shared prefix, in tokens."""
    shared = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        shared += 1
    return shared
