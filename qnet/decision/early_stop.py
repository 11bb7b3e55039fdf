"""Draw until decided: whether further draws of a step could still change its choice. Pure.

With v votes for an effect and `left` draws to come, a rival can gain all of them, and the leader
none. By votes alone the leader is decided once no rival can pass it. In the posterior a rival may
also find words of the highest Q that is possible:

    Q_leader / tau + log(v_leader + 1/2)  >  Q_highest / tau + log(v_rival + left + 1/2)

By votes, of equal ones the effect that was drawn first is taken. By an argmax of Q any further draw
may be better, so it is decided at the highest Q only.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qguide.qnet.decision.selection import SMOOTHING, Prior

_NEW: Final = -1  # effect that no draw had yet


@dataclass(frozen=True, slots=True)
class UntilDecided:
    """Stop of the draws of a step.

    Attributes:
        highest_q: highest Q that a candidate can have; None if only votes count, and nothing is
            scored before the last draw.
    """

    highest_q: float | None = None

    @property
    def by_votes(self) -> bool:
        """True if only votes count."""
        return self.highest_q is None


def is_decided(
    prior: Prior,
    q_values: Sequence[float] | None,
    until: UntilDecided,
    *,
    left: int,
    tau: float | None,
    greedy_weight: float = 0.0,
) -> bool:
    """True if no `left` further draws can change the choice; never by a prior of likelihood.

    Args:
        prior: of the draws so far.
        q_values: of each draw; None where only votes count.
        tau: temperature of Q in the posterior; None is the argmax of Q.
        greedy_weight: added to the log share of the first draw's effect.
    """
    if prior.by != "votes":
        return False
    votes = Counter(prior.effects)  # in the order in which they were drawn first
    best = dict.fromkeys(votes, 0.0 if q_values is None else -math.inf)
    for effect, q in zip(prior.effects, q_values or (), strict=bool(q_values)):
        best[effect] = max(q, best[effect])
    highest, weight = 0.0, 1.0
    if q_values is not None:
        # A Q model may exceed the labels that it learned from: what was seen is possible, too.
        highest = max(*best.values(), until.highest_q or 0.0)
        if tau is None:
            return max(best.values()) >= highest
        weight = tau

    def value(effect: int, q: float, extra: int = 0) -> float:
        log = math.log(votes[effect] + extra + SMOOTHING)
        return q + weight * (log + (greedy_weight if effect == prior.effects[0] else 0.0))

    now = {effect: value(effect, q) for effect, q in best.items()}
    leader = max(now, key=now.__getitem__)
    order = [*votes, _NEW]
    # Rivals that lose a tie: they were drawn first after the leader was, or not at all yet.
    later = order[order.index(leader) + 1 :] if q_values is None else []
    rivals = {effect: value(effect, highest, left) for effect in order if effect != leader}
    return all(now[leader] > rival or (now[leader] == rival and effect in later) for effect, rival in rivals.items())
