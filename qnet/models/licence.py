"""Licence of a Q model in its manifest: its choices beside the agent's, on held-back decisions."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt

Interval = tuple[FiniteFloat, FiniteFloat]
Share = Annotated[float, Field(ge=0, le=1)]


class LicenceFigures(BaseModel):
    """Figures of one way to choose among the candidates of a decision.

    Attributes:
        outcome: expected outcome of its choices, with its 95 % interval by task.
        regret: the outcome of the best candidate in hindsight, minus that.
        pair_accuracy: share of pairs with different outcomes in the right order; chance is 0.5.
        decisions: number of those at which its choice is known; None for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: FiniteFloat
    interval: Interval
    regret: FiniteFloat
    pair_accuracy: Share | None = None
    pair_interval: Interval | None = None
    decisions: NonNegativeInt | None = None


class LicenceLead(BaseModel):
    """Credit of a Q model minus that of one of the agent's own preferences.

    Attributes:
        difference: of the correlations, with its 95 % interval by task.
        steps: at which the agent's preference was recorded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    difference: FiniteFloat
    interval: Interval
    steps: NonNegativeInt


class Licence(BaseModel):
    """Result of judging a Q model before it guides anybody.

    Attributes:
        granted: its choices are above the agent's own, or the actions that it prefers earned more
            than was expected.
        reason: the same in words, with figures.
        decisions: held-back decisions whose candidates differ in outcome, of so many `tasks`.
        pairs: of candidates with different outcomes in those decisions.
        choosers: `draw`, `votes` and, where it is known, `greedy` are the agent's own choices; `q`,
            `posterior` and `oracle`.
        own: the best of the agent's own choices; "" where none is judged.
        gain: outcome of the posterior minus that of `own`, with its 95 % interval by task.
        ceiling: share of pairs on whose order two halves of the outcomes agree.
        credit: correlation of the advantages of recorded actions with what was earned beyond
            expectation, with its 95 % interval by task, and the number of those tasks.
        leads: the same correlation minus that of `votes`, of `greedy` and of both together
            (`prior`), where they are known.
        missing_decisions: about how many more would show the gain, if it is real.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    granted: bool
    reason: str
    decisions: NonNegativeInt = 0
    tasks: NonNegativeInt = 0
    pairs: NonNegativeInt = 0
    choosers: dict[str, LicenceFigures] = Field(default_factory=dict)
    own: str = ""
    gain: FiniteFloat = 0.0
    gain_interval: Interval = (0.0, 0.0)
    ceiling: Share | None = None
    credit: FiniteFloat | None = None
    credit_interval: Interval | None = None
    credit_tasks: NonNegativeInt = 0
    leads: dict[str, LicenceLead] = Field(default_factory=dict)
    missing_decisions: NonNegativeInt | None = None
