"""Request and response bodies of GET /v1/models and of the admin routes."""

from typing import Literal, Self

from pydantic import AwareDatetime, Field

from qguide.qnet.decision.selection import PriorBy
from qguide.qnet.models.manifest import Manifest
from qguide.server.own_bodies.schemas import Body, is_none

Source = Literal["embedded", "scripted", "checkpoint", "imported", "vllm", "judge", "upstream", "rules", "none"]


class JudgeCard(Body):
    """The chat model behind a judge, and how it is asked."""

    model: str = Field(description="the model's name at its upstream")
    mode: Literal["score", "rank"]


class TauOutcome(Body):
    """Expected outcome of a Q model's choices at one temperature."""

    tau: float
    outcome: float = Field(description="mean label of the chosen candidates, over tasks")
    standard_error: float = Field(description="of the difference to the best temperature's")


class PriorCard(Body):
    """Choice by Q and the policy's preference, fitted on held-back decisions."""

    tau: float = Field(description="temperature of Q; 0 is the argmax of Q")
    by: PriorBy
    greedy_weight: float = Field(default=0.0, description="added to the log prior of the policy's greedy reply")
    decisions: int = Field(description="held-back decisions whose outcomes differ")
    tasks: int = Field(description="their tasks")
    curve: list[TauOutcome]

    @classmethod
    def of(cls, manifest: Manifest | None) -> Self | None:
        """Convert from a manifest; None if nothing was fitted."""
        if manifest is None or manifest.prior is None:
            return None
        return cls.model_validate(manifest.prior.model_dump(mode="json"))


class ModelCard(Body):
    """A served model and the metadata of its checkpoint."""

    id: str = Field(description="name for requests; a Q model's is `name@version`")
    object: Literal["model"] = "model"
    type: Literal["model"] = Field(default="model", description="Anthropic's name of `object`")
    display_name: str = Field(description="for Anthropic's clients: the id")
    kind: Literal["policy", "q_model"]
    name: str
    version: str | None = Field(description="null for the policy")
    created: int = Field(description="Unix time in seconds at which this server started")
    created_at: AwareDatetime = Field(description="for Anthropic's clients: `created` as a date")
    owned_by: str = Field(description="the upstream's name, or qguide")
    source: Source
    default: bool = Field(description="true if requests that name no model can get it")
    context: int | None = Field(description="context length in tokens; null if unknown")
    max_model_len: int | None = Field(description="for vLLM's clients: `context`")
    max_input_tokens: int | None = Field(description="for Anthropic's clients: `context`")
    checkpoint: str | None = Field(description="the name in its manifest")
    environment: str | None = Field(description="the environment it was trained on")
    read_at: str | None = Field(
        description="position at which Q is read: `last_token` of the action, after its `observation`, or all "
        "`action_tokens`; null for a policy and a fake"
    )
    target: str | None = Field(description="regression target of its Q: q, avg or reward")
    metrics: dict[str, float] = Field(description="metrics of its training")
    licensed: bool | None = Field(
        description="whether its choices were shown to be above the agent's own on tasks that it did not learn from; "
        "null where nothing judged them"
    )
    licence: str | None = Field(description="the figures behind `licensed`; null where nothing judged its choices")
    prior: PriorCard | None = Field(
        default=None,
        description="present if the Q model was fitted to choose by Q and the policy's preference, which it then does "
        "by default",
        exclude_if=is_none,
    )
    judge: JudgeCard | None = Field(
        description="the prompted chat model, if the Q model is a judge; null for any other model"
    )


class ModelList(Body):
    """All served models, and the aliases of the Q models.

    Model pickers of chat clients show `data`, so it has only what can be chatted with.
    """

    object: Literal["list"] = "list"
    data: list[ModelCard] = Field(description="the policies, which chat")
    q_models: list[ModelCard] = Field(description="the Q models, which score and rerank")
    aliases: dict[str, str] = Field(description="alias -> Q model")
    splits: dict[str, dict[str, float]] = Field(
        description="alias -> several Q models and the share of episodes for each"
    )
    shadows: dict[str, str] = Field(description="Q model -> the shadow that scores its requests a second time")


class LoadRequest(Body):
    """A checkpoint to load and serve."""

    folder: str = Field(description="a folder in QGUIDE_MODELS_DIR, such as `shop-0042/checkpoint`")
    name: str
    version: str | None = Field(default=None, description="null takes the start of the manifest's SHA-256")
    replace: bool = Field(
        default=False,
        description="move the name to this version and drop the version it pointed to; otherwise the name points to it "
        "only if it is new",
    )
    unlicensed: bool = Field(default=False, description="serve it even if its manifest grants no licence")


class DropRequest(Body):
    """A version to stop serving."""

    q_model: str = Field(description="`name@version`; no alias or shadow may point to it")


class AliasRequest(Body):
    """An alias and its new target."""

    alias: str
    to: str | dict[str, float] | None = Field(
        description="a Q model, or several and their shares; null removes the alias"
    )


class ShadowRequest(Body):
    """A Q model and its new shadow."""

    q_model: str = Field(description="the name, without a version")
    shadow: str | None = Field(description="a name, `name@version` or alias; null removes it")
