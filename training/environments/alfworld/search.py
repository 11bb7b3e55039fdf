"""Where to look first: receptacle kinds in the order of what train games say."""

from collections.abc import Iterable

from training.environments.alfworld.observation import kind_of
from training.environments.alfworld.statistics import Statistics

OPENING_COST = 2.0
"""Looking into a closed receptacle takes two actions instead of one."""


def search_plan(item: str, receptacles: Iterable[str], statistics: Statistics) -> tuple[str, ...]:
    """Receptacle kinds that may hold `item`, the most rewarding first.

    The order is a property of the item kind alone: which receptacles a room has only
    leaves kinds out. That makes it something a small model can learn by heart.
    """
    kinds = {kind_of(name) for name in receptacles}
    found = [kind for kind in kinds if statistics.find_rate(item, kind) > 0.0]
    return tuple(sorted(found, key=lambda kind: (-_reward(item, kind, statistics), kind)))


def next_receptacle(
    plan: Iterable[str], receptacles: Iterable[str], done: Iterable[str]
) -> str | None:
    """The first receptacle of the plan that is not done, in the room's order within a kind."""
    passed = set(done)
    left = [name for name in receptacles if name not in passed]
    for kind in plan:
        for name in left:
            if kind_of(name) == kind:
                return name
    return next(iter(left), None)


def _reward(item: str, kind: str, statistics: Statistics) -> float:
    cost = OPENING_COST if statistics.is_openable(kind) else 1.0
    return statistics.find_rate(item, kind) / cost
