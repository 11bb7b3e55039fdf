"""Match features: where a candidate's tokens occurred in the history, and what followed.

Telling valid from invalid actions is mostly matching: is the thing that an action names in the text just read, was this
very action tried before, and what followed? A large trunk finds that out by itself. In a small one the value head,
which reads at the action's last token, does not, so it gets the answers beside the hidden state.

The features depend on token ids and on where turns begin and end, on nothing else: no environment,
no tokenizer, no hidden state. So they are the same in training and in every scorer, wherever the
trunk runs and whatever its cache holds.
"""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import log, log1p
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.engine.token_trie import common_prefix

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

_WHOLE: Final = 0  # all of an action: the end of it that begins at 0 tokens from its end, as `tokens[-0:]` is
_RELATIONS: Final = [(i, j) for j in range(1, RELATED + 1) for i in range(1, RELATED + 1) if i != j]
_POOLED: Final = ("share", "minimum", "first", "second", *(f"last-{back}" for back in range(TAIL)))
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
class TokenTurns:
    """A history's tokens, cut at its actions.

    Attributes:
        observations: what stands before each action, the template's framing included; the last
            one is what stands before the candidate.
        actions: one fewer, each without its end-of-turn token.
    """

    observations: tuple[Tokens, ...]
    actions: tuple[Tokens, ...]


def turns_of(token_ids: Sequence[int], action_spans: Sequence[tuple[int, int]]) -> TokenTurns:
    """The turns of a history that ends where a candidate begins.

    Args:
        token_ids: of the history, the generation prompt included.
        action_spans: [start, end) of each assistant message, its end-of-turn token included.
    """
    starts = [0, *(end for _, end in action_spans)]
    ends = [*(start for start, _ in action_spans), len(token_ids)]
    return TokenTurns(
        tuple(tuple(token_ids[a:b]) for a, b in zip(starts, ends, strict=True)),
        tuple(tuple(token_ids[start : end - 1]) for start, end in action_spans),
    )


