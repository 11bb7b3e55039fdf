"""GET /v1/models: what is served."""

from typing import Any, Literal

from fastapi import APIRouter

from server.dependencies import ModelsDep
from server.models import Served
from server.schemas import ModelCard, ModelList

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models")
async def list_models(models: ModelsDep) -> ModelList:
    """The policy and the Q models, with what their checkpoints say of them."""
    cards = [_card("policy", models.policy, default=True)]
    cards += [
        _card("q_model", served, default=name == models.default_q_model)
        for name, served in models.q_models.items()
    ]
    return ModelList(data=cards)


def _card(kind: Literal["policy", "q_model"], served: Served[Any], *, default: bool) -> ModelCard:
    manifest = served.manifest
    return ModelCard(
        id=served.name,
        kind=kind,
        source=served.source,
        default=default,
        context=served.context,
        checkpoint=manifest.name if manifest else None,
        environment=manifest.environment if manifest else None,
        target=manifest.target or None if manifest else None,
        metrics=manifest.metrics if manifest else {},
    )
