"""Games that the playground's race plays, as the server sees them.

The server knows no environment; whoever creates the application may bring games (`qguide serve`
does, if `QGUIDE_PLAYGROUND_GAMES` is set). A game has no state here: each step sends all replies
so far, and they are played again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qguide.qnet.types import History


@dataclass(frozen=True, slots=True)
class Played:
    """A game after some replies.

    Attributes:
        opening: the messages before the first reply.
        observation: after the last reply; "" before the first.
        reward: of the last reply; 0 until the game is over.
        ended: the game takes no more replies.
        won: it ended in success, by the environment's own criterion.
    """

    opening: History
    observation: str
    reward: float
    ended: bool
    won: bool


class Games(Protocol):
    """A list of games; its methods block, and threads may share it."""

    name: str
    count: int

    def play(self, game: int, replies: Sequence[str]) -> Played:
        """Play a game from its start with these replies; those after its end are ignored."""
        ...
