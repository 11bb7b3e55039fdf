"""Pool of policies: the candidates of one step, drawn by several of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

from qguide.qnet.errors import QGuideError
from qguide.qnet.types import Candidate, History, Policy, Sampling, spent_on
from qguide.qnet.work_context import all_of


class PolicyPool:
    """A policy whose candidates several policies draw, at the same time and in fixed shares.

    A policy that fails costs its own candidates only, and is not asked again: further draws of the
    step are the others'.

    Args:
        shares: name and policy, and how many of the step's candidates it draws.

    Attributes:
        names: of the policies; the first one draws the greedy candidate, if one is wanted.
        failures: why policies failed, by their names.
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
        """Draw `n` candidates, fewer if a policy fails.

        Raises:
            QGuideError: all fail; the error of the first that did.
        """
        drawn: list[Candidate] = []
        while not drawn:
            if len(self.failures) == len(self.names):
                raise next(iter(self.failures.values()))
            turns = (name for name in self._turns if name not in self.failures)
            shares = Counter(islice(turns, n))
            asked = [name for name in self.names if shares[name]]
            each = await all_of(
                [self._draw(name, history, shares[name], sampling) for name in asked]
            )
            drawn = [candidate for one in each for candidate in one]
        return drawn

    async def _draw(
        self, name: str, history: History, n: int, sampling: Sampling
    ) -> list[Candidate]:
        if name != self.names[0]:
            sampling = replace(sampling, first_greedy=False)
        try:
            drawn = await self._policies[name].sample(history, n=n, sampling=sampling)
        except QGuideError as error:
            self.failures[name] = error
            return []
        if drawn and not any(candidate.spent for candidate in drawn):
            # A policy in this process; beside an upstream's usage its own must be told, too.
            drawn = [replace(drawn[0], spent=spent_on(drawn)), *drawn[1:]]
        return [replace(candidate, policy=name) for candidate in drawn]
