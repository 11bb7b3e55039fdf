"""Which candidate to take, given their Q-values. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qnet.errors import InvalidCandidatesError, ScorerUnavailableError
from qnet.types import Message

Reason = Literal["highest_q", "tied_highest_q", "only_candidate", "unanimous", "fallback"]
"""Why a candidate was taken; the last two are those of a decision that no Q was read for."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen candidate and why.

    Attributes:
        chosen: its index.
        reason: `highest_q`; `tied_highest_q` where others have the same Q and it came first;
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
    """Equal messages once."""
    index = {message: i for i, message in enumerate(dict.fromkeys(candidates))}
    return Distinct(tuple(index), tuple(index[message] for message in candidates))


def ranking(candidates: Sequence[Message], q_values: Sequence[float] | None) -> list[int]:
    """Their indices from the best on: by Q, equals in their order, repetitions at the end.

    Args:
        q_values: None leaves the order as it is.
    """
    first = {message: index for index, message in reversed(list(enumerate(candidates)))}
    q = [0.0] * len(candidates) if q_values is None else q_values
    return sorted(
        range(len(candidates)), key=lambda index: (first[candidates[index]] != index, -q[index])
    )


def select(candidates: Sequence[Message], q_values: Sequence[float]) -> Selection:
    """The candidate with the highest Q, the first of them where several tie.

    QLASS, algorithm 4: a_t = argmax over the M candidates of Q(s_t, a).

    Raises:
        InvalidCandidatesError: there is none to choose from.
        ScorerUnavailableError: a Q-value is not a finite number.
    """
    if not candidates:
        raise InvalidCandidatesError("there are 0 candidates; give at least 1")
    broken = [q for q in q_values if not math.isfinite(q)]
    if broken:
        raise ScorerUnavailableError(f"a Q-value is {broken[0]}; the Q model is broken")
    best = max(q_values)
    chosen = list(q_values).index(best)
    tied = {m for m, q in zip(candidates, q_values, strict=True) if q == best}
    if len(set(candidates)) == 1:
        return Selection(chosen, "only_candidate")
    return Selection(chosen, "tied_highest_q" if len(tied) > 1 else "highest_q")
