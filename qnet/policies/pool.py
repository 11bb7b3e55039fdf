"""Pool of policies: the candidates of one step, drawn by several of them, and how to split them.

Where outcomes are known, a bandit may split the draws: Thompson sampling (Thompson, 1933; Chapelle
and Li, 2011) with a Beta prior for each policy.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from random import Random
from typing import Final, Self

from qguide.qnet.errors import QGuideError
from qguide.qnet.types import Candidate, History, Policy, Sampling, spent_on
from qguide.qnet.work import all_of, taken_by, taker

MOST_EVIDENCE: Final = 500.0
"""Episodes that a policy's record holds at most: a policy that changes is tried again."""


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """Outcomes of the episodes whose actions a policy drew, each weighed by its share of them.

    Attributes:
        gained: sum of the outcomes, which are from 0 to 1.
        lost: sum of what they lack of 1.
    """

    gained: float = 0.0
    lost: float = 0.0

    @property
    def mean(self) -> float:
        """Mean outcome under a uniform prior."""
        return (self.gained + 1) / (self.gained + self.lost + 2)

    def plus(self, outcome: float, share: float) -> Self:
        """The record with one more episode, of whose actions the policy drew that share."""
        gained, lost = self.gained + share * outcome, self.lost + share * (1 - outcome)
        kept = min(1.0, MOST_EVIDENCE / max(gained + lost, 1.0))
        return replace(self, gained=kept * gained, lost=kept * lost)

    def sampled(self, rng: Random) -> float:
        """A mean outcome, drawn from its Beta posterior."""
        return rng.betavariate(1 + self.gained, 1 + self.lost)


def split_draws(names: Sequence[str], draws: int, *, known: Mapping[str, PolicyRecord], rng: Random) -> dict[str, int]:
    """Candidates of a step that each policy draws, the policy of the first one first.

    Each draw is given to the policy whose mean outcome, drawn anew from its posterior, is the
    highest. So a policy draws as often as it is likely to be the best. One without a record is as
    likely to be good as to be bad.
    """
    nothing = PolicyRecord()

    def drawer() -> str:
        sampled = {name: known.get(name, nothing).sampled(rng) for name in names}
        return max(names, key=sampled.__getitem__)

    return dict(Counter(drawer() for _ in range(draws)))


class PolicyPool:
    """A policy whose candidates several policies draw, at the same time and in fixed shares.

    A policy that fails costs its own candidates only, and is not asked again: further draws of the
    step are the others'.

    Attributes:
        names: of the policies; the first one draws the greedy candidate, if one is wanted.
    """

    def __init__(self, shares: Sequence[tuple[str, Policy, int]]) -> None:
        self.names = tuple(name for name, _, _ in shares)
        self.name = "+".join(self.names)
        self.failures: dict[str, QGuideError] = {}
        self._policies = {name: policy for name, policy, _ in shares}
        # Evenly mixed, so that a step which draws in batches asks each in its share.
        mixed = sorted((nth / n, name) for name, _, n in shares for nth in range(1, n + 1))
        order = [name for _, name in mixed]
        order.remove(self.names[0])
        self._turns = cycle([self.names[0], *order])

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates, fewer if a policy fails; if all do, the first one's error is raised."""
        drawn: list[Candidate] = []
        while not drawn:
            if len(self.failures) == len(self.names):
                raise next(iter(self.failures.values()))
            turns = (name for name in self._turns if name not in self.failures)
            shares = Counter(islice(turns, n))
            asked = [name for name in self.names if shares[name]]
            each = await all_of([self._draw(name, history, shares[name], sampling) for name in asked])
            drawn = [candidate for one in each for candidate in one]
        return drawn

    async def _draw(self, name: str, history: History, n: int, sampling: Sampling) -> list[Candidate]:
        if name != self.names[0]:
            sampling = replace(sampling, first_greedy=False)
        take, taken = taker(), list[Candidate]()

        def take_named(some: list[Candidate]) -> None:
            taken.extend(some)
            if take:
                take([replace(candidate, policy=name) for candidate in some])

        try:
            with taken_by(take and take_named):
                drawn = await self._policies[name].sample(history, n=n, sampling=sampling)
        except QGuideError as error:
            self.failures[name] = error
            return [replace(candidate, policy=name) for candidate in taken]  # else others would draw these again
        if drawn and not any(candidate.spent for candidate in drawn):
            # A policy in this process; beside an upstream's usage its own must be told, too.
            drawn = [replace(drawn[0], spent=spent_on(drawn)), *drawn[1:]]
        if take and not taken:
            take_named(drawn)
        return [replace(candidate, policy=name) for candidate in drawn]
