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
from qguide.server.episodes.archive import MOST_EPISODES, EpisodeArchive, RecordedEpisode
from qguide.server.http.admission import require_admin
from qguide.server.own_bodies.schemas import Body

router = APIRouter(prefix="/v1/episodes", tags=["admin"], dependencies=[Depends(require_admin)])

_MOST_LISTED = 200


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
        raise InvalidRequestError("this server records no episodes; set QGUIDE_EPISODES_DIR to a folder for them")
    return archive


ArchiveDep = Annotated[EpisodeArchive, Depends(_archive)]


@router.get("")
async def list_episodes(
    archive: ArchiveDep,
    search: Annotated[str, Query(max_length=200, description="words that all occur in the task or in an action")] = "",
    rewarded: Annotated[bool | None, Query(description="true: reward above 0 only; false: the others only")] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 50,
) -> RecordedList:
    """List recorded episodes, newest first."""
    found, matching = await asyncio.to_thread(archive.newest, search=search, rewarded=rewarded, limit=limit)
    return RecordedList(episodes=found, matching=matching)


@router.get("/{episode}")
async def read_episode(episode: str, archive: ArchiveDep) -> RecordedRows:
    """Read the rows of a recorded episode."""
    offers, tree = await asyncio.to_thread(archive.rows, episode)
    return RecordedRows(offers=offers, tree=tree)
