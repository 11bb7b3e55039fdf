"""GET /v1/models: what is served."""

from fastapi import APIRouter

from qnet.checkpoint import Manifest
from server.dependencies import ModelsDep
from server.schemas import ModelCard, ModelList

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models")
async def list_models(models: ModelsDep) -> ModelList:
    """The policy and the Q models, with what their checkpoints say of them."""
    cards = [_card(models.policy.name, models.policy.manifest, default=True)]
    cards += [
        _card(name, served.manifest, default=name == models.default_q_model)
        for name, served in models.q_models.items()
    ]
    return ModelList(data=cards)


def _card(name: str, manifest: Manifest | None, *, default: bool) -> ModelCard:
    kind = "fake" if manifest is None else manifest.kind
    return ModelCard(
        id=name,
        kind="qnet" if kind == "implicit-q" else kind,
        default=default,
        checkpoint=manifest.name if manifest else None,
        environment=manifest.environment if manifest else None,
        metrics=manifest.metrics if manifest else {},
    )
