"""Episodes: POST of outcomes and of running attempts, and for admins GET of what was recorded.

Recorded episodes hold users' texts. With API keys their routes need an admin key; without keys the server must be bound
to loopback (`QGUIDE_ADMIN`).
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BeforeValidator, Field, WithJsonSchema

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.records import OfferRow, TreeRow
from qguide.server.episodes.archive import MOST_EPISODES, EpisodeArchive, RecordedEpisode
from qguide.server.episodes.state import Outcome
from qguide.server.guidance.attempts import AttemptsRequest, AttemptsResponse, narrow_attempts
from qguide.server.http.admission import require_admin
from qguide.server.http.bodies import BodyRoute
from qguide.server.own_bodies.answers import OutcomeResponse
from qguide.server.own_bodies.schemas import Body
from qguide.server.routes.dependencies import EpisodesDep, ScoringDep

router = APIRouter(prefix="/v1", tags=["episodes"], route_class=BodyRoute)
recorded = APIRouter(prefix="/v1/episodes", tags=["admin"], dependencies=[Depends(require_admin)])

_MOST_LISTED = 200


class OutcomeRequest(Body):
    """Outcome of an episode."""

    reward: Annotated[
        float,
        BeforeValidator(lambda said: float(said) if isinstance(said, bool) else said),
        WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "boolean"}]}),
    ] = Field(allow_inf_nan=False, description="true and false count as 1 and 0")
    terminated: bool = Field(default=True, description="false if a step limit truncated the episode")
    action: str | None = Field(default=None, min_length=1, description="the last action, if it was not the chosen one")
    observation: str = Field(default="", description="the observation after the last action")


@router.post("/episodes/{episode_id:text}/outcome")
async def end_episode(episode_id: str, body: OutcomeRequest, episodes: EpisodesDep) -> OutcomeResponse:
    """Close an episode; if the server records episodes, it becomes training data."""
    outcome = Outcome(reward=body.reward, terminated=body.terminated, action=body.action, observation=body.observation)
    closed = await episodes.close(episode_id, outcome)
    return OutcomeResponse(
        episode_id=episode_id,
        reward=body.reward,
        steps=closed.episode.steps,
        recorded=closed.episode.recorded,
        reason=closed.not_recorded or None,
    )


@router.post("/attempts")
async def compare_attempts(body: AttemptsRequest, scoring: ScoringDep) -> AttemptsResponse:
    """Compare running attempts of one task by value; nothing is drawn."""
    return await narrow_attempts(body, scoring)


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


@recorded.get("")
async def list_episodes(
    archive: ArchiveDep,
    search: Annotated[str, Query(max_length=200, description="words that all occur in the task or in an action")] = "",
    rewarded: Annotated[bool | None, Query(description="true: reward above 0 only; false: the others only")] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 50,
) -> RecordedList:
    """List recorded episodes, newest first."""
    found, matching = await asyncio.to_thread(archive.newest, search=search, rewarded=rewarded, limit=limit)
    return RecordedList(episodes=found, matching=matching)


@recorded.get("/{episode}")
async def read_episode(episode: str, archive: ArchiveDep) -> RecordedRows:
    """Read the rows of a recorded episode."""
    offers, tree = await asyncio.to_thread(archive.rows, episode)
    return RecordedRows(offers=offers, tree=tree)
