"""Choice of a candidate by Q, or by its posterior with the prior of the policy that drew it. Pure.

An argmax over distinct candidates forgets what the policy knows: a reply that was drawn four times
of five counts as much as one that was drawn once. The posterior is the policy, improved by Q under
a KL penalty (Peters et al., 2010, REPS; MPO's E-step):

    posterior(a | s) ~ prior(a | s) * exp(Q(s, a) / tau)

tau -> 0 is the argmax of Q (QLASS, algorithm 4), a large tau the prior with its ties broken by Q.
Candidates of one effect (equal `message_key`) share one prior, which is that of the effect, and the
highest of their Q-values speaks for it.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, TypeVar

from qguide.qnet.chat_messages import effects_of
from qguide.qnet.errors import InvalidCandidatesError, ScorerUnavailableError
from qguide.qnet.types import Message

T = TypeVar("T")

PriorBy = Literal["votes", "likelihood", "likelihood-per-token"]
"""The prior's source: smoothed shares of the draws; the policy's own log-likelihood; or that
divided by the reply's tokens, because a longer reply is less likely whatever it says."""

SMOOTHING: Final = 0.5
"""Added to the votes of each effect (Jeffreys' prior), so that one without votes is possible."""
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
"""Reason for the choice of a candidate; the last two occur only if no Q was read."""
SelectionName = Literal["argmax", "posterior"]
"""The candidate of highest Q (the papers'), or the one of highest Q / tau + log prior."""
DEFAULT_TAU: Final = 0.05
"""Tau of a posterior where nobody has fitted one, for a Q between 0 and 1."""
EXPLORED: Final = "explored"
"""Reason of a random choice."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior of each candidate of a step.

    Attributes:
        log_shares: log of the share of the candidate's effect; the effects' shares sum to 1.
        effects: number of the effect of each candidate.
        by: what the shares were made of.
    """

    log_shares: tuple[float, ...]
    effects: tuple[int, ...]
    by: PriorBy = "votes"

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each candidate's effect."""
        return tuple(math.exp(log) for log in self.log_shares)

    @property
    def likeliest(self) -> int:
        """Index of the likeliest candidate, the first of equal ones."""
        return max(range(len(self.log_shares)), key=self.log_shares.__getitem__)


def prior_of(
    candidates: Sequence[Message],
    *,
    by: PriorBy = "votes",
    counts: Sequence[int] = (),
    logprobs: Sequence[float | None] = (),
    tokens: Sequence[int] = (),
    greedy: int | None = None,
    greedy_weight: float = 0.0,
) -> Prior:
    """The prior of candidates: by likelihood where every one has a logprob, else by votes.

    Args:
        candidates: as they were drawn, repetitions included; the greedy reply is one draw.
        by: "votes" looks at no logprob.
        counts: how often each was drawn, if repetitions were left out; empty: each once.
        logprobs: log-likelihood of each whole reply by the policy; None if unknown.
        tokens: of each reply, for "likelihood-per-token".
        greedy: index of the policy's greedy reply; None if unknown.
        greedy_weight: added to the log share of its effect, before the shares are made to sum to 1.
    """
    for name, given in (("counts", counts), ("logprobs", logprobs)):
        if given and len(given) != len(candidates):
            raise InvalidCandidatesError(
                f"{name} has {len(given)} entries, but there are {len(candidates)} candidates; send one for each"
            )
    effects = effects_of(candidates)
    known = [logprob for logprob in logprobs if logprob is not None]
    if by == "votes" or not known or len(known) < len(candidates):
        prior = Prior(log_votes(effects, counts or [1] * len(effects)), effects)
    else:
        if by == "likelihood-per-token":
            known = [log / max(n, 1) for log, n in zip(known, tokens, strict=True)]
        prior = Prior(log_likelihoods(candidates, effects, known), effects, by)
    if greedy is None or not greedy_weight:
        return prior
    return replace(prior, log_shares=_favoured(prior.log_shares, effects, greedy, greedy_weight))


def _favoured(log_shares: Sequence[float], effects: Sequence[int], greedy: int, weight: float) -> tuple[float, ...]:
    """Log shares with a weight on one candidate's effect; the effects' shares sum to 1 again."""
    logs = [log + weight * (effect == effects[greedy]) for log, effect in zip(log_shares, effects, strict=True)]
    total = _log_sum(list(dict(zip(effects, logs, strict=True)).values()))
    return tuple(log - total for log in logs)


def posterior(
    q_values: Sequence[float], prior: Prior, *, tau: float, left: Sequence[int] | None = None
) -> tuple[float, ...]:
    """Posterior share of each candidate's effect; the effects' shares sum to 1.

    Args:
        q_values: one per candidate, finite.
        tau: temperature of Q, at least 0; at 0 the effects of highest Q keep their prior's ratio.
        left: candidates that may be chosen, at least one; the others have 0. None: all.
    """
    best: dict[int, float] = {}
    log_of: dict[int, float] = {}
    for i in range(len(q_values)) if left is None else left:
        effect = prior.effects[i]
        best[effect] = max(q_values[i], best.get(effect, -math.inf))
        log_of[effect] = prior.log_shares[i]
    # Only gaps to the highest: they are never above 0, so however small tau is, nothing becomes infinitely good.
    highest = max(best.values())
    logs = {effect: _tilt(q - highest, tau) + log_of[effect] for effect, q in best.items()}
    total = _log_sum(list(logs.values()))
    return tuple(math.exp(logs.get(effect, -math.inf) - total) for effect in prior.effects)


def _tilt(gap: float, tau: float) -> float:
    """gap / tau for a gap to the highest Q, which is never above 0."""
    # Also at tau = 0, where 0 / 0 is no number: the best effects keep the ratio of their priors.
    if gap == 0:
        return 0.0
    return gap / tau if tau else -math.inf


