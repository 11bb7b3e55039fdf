"""The bodies about models: which are served, and what an operator changes about it."""

from typing import Literal

from pydantic import Field

from server.messages.schemas import Body
from server.q_models.registry import Source


class ModelCard(Body):
    """A model that is served, and what its checkpoint says of it."""

    id: str = Field(description="what a request calls it by: a Q model's is `name@version`")
    object: Literal["model"] = "model"
    kind: Literal["policy", "q_model"]
    name: str
    version: str | None = Field(description="null for the policy")
    created: int = Field(description="when this server started to serve it, in Unix seconds")
    owned_by: str = Field(description="who runs it: an upstream's name, or qguide")
    source: Source
    default: bool = Field(description="a request that names none gets it, or may get it")
    context: int | None = Field(description="most tokens; null for a fake")
    checkpoint: str | None = Field(description="the name in its manifest")
    environment: str | None = Field(description="what it was trained on")
    read_at: str | None = Field(
        description="where Q is read: `last_token` of the action, after its `observation`, or at "
        "all `action_tokens`; null for a policy and a fake"
    )
    target: str | None = Field(description="what its Q was regressed on: q, avg or reward")
    metrics: dict[str, float] = Field(description="what its training measured")


class ModelList(Body):
    """All models that are served, and the names that lead to the Q models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    aliases: dict[str, str] = Field(description="name -> the one Q model that it leads to")
    splits: dict[str, dict[str, float]] = Field(
        description="name -> Q models, and the share of the episodes of each"
    )
    shadows: dict[str, str] = Field(
        description="Q model's name -> what scores its requests a second time"
    )


class LoadRequest(Body):
    """A checkpoint to serve next to the others."""

    folder: str = Field(description="plain name of a folder in QGUIDE_MODELS_DIR")
    name: str
    version: str | None = Field(default=None, description="null: the start of its sha256")
    replace: bool = Field(
        default=False,
        description="the name moves to it, and the version that it led to is dropped; otherwise "
        "the name moves only if it is new",
    )


class DropRequest(Body):
    """A version to serve no more."""

    q_model: str = Field(description="`name@version`; nothing else may lead to it")


class AliasRequest(Body):
    """Where a name leads from now on."""

    alias: str
    to: str | dict[str, float] = Field(description="a Q model, or several and their shares")


class ShadowRequest(Body):
    """What scores the requests of a Q model a second time from now on."""

    q_model: str = Field(description="the name, without a version")
    shadow: str | None = Field(description="a name, `name@version` or alias; null ends it")
