"""GET and POST /v1/learning: where learning stands, and orders of the operator (`QGUIDE_LEARN`)."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from qguide.qnet.errors import InvalidRequestError
from qguide.server.http.admission import require_admin
from qguide.server.http.bodies import BodyRoute
from qguide.server.http.keys import KeyFile
from qguide.server.learning.group import GROUP_PATTERN, Order
from qguide.server.learning.service import Learning
from qguide.server.learning.status_body import CurveState, LearningState
from qguide.server.observability.request_context import current_account
from qguide.server.own_bodies.schemas import Body
from qguide.server.routes.dependencies import LearningDep
from qguide.server.settings.settings import Settings

router = APIRouter(prefix="/v1/learning", tags=["learning"])
orders = APIRouter(prefix="/v1/learning", tags=["admin"], dependencies=[Depends(require_admin)], route_class=BodyRoute)
"""Served with the other admin routes (`QGUIDE_ADMIN`)."""

_GROUP = (
    'a key, which stands for the group that it is in; "+name" for a group; "_" on a server without '
    "keys; the default is your own"
)


GroupQuery = Annotated[str | None, Query(pattern=GROUP_PATTERN, description=_GROUP)]


class LearningOrder(Body):
    """An order of the operator."""

    order: Order = Field(
        description="pin: keep the version and the phase; forbid: guide nothing; promote: guide without waiting for "
        "the trial; roll_back: collect again; auto: decide by the figures"
    )
    group: str | None = Field(default=None, pattern=GROUP_PATTERN, description=_GROUP)


class LearningGroups(Body):
    """All groups that learn here."""

    groups: tuple[LearningState, ...]


@router.get("")
async def learning_state(request: Request, learning: LearningDep, group: GroupQuery = None) -> LearningState:
    """Phase, figures and reasons of the caller's group; of another with an admin key."""
    return await learning.state(await _allowed(request, learning, group))


@router.get("/curve")
async def learning_curve(request: Request, learning: LearningDep, group: GroupQuery = None) -> CurveState:
    """Success over the episodes of the caller's group; of another with an admin key."""
    return await learning.curve(await _allowed(request, learning, group))


@router.get("/groups", dependencies=[Depends(require_admin)])
async def learning_groups(learning: LearningDep) -> LearningGroups:
    """The state of all groups; needs an admin key."""
    states = [await learning.state(name) for name in await learning.names()]
    return LearningGroups(groups=tuple(states))


async def _allowed(request: Request, learning: Learning, group: str | None) -> str:
    own = learning.group_of(current_account().key)
    if group in (None, own):
        return own
    if group != current_account().key:
        await require_admin(request)
    return await _named(request, learning, group)


async def _named(request: Request, learning: Learning, name: str) -> str:
    keys: KeyFile | None = request.app.state.keys
    settings: Settings = request.app.state.settings
    group = learning.group_of(name)
    named = {f"+{one}" for one in settings.learn_groups.values()} | (keys.names if keys else set())
    if group in named or group in await learning.names():
        return group
    raise InvalidRequestError(
        f"no group and no key is named {name!r}; GET /v1/learning/groups lists those that learn, "
        'and "+name" is a group of QGUIDE_LEARN_GROUPS'
    )


@orders.post("")
async def order_learning(request: Request, body: LearningOrder, learning: LearningDep) -> LearningState:
    """Pin, forbid, promote or roll back by hand; needs an admin key."""
    return await learning.order(await _allowed(request, learning, body.group), body.order)
