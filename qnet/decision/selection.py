"""Choice of a candidate by Q. Pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qnet.errors import InvalidCandidatesError, ScorerUnavailableError
from qnet.types import Message

Reason = Literal["highest_q", "tied_highest_q", "only_candidate", "unanimous", "fallback"]
"""Reason for the choice of a candidate; the last two occur only if no Q was read."""

TieBreak = Literal["first", "most-drawn", "logprob"]
"""Order among candidates of equal Q: drawn first, drawn most often, or likeliest by the policy."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen candidate and why.

    Attributes:
        chosen: its index.
        reason: `highest_q`; `tied_highest_q` where other candidates have the same Q;
            `only_candidate` where there was nothing to choose between.
    """

    chosen: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Distinct:
    """Candidates without their repetitions.

    Attributes:
        messages: each once, in the order of first appearance.
        index: which of `messages` each candidate is.
    """

    messages: tuple[Message, ...]
    index: tuple[int, ...]


def distinct(candidates: Sequence[Message]) -> Distinct:
    """The candidates with equal messages merged."""
    index = {message: i for i, message in enumerate(dict.fromkeys(candidates))}
    return Distinct(tuple(index), tuple(index[message] for message in candidates))


def ranking(candidates: Sequence[Message], q_values: Sequence[float] | None) -> list[int]:
    """Indices of the candidates, the best first: by Q, equal ones in their order, repetitions last.

    Args:
        q_values: None leaves the order as it is.
    """
    first = {message: index for index, message in reversed(list(enumerate(candidates)))}
    q = [0.0] * len(candidates) if q_values is None else q_values
    return sorted(
        range(len(candidates)), key=lambda index: (first[candidates[index]] != index, -q[index])
    )


def select(
    candidates: Sequence[Message],
    q_values: Sequence[float],
    *,
    tie_break: TieBreak = "first",
    logprobs: Sequence[float | None] = (),
) -> Selection:
    """The candidate with the highest Q; the tie-break chooses where several have it.

    QLASS, algorithm 4: a_t = argmax over the M candidates of Q(s_t, a).

    Args:
        candidates: as they were drawn, repetitions included.
        q_values: one per candidate.
        tie_break: the first candidate that it prefers is taken.
        logprobs: of each candidate by the policy, for `tie_break` "logprob"; None if unknown.

    Raises:
        InvalidCandidatesError: there is none to choose from.
        ScorerUnavailableError: a Q-value is not a finite number.
    """
    if not candidates:
        raise InvalidCandidatesError("there are 0 candidates; give at least 1")
    broken = [q for q in q_values if not math.isfinite(q)]
    if broken:
        raise ScorerUnavailableError(f"a Q-value is {broken[0]}; the Q model is broken")
    highest = max(q_values)
    best = [i for i, q in zip(range(len(candidates)), q_values, strict=True) if q == highest]
    tied = {candidates[i] for i in best}
    if len(set(candidates)) == 1:
        return Selection(best[0], "only_candidate")
    chosen = max(best, key=lambda i: _preference(i, candidates, tie_break, logprobs))
    return Selection(chosen, "tied_highest_q" if len(tied) > 1 else "highest_q")


def _preference(
    index: int,
    candidates: Sequence[Message],
    tie_break: TieBreak,
    logprobs: Sequence[float | None],
) -> float:
    match tie_break:
        case "first":
            return 0.0
        case "most-drawn":
            return float(candidates.count(candidates[index]))
        case "logprob":
            logprob = logprobs[index] if logprobs else None
            return -math.inf if logprob is None else logprob
