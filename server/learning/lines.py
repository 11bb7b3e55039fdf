"""Lines of the ledger of learning: episodes, fits, changes of the phase, orders and costs."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter

from qguide.qnet.records import Row
from qguide.server.episodes.learning_part import LearningArm, ShadowTally

Phase = Literal["collecting", "trial", "guiding"]
Mode = Literal["auto", "pinned", "forbidden"]
"""Decisions by the figures; none of them; or no guidance at all."""
Event = Literal[
    "trial_begun",
    "trial_ended",
    "guiding",
    "rolled_back",
    "challenge_begun",
    "challenge_decided",
    "newer_version",
    "passed_over",
]
"""Kind of a change: of the phase, of the version that is tried, or one that is not tried."""


Cost = Annotated[FiniteFloat, Field(ge=0)]
"""In the currency of the operator's prices, or of the upstream."""


class EpisodeLine(Row):
    """An episode with an outcome."""

    kind: Literal["episode"] = "episode"
    episode: str = ""  # id under which it is recorded; an episode is counted once
    outcome: Annotated[FiniteFloat, Field(ge=0, le=1)]  # its reward, cut to 0 and 1
    arm: LearningArm | None  # how it was played; None if the caller chose a Q model
    cut: bool = Field(default=False, exclude_if=lambda cut: not cut)
    recorded: bool = True
    prompt_tokens: NonNegativeInt = 0  # of all of its requests to the upstream, as the next two
    completion_tokens: NonNegativeInt = 0
    # None if there are no prices
    cost: Cost | None = Field(default=None, exclude_if=lambda cost: cost is None)
    # share of its steps that were outside the domain of what guided it
    outside: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0.0
    shadow: ShadowTally | None = Field(default=None, exclude_if=lambda tally: tally is None)
    # number of its steps whose action each policy drew, where several drew
    policies: Mapping[str, NonNegativeInt] = Field(default={}, exclude_if=lambda steps: not steps)


class SilentLine(Row):
    """An episode of which nothing was heard for long: its outcome is unknown."""

    kind: Literal["silent"] = "silent"
    episode: str
    arm: LearningArm | None


class FitLine(Row):
    """A fit that has ended."""

    kind: Literal["fit"] = "fit"
    version: Annotated[int, Field(ge=1)]
    episodes: NonNegativeInt  # ends of episodes when it began
    licensed: bool  # it may be tried, see `fitting.may_be_tried`; that asks for less than a licence
    reason: str
    failed: bool = False
    # what it lacks to be tried; "" if nothing is known
    missing: str = Field(default="", exclude_if=lambda missing: not missing)


class PhaseLine(Row):
    """A change, and the state after it."""

    kind: Literal["phase"] = "phase"
    event: Event
    phase: Phase
    trial: NonNegativeInt  # number of the trial that begins, or that has ended
    since: NonNegativeInt  # ends of episodes before the first one that is still learned from
    version: int | None = None
    challenge: NonNegativeInt = 0
    challenger: int | None = None  # the version that is tried against the one that guides; None: none
    refused: NonNegativeInt = 0  # versions up to this one are not tried
    reason: str
    at: FiniteFloat = 0.0  # Unix time in seconds


class ModeLine(Row):
    """An operator's order on who decides."""

    kind: Literal["mode"] = "mode"
    mode: Mode
    at: FiniteFloat


class SpentLine(Row):
    """Candidates that learning had drawn, beside the one of each step that the agent would draw."""

    kind: Literal["spent"] = "spent"
    tokens: NonNegativeInt  # read and generated
    cost: Cost = 0.0
    at: FiniteFloat  # Unix time in seconds at which it was noted


class StateLine(Row):
    """State after all lines before, which it replaces; always the first line."""

    kind: Literal["state"] = "state"
    generation: Annotated[int, Field(ge=1)]
    state: dict[str, Any]


AnyLine = EpisodeLine | SilentLine | FitLine | PhaseLine | ModeLine | SpentLine | StateLine
LINES: TypeAdapter[AnyLine] = TypeAdapter(Annotated[AnyLine, Field(discriminator="kind")])
