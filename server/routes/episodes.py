"""POST /v1/episodes/{id}/outcome, and /v1/attempts: which of several episodes go on."""

from fastapi import APIRouter

from qguide.server.episodes.state import Outcome
from qguide.server.guidance.attempts import AttemptsRequest, AttemptsResponse, narrow_attempts
from qguide.server.http.bodies import BodyRoute
from qguide.server.own_bodies.answers import OutcomeResponse
from qguide.server.own_bodies.schemas import OutcomeRequest
from qguide.server.routes.dependencies import EpisodesDep, ScoringDep

router = APIRouter(prefix="/v1", tags=["episodes"], route_class=BodyRoute)


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
