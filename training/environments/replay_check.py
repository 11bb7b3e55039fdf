"""Self-check of an environment: the same actions, played twice on fresh episodes.

A branch of a tree is a fresh episode in which the actions before it are replayed, so it can be
trusted only if replays are equal. Equal replays of a few actions prove nothing about all others;
a branch that turns out to differ fails its task later.
"""

from collections.abc import Callable, Sequence
from contextlib import closing

from training.environment import Environment, StepResult, take
from training.trajectory import Action


def difference_of_replays(make: Callable[[], Environment], actions: Sequence[Action]) -> str:
    """The first difference between two fresh episodes with the same actions; "" if they are equal.

    Args:
        make: a fresh, single-use episode of the same task.
        actions: played until the episode ends.

    Raises:
        EnvironmentFailureError: the engine failed.
    """
    first, second = _played(make, actions), _played(make, actions)
    if first[0] != second[0]:
        return f"the same task starts by {first[0]!r} and by {second[0]!r}"
    for number, (one, other) in enumerate(zip(first[1], second[1], strict=False), start=1):
        if one != other:
            return f"after the same {number} actions, the answers are {one} and {other}"
    return ""


def _played(
    make: Callable[[], Environment], actions: Sequence[Action]
) -> tuple[str, list[StepResult]]:
    with closing(make()) as environment:
        start, results = environment.reset(), []
        for action in actions:
            results.append(take(environment, action))
            if results[-1].ended:
                break
        return start, results
