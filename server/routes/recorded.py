"""GET /v1/episodes: list, search and read recorded episodes (`QGUIDE_ADMIN`).

They hold users' texts. With API keys these routes need an admin key; without keys the server must
be bound to loopback.
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.records import OfferRow, TreeRow
from qguide.server.episodes.archive import MOST_EPISODES, EpisodeArchive, Recorded
from qguide.server.http.admission import require_admin
from qguide.server.own_bodies.schemas import Body, JudgeFlag

router = APIRouter(prefix="/v1/episodes", tags=["admin"], dependencies=[Depends(require_admin)])

_MOST_LISTED = 200


class RecordedStep(Body):
    """Q of one step."""

    depth: int = Field(description="number of the action in the episode, from 1")
    taken: float | None = Field(description="of the action taken; null if it was not scored")
    lowest: float | None = Field(description="of all candidates; null if none was scored")
    highest: float | None


class RecordedEpisode(Body):
    """A recorded episode."""

    episode: str = Field(description="the id in its rows, which is not the caller's")
    task_id: str
    task: str = Field(description="end of the first observation; empty if it is not known")
    reward: float
    steps: list[RecordedStep]
    policy: str
    q_model: str
    judge: JudgeFlag = False


class RecordedList(Body):
    """Recorded episodes, newest first."""

    episodes: list[RecordedEpisode]
    matching: int = Field(description=f"of the newest {MOST_EPISODES:,} episodes")


class RecordedRows(Body):
    """The rows of one episode, as in the files."""

    offers: list[OfferRow]
    tree: TreeRow | None = Field(description="null if it is not in the folder any more")


async def _archive(request: Request) -> EpisodeArchive:
    archive: EpisodeArchive | None = request.app.state.archive
    if archive is None:
        raise InvalidRequestError(
            "this server records no episodes; set QGUIDE_EPISODES_DIR to a folder for them"
        )
    return archive


ArchiveDep = Annotated[EpisodeArchive, Depends(_archive)]


@router.get("")
async def list_episodes(
    archive: ArchiveDep,
    search: Annotated[
        str,
        Query(max_length=200, description="words that all occur in the task or in an action"),
    ] = "",
    rewarded: Annotated[
        bool | None, Query(description="true: reward above 0 only; false: the others only")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 50,
) -> RecordedList:
    """List recorded episodes, newest first."""
    found, matching = await asyncio.to_thread(
        archive.newest, search=search, rewarded=rewarded, limit=limit
    )
    return RecordedList(episodes=[_shown(one) for one in found], matching=matching)


@router.get("/{episode}")
async def read_episode(episode: str, archive: ArchiveDep) -> RecordedRows:
    """Read the rows of a recorded episode."""
    offers, tree = await asyncio.to_thread(archive.rows, episode)
    return RecordedRows(offers=offers, tree=tree)


def _shown(recorded: Recorded) -> RecordedEpisode:
    return RecordedEpisode(
        episode=recorded.id,
        task_id=recorded.task_id,
        task=recorded.task,
        reward=recorded.reward,
        steps=[
            RecordedStep(
                depth=step.depth, taken=step.taken, lowest=step.lowest, highest=step.highest
            )
            for step in recorded.steps
        ],
        policy=recorded.policy,
        q_model=recorded.q_model,
        judge=recorded.judge,
    )
