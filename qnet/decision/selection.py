"""Choice of a candidate by Q, or by Q and the policy's prior. Pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from qguide.qnet.decision.prior import Prior, posterior, prior_of
from qguide.qnet.errors import InvalidCandidatesError, ScorerUnavailableError
from qguide.qnet.types import Message

Reason = Literal[
    "highest_q",
    "tied_highest_q",
    "highest_posterior",
    "rules",
    "likeliest",
    "only_candidate",
    "unanimous",
    "fallback",
    "explored",
]
"""Reason for the choice of a candidate; the last three occur only if no Q was read."""

SelectionName = Literal["argmax", "posterior"]
"""The candidate of highest Q (the papers'), or the one of highest Q / tau + log prior."""

DEFAULT_TAU: Final = 0.05
"""Tau of a posterior where nobody has fitted one, for a Q between 0 and 1."""

TieBreak = Literal["first", "most-drawn", "logprob"]
"""Order among candidates of equal Q: drawn first, drawn most often, or likeliest by the policy."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen candidate and why.

    Attributes:
        chosen: its index.
        reason: `highest_q`; `tied_highest_q` where other candidates have the same Q;
            `highest_posterior` where the prior counted, too; `rules` where those before the Q model
            left one candidate; `likeliest` where Q was the same for all; `only_candidate` where
            there was nothing to choose between.
        posterior: of each candidate's effect, if it was the reason; 0 where the rules left it out.
    """

    chosen: int
    reason: Reason
    posterior: tuple[float, ...] | None = None


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


def ranking(
    candidates: Sequence[Message],
    values: Sequence[float] | None,
    *,
    rules: Sequence[tuple[float, ...]] = (),
) -> list[int]:
    """Indices of the candidates, the best first: by value, equal ones in order, repetitions last.

    Args:
        values: Q, or the share of the posterior or prior; None leaves the order as it is.
        rules: compared before the values; see `select`.
    """
    first = {message: index for index, message in reversed(list(enumerate(candidates)))}

    def place(index: int) -> tuple[bool, list[float]]:
        before = rules[index] if rules else ()
        value = 0.0 if values is None else values[index]
        return first[candidates[index]] != index, [-own for own in (*before, value)]

    return sorted(range(len(candidates)), key=place)


EXPLORED: Final = "explored"
"""Reason of a random choice."""


def explore(prior: Prior, seed: int) -> Selection:
    """A random candidate: each effect is as likely as any other, however often it was drawn."""
    effects = list(dict.fromkeys(prior.effects))
    return Selection(prior.effects.index(Random(seed).choice(effects)), EXPLORED)


def select(
    candidates: Sequence[Message],
    q_values: Sequence[float],
    *,
    tie_break: TieBreak = "first",
    logprobs: Sequence[float | None] = (),
    prior: Prior | None = None,
    tau: float | None = None,
    rules: Sequence[tuple[float, ...]] = (),
) -> Selection:
    """The candidate with the highest Q, or with a `tau` the one with the highest posterior.

    QLASS, algorithm 4: a_t = argmax over the M candidates of Q(s_t, a). With tau (ours): argmax of
    Q(s_t, a) / tau + log prior(a | s_t). Where Q is the same for all, it tells nothing, and the
    likeliest is taken.

    Args:
        candidates: as they were drawn, repetitions included.
        q_values: one per candidate.
        tie_break: without a `tau`, the first of equal Q that it prefers is taken; "first" prefers
            none where Q is the same for all.
        logprobs: of each candidate by the policy, for `tie_break` "logprob"; None if unknown.
        prior: of the candidates; None counts their repetitions.
        tau: temperature of Q, at least 0.
        rules: values of each candidate that are compared before Q, the first one first; only
            candidates that are highest by them can be chosen. Empty: none.

    Raises:
        InvalidCandidatesError: there is none to choose from.
        ScorerUnavailableError: a Q-value is not a finite number.
    """
    if not candidates:
        raise InvalidCandidatesError("there are 0 candidates; give at least 1")
    broken = [q for q in q_values if not math.isfinite(q)]
    if broken:
        raise ScorerUnavailableError(f"a Q-value is {broken[0]}; the Q model is broken")
    q = dict(zip(range(len(candidates)), q_values, strict=True))
    left = [i for i in q if not rules or rules[i] == max(rules)]
    highest = max(q[i] for i in left)
    if len(set(candidates)) == 1:
        return Selection(left[0], "only_candidate")
    messages = {candidates[i] for i in left}
    if len(messages) == 1:
        return Selection(left[0], "rules")
    prior = prior or prior_of(candidates)
    if all(q[i] == highest for i in left):
        wanted = {i: _preference(i, candidates, tie_break, logprobs) for i in left}
        return Selection(max(left, key=lambda i: (wanted[i], prior.log_shares[i])), "likeliest")
    if tau is not None:
        # As Q / tau + log prior, without a division by 0; the prior breaks ties of its limit.
        scores = [(q[i] + tau * log, log, q[i]) for i, log in enumerate(prior.log_shares)]
        shares = posterior(q_values, prior, tau=tau, left=left)
        return Selection(max(left, key=scores.__getitem__), "highest_posterior", shares)
    best = [i for i in left if q[i] == highest]
    tied = {candidates[i] for i in best}
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
