"""Shadow of a new version: what it would have chosen, before any episode is guided by it."""

from typing import Final

from qguide.server.episodes.learning_part import ShadowTally

DECISIONS: Final = 20
"""Decisions that a version is judged by before it is tried."""
MOST_EPISODES: Final = 50
"""Episodes for which the next fit waits, so that it does not begin the shadow anew."""
_MOST_OUTSIDE: Final = 0.5


def ended(tally: ShadowTally) -> bool:
    """True once enough decisions are known."""
    return tally.decisions >= DECISIONS


def refusal(tally: ShadowTally) -> str:
    """Reason why an ended shadow is followed by no trial; "" if one is."""
    if tally.outside > _MOST_OUTSIDE * tally.decisions:
        return f"{tally.outside} of {tally.decisions} decisions are outside what it learned"
    if tally.room == 0:
        return f"in {tally.decisions} decisions all candidates were equal, so nothing can be chosen"
    if tally.disagreed == 0:
        return f"in {tally.decisions} decisions it would have changed nothing"
    return ""


def described(tally: ShadowTally) -> str:
    """The tally in a clause."""
    return (
        f"in the shadow of {tally.decisions} decisions candidates differed in {tally.room}, it "
        f"chose otherwise in {tally.disagreed}, and {tally.outside} were outside what it learned"
    )
