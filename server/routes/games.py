"""POST /v1/games/play: games for the playground's race (`QGUIDE_PLAYGROUND_GAMES`).

The server knows no environment; whoever creates the application may bring games (`qguide serve`
does, if that is set).

Nothing is kept between requests: each one plays a game from its start with all replies so far, so
there is no session to leak or to fill the memory with. The number of replies is limited, and a
few games are played at a time, in threads of their own: a game whose caller hangs up keeps its
thread until it is over.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Annotated, Final, Protocol, cast

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from qguide.qnet.errors import InvalidRequestError
from qguide.server.http.bodies import BodyRoute
from qguide.server.own_bodies.schemas import Body, ChatMessage, Integer, ListOf

router = APIRouter(prefix="/v1/games", tags=["playground"], route_class=BodyRoute)

MOST_REPLIES: Final = 60
GAMES_AT_ONCE: Final = 2
"""Threads that play; other requests wait for one."""


class GameAnswer(Body):
    """The game after these replies."""

    opening: list[ChatMessage] = Field(description="the messages before the first reply")
    observation: str = Field(description="after the last reply; empty before the first")
    reward: float = Field(description="of the last reply; 0 until the game is over")
    ended: bool = Field(description="true if the game takes no more replies")
    won: bool = Field(description="true if it ended in success, by the environment's own criterion")


class Games(Protocol):
    """A list of games; its methods block, and threads may share it."""

    name: str
    count: int

    def play(self, game: int, replies: Sequence[str]) -> GameAnswer:
        """Play a game from its start with these replies; those after its end are ignored."""
        ...


class GameRequest(Body):
    """A game and the replies so far."""

    game: Integer = Field(ge=0, description="number of the game, from 0")
    replies: ListOf[str] = Field(max_length=MOST_REPLIES, description="the agent's whole replies, first to last")


async def _games(request: Request) -> Games:
    return cast(Games, request.app.state.games)


async def _threads(request: Request) -> Executor:
    return cast(Executor, request.app.state.game_threads)


@router.post("/play")
async def play_game(
    body: GameRequest, games: Annotated[Games, Depends(_games)], threads: Annotated[Executor, Depends(_threads)]
) -> GameAnswer:
    """Play a game from its start with these replies."""
    if body.game >= games.count:
        raise InvalidRequestError(f"game is {body.game}; this server has games 0 to {games.count - 1}")
    return await asyncio.get_running_loop().run_in_executor(threads, games.play, body.game, body.replies)
