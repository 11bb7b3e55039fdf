"""Settings of learning while serving (`QGUIDE_LEARN…`)."""

import os
from typing import Annotated, Literal, Self

from pydantic import Field, HttpUrl, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from qguide.qnet.trial_statistics import ALPHA
from qguide.server.settings.unknown_variables import refuse_unprotected

KeyGroup = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class LearningSettings(BaseSettings):
    """The part of the settings that concerns learning.

    Attributes:
        learn: learn from the episodes that end with an outcome, and guide once a trial has shown that it helps; they
            are recorded in `episodes_dir`, or in the user's data folder. See GET /v1/learning.
        learn_every: ends of episodes between two fits.
        learn_exploration: share of the steps, while nothing guides, that draw all candidates and take a random one of
            them, so that rare actions are seen.
        learn_control: share of the episodes that stay unguided for good.
        learn_alpha: probability that the first Q model to guide does not help, over all trials.
        learn_groups: key -> name of a group; keys of a group learn from each other's episodes. Every other key learns
            from its own alone.
        learn_silence_s: an episode of which nothing was heard for this long ends as unknown, which is no failure; an
            outcome that comes later counts all the same.
        learn_cpu_s: most CPU time of a fit, which runs in a process of its own.
        learn_memory_mb: most memory of a fit in MiB.
        learn_budget_tokens: most tokens, read and generated, of candidates that learning has drawn beside the agent's
            own, for each group and period; then one candidate is drawn a step.
        learn_budget_cost: the same in the currency of the `prices` of the upstreams, or of what upstreams say of the
            cost.
        learn_budget_period: the latest hour, or day.
        learn_webhook: address that is told of changes, by signed requests.
        learn_webhook_secret: secret of the signatures, as the receiver gives it (`whsec_…`).
    """

    model_config = SettingsConfigDict(env_prefix="QGUIDE_", env_ignore_empty=True, frozen=True, extra="forbid")

    learn: bool = False
    learn_every: int = Field(default=25, ge=1)
    learn_exploration: float = Field(default=0.1, ge=0, le=1)
    learn_control: float = Field(default=0.1, gt=0, lt=1)
    learn_alpha: float = Field(default=ALPHA, gt=0, lt=1)
    learn_groups: dict[str, KeyGroup] = Field(default_factory=dict)
    learn_silence_s: float = Field(default=3600.0, gt=0)
    learn_cpu_s: int = Field(default=300, ge=1)
    learn_memory_mb: int = Field(default=4096, ge=256)
    learn_budget_tokens: int | None = Field(default=None, ge=0)
    learn_budget_cost: float | None = Field(default=None, ge=0)
    learn_budget_period: Literal["hour", "day"] = "day"
    learn_webhook: HttpUrl | None = None
    learn_webhook_secret: SecretStr | None = None

    @model_validator(mode="after")
    def _empty_protects_nothing(self) -> Self:
        # `env_ignore_empty` has left empty variables out.
        refuse_unprotected(os.environ, given=self.model_fields_set)
        return self
