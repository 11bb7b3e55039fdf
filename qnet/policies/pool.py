"""Pool of policies: the candidates of one step, drawn by several of them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

from qguide.qnet.errors import QGuideError
from qguide.qnet.types import Candidate, History, Policy, Sampling, spent_on


class PolicyPool:
    """A policy whose candidates several policies draw, at the same time and in fixed shares.

    A policy that fails costs its own candidates only.

    Args:
        shares: name and policy, and how many of the step's candidates it draws.

    Attributes:
        names: of the policies.
        failures: why policies drew none, by their names.
    """

    def __init__(self, shares: Sequence[tuple[str, Policy, int]]) -> None:
        self.names = tuple(name for name, _, _ in shares)
        self.name = "+".join(self.names)
        self.failures: dict[str, QGuideError] = {}
        self._policies = {name: policy for name, policy, _ in shares}
        # Evenly mixed, so that a step which draws in batches asks each in its share.
        mixed = sorted((nth / n, name) for name, _, n in shares for nth in range(1, n + 1))
        self._turns = cycle([name for _, name in mixed])

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates, fewer if a policy fails.

        Raises:
            QGuideError: all fail; the error of the first.
        """
        shares = Counter(islice(self._turns, n))
        drawn = await asyncio.gather(
            *(self._draw(name, history, share, sampling) for name, share in shares.items())
        )
        if not any(drawn):
            raise self.failures[next(iter(shares))]
        return [candidate for each in drawn for candidate in each]

    async def _draw(
        self, name: str, history: History, n: int, sampling: Sampling
    ) -> list[Candidate]:
        try:
            drawn = await self._policies[name].sample(history, n=n, sampling=sampling)
        except QGuideError as error:
            self.failures[name] = error
            return []
        if drawn and not any(candidate.spent for candidate in drawn):
            # A policy in this process; beside an upstream's usage its own must be told, too.
            drawn = [replace(drawn[0], spent=spent_on(drawn)), *drawn[1:]]
        return [replace(candidate, policy=name) for candidate in drawn]
