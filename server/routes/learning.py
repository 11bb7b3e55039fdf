"""GET and POST /v1/learning: where learning stands, and orders of the operator (`QGUIDE_LEARN`)."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from qguide.server.http.admission import require_admin
from qguide.server.http.bodies import BodyRoute
from qguide.server.learning.group import GROUP_PATTERN, Order
from qguide.server.learning.service import Learning
from qguide.server.learning.status_body import CurveState, LearningState
from qguide.server.observability.request_context import calling_key
from qguide.server.own_bodies.schemas import Body
from qguide.server.routes.dependencies import LearningDep

router = APIRouter(prefix="/v1/learning", tags=["learning"])
orders = APIRouter(
    prefix="/v1/learning",
    tags=["admin"],
    dependencies=[Depends(require_admin)],
    route_class=BodyRoute,
)
"""Served with the other admin routes (`QGUIDE_ADMIN`)."""

_GROUP = 'a key, "+name" for a group or "_" on a server without keys; the default is your own'


class LearningOrder(Body):
    """An order of the operator."""

    order: Order = Field(
        description="pin: keep the version and the phase; forbid: guide nothing; promote: guide "
        "without waiting for the trial; roll_back: collect again; auto: decide by the figures"
    )
    group: str | None = Field(default=None, pattern=GROUP_PATTERN, description=_GROUP)


class LearningGroups(Body):
    """All groups that learn here."""

    groups: tuple[LearningState, ...]


@router.get("")
async def learning_state(
    request: Request,
    learning: LearningDep,
    group: Annotated[str | None, Query(pattern=GROUP_PATTERN, description=_GROUP)] = None,
) -> LearningState:
    """Phase, figures and reasons of the caller's group; of another with an admin key."""
    return await learning.state(await _allowed(request, learning, group))


@router.get("/curve")
async def learning_curve(
    request: Request,
    learning: LearningDep,
    group: Annotated[str | None, Query(pattern=GROUP_PATTERN, description=_GROUP)] = None,
) -> CurveState:
    """Success over the episodes of the caller's group; of another with an admin key."""
    return await learning.curve(await _allowed(request, learning, group))


@router.get("/groups", dependencies=[Depends(require_admin)])
async def learning_groups(learning: LearningDep) -> LearningGroups:
    """The state of all groups; needs an admin key."""
    return LearningGroups(groups=await learning.groups())


async def _allowed(request: Request, learning: Learning, group: str | None) -> str:
    """The group that the caller may read."""
    own = learning.group_of(calling_key())
    if group not in (None, own):
        await require_admin(request)
    return own if group is None else group


@orders.post("")
async def order_learning(body: LearningOrder, learning: LearningDep) -> LearningState:
    """Pin, forbid, promote or roll back by hand; needs an admin key."""
    own = learning.group_of(calling_key())
    return await learning.order(own if body.group is None else body.group, body.order)
