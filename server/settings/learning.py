"""Settings of learning while serving (`QGUIDE_LEARN…`), and the rules that they make."""

import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Final, Literal, Self

from pydantic import Field, HttpUrl, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from qguide.qnet.trial_statistics import ALPHA, level_of
from qguide.server.settings.unknown_variables import refuse_unprotected

KeyGroup = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

LEARNED: Final = "learned"
"""Name of Q models that are learned while serving."""
KEYLESS: Final = "_"
"""The group of a server without keys."""
Period = Literal["hour", "day"]


@dataclass(frozen=True, slots=True)
class LearningBudget:
    """Most that may be spent on candidates that learning has drawn; None: no limit."""

    tokens: int | None = None
    cost: float | None = None
    period: Period = "day"

    @property
    def seconds(self) -> float:
        """Length of the period, which ends now."""
        return 3600.0 if self.period == "hour" else 86400.0

    def is_spent(self, tokens: int, cost: float) -> bool:
        """True if that much leaves nothing."""
        no_tokens = self.tokens is not None and tokens >= self.tokens
        return no_tokens or (self.cost is not None and cost >= self.cost)

    def __str__(self) -> str:
        """The limits in words."""
        limits = [] if self.tokens is None else [f"{self.tokens:,} tokens"]
        limits += [] if self.cost is None else [f"a cost of {self.cost:g}"]
        return f"{' or '.join(limits)} {'an hour' if self.period == 'hour' else 'a day'}"


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbers by which learning decides."""

    every: int = 25
    exploration: float = 0.1
    control: float = 0.1
    alpha: float = ALPHA
    # episodes after which a trial ends without a result, unless as many more are expected to show a gain; with those of
    # newer versions that follow it, it ends after twice as many
    most_in_trial: int = 300
    most_in_challenge: int = 100  # guided episodes after which the better mean of two versions decides
    patience: float = 100.0  # least mean number of guided episodes to a rollback where nothing is worse
    budget: LearningBudget = field(default_factory=LearningBudget)

    def alpha_of(self, trial: int) -> float:
        """Level of the interval of a trial, or of a challenge."""
        return level_of(trial, alpha=self.alpha)


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
    learn_budget_period: Period = "day"
    learn_webhook: HttpUrl | None = None
    learn_webhook_secret: SecretStr | None = None

    @model_validator(mode="after")
    def _empty_protects_nothing(self) -> Self:
        # `env_ignore_empty` has left empty variables out.
        refuse_unprotected(os.environ, given=self.model_fields_set)
        return self

    def group_of(self, key: str | None) -> str:
        """Name of the group that a key's episodes teach."""
        if not key:
            return KEYLESS
        return f"+{self.learn_groups[key]}" if key in self.learn_groups else key

    @property
    def learning_rules(self) -> Rules:
        """The rules by which learning decides."""
        return Rules(
            every=self.learn_every,
            exploration=self.learn_exploration,
            control=self.learn_control,
            alpha=self.learn_alpha,
            budget=LearningBudget(self.learn_budget_tokens, self.learn_budget_cost, self.learn_budget_period),
        )


def mark_of(group: str) -> str:
    """Return the end of the versions of a group's Q models, which tells them from other groups'."""
    return "" if group == KEYLESS else f"-{sha256(group.encode()).hexdigest()[:8]}"
