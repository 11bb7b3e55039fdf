"""Lines of the ledger of learning: ends of episodes, fits, and changes of the phase."""

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter

from qnet.records import Row
from server.episodes.state import Arm

Phase = Literal["collecting", "trial", "guiding"]


class EpisodeLine(Row):
    """An episode with an outcome.

    Attributes:
        outcome: its reward, cut to 0 and 1.
        arm: how it was played; None if the caller chose a Q model.
        recorded: it can be learned from.
    """

    kind: Literal["episode"] = "episode"
    outcome: Annotated[FiniteFloat, Field(ge=0, le=1)]
    arm: Arm | None
    recorded: bool = True
    completion_tokens: NonNegativeInt = 0


class FitLine(Row):
    """A fit that has ended.

    Attributes:
        version: its number, and the name of its folder.
        episodes: ends of episodes when it began.
        licensed: its manifest grants a licence.
        reason: of the licence, or of the failure.
    """

    kind: Literal["fit"] = "fit"
    version: Annotated[int, Field(ge=1)]
    episodes: NonNegativeInt
    licensed: bool
    reason: str


class PhaseLine(Row):
    """A change of the phase.

    Attributes:
        trial: number of the trial that begins, or that has ended.
        since: ends of episodes before the first one that is still learned from.
        at: Unix time in seconds.
    """

    kind: Literal["phase"] = "phase"
    phase: Phase
    trial: NonNegativeInt
    since: NonNegativeInt
    reason: str
    at: FiniteFloat


Line = Annotated[EpisodeLine | FitLine | PhaseLine, Field(discriminator="kind")]
LINES: TypeAdapter[EpisodeLine | FitLine | PhaseLine] = TypeAdapter(Line)
