"""Words on what a licence lacks, so that a learner that never guides says what would help it."""

from typing import Final

from qguide.qnet.models.licence import Licence

_FEWEST_DECISIONS: Final = 20
_FEWEST_TASKS: Final = 10
"""Numbers below which the other figures say little."""
_LITTLE_ROOM: Final = 0.02
_CHANCE: Final = 0.55
"""Share of pairs in one order in two halves of the outcomes, of which chance has .5."""


def missing_of(licence: Licence) -> str:
    """The one thing that a refused licence lacks most; "" of one that is granted."""
    if licence.granted:
        return ""
    if licence.decisions < _FEWEST_DECISIONS or licence.tasks < _FEWEST_TASKS:
        return (
            f"too few decisions that differ in outcome: {licence.decisions} of {licence.tasks} "
            f"tasks were held back, and a licence takes {_FEWEST_DECISIONS} of {_FEWEST_TASKS}; "
            "more episodes of the same tasks, more exploration (QGUIDE_LEARN_EXPLORATION) and more "
            "candidates bring them"
        )
    if (room := _room(licence)) is not None and room < _LITTLE_ROOM:
        return (
            f"no room: the best of the candidates is {max(room, 0.0):.3f} in outcome above the "
            "agent's own choice; more candidates, or a higher temperature, make some"
        )
    if licence.ceiling is not None and licence.ceiling < _CHANCE:
        return (
            f"no signal: two halves of the outcomes agree on {licence.ceiling:.0%} of the pairs of "
            "choices, where chance has 50%; the outcome hardly depends on these choices"
        )
    if more := licence.missing_decisions:
        return f"too few decisions: about {more:,} more would show the gain, if it is real"
    return (
        "no signal: what it read in the episodes does not tell good choices from bad ones; other "
        "tasks, or an outcome that says more than success, may help"
    )


def _room(licence: Licence) -> float | None:
    """Outcome of the best candidate in hindsight, minus that of the agent's own choice."""
    own, best = licence.choosers.get(licence.own), licence.choosers.get("oracle")
    return None if own is None or best is None else best.outcome - own.outcome