def match_features(turns: TokenTurns, candidates: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """(C, F) features of the candidates that may follow a history, as `MATCH_FEATURES` names them.

    All lie between 0 and about 4, most of them being 0 or 1.

    Args:
        candidates: token ids, end-of-turn token included.
    """
    if not candidates:
        return np.empty((0, len(MATCH_FEATURES)), dtype=np.float32)
    history = _History(turns)
    actions = [tuple(candidate[:-1]) for candidate in candidates]
    features_CF = np.empty((len(candidates), len(MATCH_FEATURES)), dtype=np.float32)
    # One call of numpy for all candidates and not one for each: it may well cost more than the
    # arithmetic, and all of this stands beside a forward pass of some milliseconds.
    features_CF[:, :_POOLED_FLAGS] = _pooled(history.flags(actions), list(map(len, actions)))
    features_CF[:, _POOLED_FLAGS:] = [
        [*_relations(history, tokens), *_repetitions(history, tokens), *history.state(len(tokens))]
        for tokens in actions
    ]
    return features_CF


def observed_features(
    history: Sequence[int], action_spans: Sequence[tuple[int, int]], action: Sequence[int], observed: Sequence[int]
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

    def __init__(self, turns: TokenTurns) -> None:
        self.turns = turns
        self.seen = [frozenset(observation) for observation in turns.observations]
        self.last_seen = _last_turns(turns.observations)
        self.counts = Counter(turns.observations)
        self.in_order = sorted(turns.actions)
        self._turns_of_last: dict[Tokens, list[int]] = defaultdict(list)
        for turn, action in enumerate(turns.actions):
            self._turns_of_last[action[-1:]].append(turn)
        self._last_said = _last_turns(turns.actions)
        self._neighbours = frozenset(pairwise(turns.observations[-1]))
        self._flags_at: dict[tuple[int, int, bool, bool], tuple[float, ...]] = {}
        self._followed: dict[tuple[int, int], tuple[float, ...]] = {}
        self._state = self._candidates_aside()

    def flags(self, actions: Sequence[Tokens]) -> NDArray[np.float32]:
        """(T + 1, F) flags of each token of all actions, named in `FLAGS`; the last row is 0."""
        rows: dict[int, int] = {}
        row_T: list[int] = []
        follows_T: list[bool] = []
        for tokens in actions:
            for before, token in pairwise((-1, *tokens)):
                row_T.append(rows.setdefault(token, len(rows)))
                follows_T.append((before, token) in self._neighbours)
        flags_TF = np.zeros((len(row_T) + 1, len(FLAGS)), dtype=np.float32)
        if row_T:
            of_token = np.array([self._flags_of(token) for token in rows], dtype=np.float32)
            flags_TF[:-1, :-1] = of_token[row_T]
            flags_TF[:-1, -1] = follows_T
        return flags_TF

    def turns_alike(self, tokens: Tokens) -> list[list[int]]:
        """Turns of the actions with the same last tokens, for each of `SUFFIXES` and all tokens."""
        # Each list holds the next one: what ends with the same 4 tokens ends with the same 3.
        actions = self.turns.actions
        turns = self._turns_of_last.get(tokens[-1:], [])
        found = [turns]
        for length in (*SUFFIXES[1:], _WHOLE):
            if turns:
                ending = tokens[-length:]
                turns = [turn for turn in turns if actions[turn][-length:] == ending]
            found.append(turns)
        return found

    def actions_of(self, turns: Sequence[int]) -> set[Tokens]:
        """The different actions of these turns."""
        return {self.turns.actions[turn] for turn in turns}

    def followed(self, turns: Sequence[int]) -> tuple[float, ...]:
        """Answer to the latest of the actions of these turns."""
        if not turns:
            return (0.0,) * len(_FOLLOWED)
        key = turns[-1], len(turns)
        known = self._followed.get(key)
        if known is None:
            observations = self.turns.observations
            answer = observations[turns[-1] + 1]
            known = self._followed[key] = (
                1.0,
                log1p(len(turns)),
                FADE ** (len(observations) - 2 - turns[-1]),
                log(self.counts[answer]),
                float(answer == observations[-1]),
                _length(answer),
            )
        return known

    def state(self, candidate_tokens: int) -> Sequence[float]:
        """Features that do not depend on which tokens the candidate has."""
        before, after = self._state
        return (*before, min(candidate_tokens, 60) / 20, *after)

    def _candidates_aside(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The features of the state before and after the candidate's length."""
        observations = self.turns.observations
        last = observations[-1]
        before = (
            min(len(observations), 60) / 20,
            float(last in observations[-2:-1]),
            log(self.counts[last]),
            _length(last),
        )
        latest = observations[-4:]
        return before, (float(last in observations[-3:-2]), len(set(latest)) / len(latest))

    def _flags_of(self, token: int) -> tuple[float, ...]:
        """All but the last of `FLAGS`, which depends on the token before it, too."""
        last = len(self.seen) - 1
        seen, said = self.last_seen.get(token, -1), self._last_said.get(token, -1)
        place = (seen, said, last > 0 and token in self.seen[last - 1], token in self.seen[0])
        known = self._flags_at.get(place)  # many tokens have the same
        if known is None:
            known = self._flags_at[place] = (
                seen == last,
                *place[2:],
                seen >= max(0, last - 2),
                seen >= 0,
                said >= 0 and said == last - 1,
                said >= 0,
                FADE ** (last - seen) if seen >= 0 else 0.0,
                FADE ** (last - 1 - said) if said >= 0 else 0.0,
            )
        return known


def _last_turns(turns: Sequence[Tokens]) -> dict[int, int]:
    last: dict[int, int] = {}
    for turn, tokens in enumerate(turns):
        last.update(dict.fromkeys(tokens, turn))
    return last


def _pooled(flags_TF: NDArray[np.float32], lengths: Sequence[int]) -> NDArray[np.float32]:
    """(C, P * F) flags by place; zeros where a candidate has no such token.

    Args:
        flags_TF: of the candidates' tokens, one candidate after the other, and a row of zeros.
        lengths: number of tokens of each candidate.
    """
    nowhere = len(flags_TF) - 1
    starts = list(accumulate(lengths, initial=0))[:-1]
    places_CP = [
        [
            *(start + i if i < length else nowhere for i in range(2)),
            *(start + length - i if i <= length else nowhere for i in range(1, TAIL + 1)),
        ]
        for start, length in zip(starts, lengths, strict=True)
    ]
    pooled_CPF = np.zeros((len(lengths), len(_POOLED), len(FLAGS)), dtype=np.float32)
    pooled_CPF[:, 2:] = flags_TF[places_CP]
    spoken = [i for i, length in enumerate(lengths) if length]
    if spoken:
        starts_S = [starts[i] for i in spoken]
        lengths_S1 = np.array([[lengths[i]] for i in spoken], dtype=np.float32)
        pooled_CPF[spoken, 0] = np.add.reduceat(flags_TF[:-1], starts_S, axis=0) / lengths_S1
        pooled_CPF[spoken, 1] = np.minimum.reduceat(flags_TF[:-1], starts_S, axis=0)
    return pooled_CPF.reshape(len(lengths), -1)


def _relations(history: _History, tokens: Tokens) -> list[bool]:
    """1 where the latest observation that holds token j from the end holds token i, too."""
    tail = tokens[: -RELATED - 1 : -1]
    missing = [False] * (RELATED - len(tail))
    found: list[bool] = []
    for j, token in enumerate(tail):
        turn = history.last_seen.get(token)
        together = history.seen[turn] if turn is not None else ()
        found += [other in together for i, other in enumerate(tail) if i != j]
        found += missing
    return found + [False] * (len(_RELATIONS) - len(found))


def _repetitions(history: _History, tokens: Tokens) -> list[float]:
    """Answers to the same candidate and to those that end alike, and its likeness to others."""
    *alike, same = history.turns_alike(tokens)
    last = history.turns.actions[-1] if history.turns.actions else ()
    backwards, at = tokens[::-1], bisect(history.in_order, tokens)
    neighbours = history.in_order[max(0, at - 1) : at + 1]  # of all actions these share the longest beginning
    return [
        *history.followed(same),
        *chain.from_iterable(map(history.followed, alike)),
        _likeness(max((common_prefix(a[::-1], backwards) for a in history.actions_of(alike[0])), default=0)),
        _likeness(common_prefix(last[::-1], backwards)),
        _likeness(max((common_prefix(other, tokens) for other in neighbours), default=0)),
        _likeness(common_prefix(last, tokens)),
    ]


def _length(observation: Tokens) -> float:
    return min(len(observation), 60) / 30


def _likeness(shared: int) -> float:
    return min(shared, 16) / 8