def log_votes(effects: Sequence[int], counts: Sequence[int]) -> tuple[float, ...]:
    """Log of the smoothed share of the draws with each candidate's effect."""
    if any(count < 0 for count in counts):
        raise InvalidCandidatesError(f"a count is {min(counts)}; send how often each was drawn")
    votes: Counter[int] = Counter()
    for effect, count in zip(effects, counts, strict=True):
        votes[effect] += count
    # Only effects that were drawn have a share: what nobody drew cannot be chosen.
    total = sum(counts) + SMOOTHING * len(votes)
    return tuple(math.log((votes[effect] + SMOOTHING) / total) for effect in effects)


def log_likelihoods(
    replies: Sequence[Hashable], effects: Sequence[int], logprobs: Sequence[float]
) -> tuple[float, ...]:
    """Log of the share of each candidate's effect in the likelihood of the distinct replies."""
    once = {r: (e, log) for r, e, log in zip(replies, effects, logprobs, strict=True)}
    of_effect = {effect: _log_sum([log for own, log in once.values() if own == effect]) for effect in set(effects)}
    total = _log_sum(list(of_effect.values()))
    return tuple(of_effect[effect] - total for effect in effects)


def _log_sum(logs: Sequence[float]) -> float:
    """Log of the sum of exponentials, whatever their order."""
    highest = max(logs)
    # fsum, because a sum that depends on the order of the draws would break ties by it.
    return highest + math.log(math.fsum(math.exp(log - highest) for log in logs))


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen candidate and why.

    Attributes:
        chosen: its index.
        reason: `highest_q`; `tied_highest_q` where other candidates have the same Q; `highest_posterior` where the
            prior counted, too; `rules` where those before the Q model left one candidate; `likeliest` where Q was the
            same for all; `only_candidate` and `unanimous` where there was nothing to choose between.
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

    def of_each(self, values: Sequence[T]) -> tuple[T, ...]:
        """The value of each candidate by those of `messages`; empty if those are."""
        return tuple(values[i] for i in self.index) if values else ()


def distinct(candidates: Sequence[Message]) -> Distinct:
    """The candidates with equal messages merged."""
    index = {message: i for i, message in enumerate(dict.fromkeys(candidates))}
    return Distinct(tuple(index), tuple(index[message] for message in candidates))


def ranking(
    candidates: Sequence[Message], values: Sequence[float] | None, *, rules: Sequence[tuple[float, ...]] = ()
) -> list[int]:
    """Indices of the candidates, the best first: by value, equal ones in order, repetitions last.

    Args:
        values: Q, or the share of the posterior or prior; None leaves the order as it is.
        rules: compared before the values; see `select`.
    """
    # Reversed, so that the first appearance overwrites the later ones.
    first = {message: index for index, message in reversed(list(enumerate(candidates)))}

    def place(index: int) -> tuple[bool, list[float]]:
        before = rules[index] if rules else ()
        value = 0.0 if values is None else values[index]
        return first[candidates[index]] != index, [-own for own in (*before, value)]

    return sorted(range(len(candidates)), key=place)


def explore(prior: Prior, seed: int) -> Selection:
    """A random candidate: each effect is as likely as any other, however often it was drawn."""
    effects = list(dict.fromkeys(prior.effects))
    return Selection(prior.effects.index(Random(seed).choice(effects)), EXPLORED)


def select(
    candidates: Sequence[Message],
    q_values: Sequence[float],
    *,
    prior: Prior | None = None,
    tau: float | None = None,
    rules: Sequence[tuple[float, ...]] = (),
) -> Selection:
    """The candidate with the highest Q, or with a `tau` the one with the highest posterior.

    QLASS, algorithm 4: a_t = argmax over the M candidates of Q(s_t, a). With tau (ours): argmax of Q(s_t, a) / tau +
    log prior(a | s_t). Where Q is the same for all, it tells nothing, and the likeliest is taken.

    Args:
        candidates: as they were drawn, repetitions included.
        q_values: one per candidate.
        prior: of the candidates; None counts their repetitions.
        tau: temperature of Q, at least 0.
        rules: values of each candidate that are compared before Q, the first one first; only
            candidates that are highest by them can be chosen. Empty: none.
    """
    if not candidates:
        raise InvalidCandidatesError("there are 0 candidates; give at least 1")
    broken = [q for q in q_values if not math.isfinite(q)]
    if broken:
        raise ScorerUnavailableError(f"a Q-value is {broken[0]}; the Q model is broken")
    q = dict(zip(range(len(candidates)), q_values, strict=True))
    # Tuples compare in order: a later rule counts only among those that are equal by the earlier ones.
    left = [i for i in q if not rules or rules[i] == max(rules)]
    highest = max(q[i] for i in left)
    if len(set(candidates)) == 1:
        return Selection(left[0], "only_candidate" if len(candidates) == 1 else "unanimous")
    messages = {candidates[i] for i in left}
    if len(messages) == 1:
        return Selection(left[0], "rules")
    prior = prior or prior_of(candidates)
    if all(q[i] == highest for i in left):
        return Selection(max(left, key=prior.log_shares.__getitem__), "likeliest")
    if tau is not None:
        # As Q / tau + log prior, without a division by 0; the prior breaks ties of its limit.
        scores = [(q[i] + tau * log, log, q[i]) for i, log in enumerate(prior.log_shares)]
        shares = posterior(q_values, prior, tau=tau, left=left)
        return Selection(max(left, key=scores.__getitem__), "highest_posterior", shares)
    best = [i for i in left if q[i] == highest]
    tied = {candidates[i] for i in best}
    return Selection(best[0], "tied_highest_q" if len(tied) > 1 else "highest_q")
