"""Parameters of learning: when it fits, how it tries what it learned, and how sure it has to be."""

from dataclasses import dataclass, field
from typing import Literal, Self

from qguide.qnet.trial_statistics import ALPHA, level_of
from qguide.server.settings.learning import LearningSettings

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

    @classmethod
    def of(cls, settings: LearningSettings) -> Self:
        """The rules of a server's settings."""
        return cls(
            every=settings.learn_every,
            exploration=settings.learn_exploration,
            control=settings.learn_control,
            alpha=settings.learn_alpha,
            budget=LearningBudget(
                settings.learn_budget_tokens, settings.learn_budget_cost, settings.learn_budget_period
            ),
        )

    def alpha_of(self, trial: int) -> float:
        """Level of the interval of a trial, or of a challenge."""
        return level_of(trial, alpha=self.alpha)
