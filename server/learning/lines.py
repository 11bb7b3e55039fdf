"""Lines of the ledger of learning: ends of episodes, fits, changes of the phase, and orders."""

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter

from qguide.qnet.records import Row
from qguide.server.episodes.state import Arm

Phase = Literal["collecting", "trial", "guiding"]
Mode = Literal["auto", "pinned", "forbidden"]
"""Decisions by the figures; none of them; or no guidance at all."""


class EpisodeLine(Row):
    """An episode with an outcome.

    Attributes:
        episode: id under which it is recorded; an episode is counted once.
        outcome: its reward, cut to 0 and 1.
        arm: how it was played; None if the caller chose a Q model.
        recorded: it can be learned from.
        outside: share of its steps that were outside the domain of what guided it.
    """

    kind: Literal["episode"] = "episode"
    episode: str = ""
    outcome: Annotated[FiniteFloat, Field(ge=0, le=1)]
    arm: Arm | None
    recorded: bool = True
    completion_tokens: NonNegativeInt = 0
    outside: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0.0


class FitLine(Row):
    """A fit that has ended.

    Attributes:
        version: its number, and the name of its folder.
        episodes: ends of episodes when it began.
        licensed: its manifest grants a licence.
        reason: of the licence, or of the failure.
        failed: it has no result.
    """

    kind: Literal["fit"] = "fit"
    version: Annotated[int, Field(ge=1)]
    episodes: NonNegativeInt
    licensed: bool
    reason: str
    failed: bool = False


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


class ModeLine(Row):
    """An operator's order on who decides."""

    kind: Literal["mode"] = "mode"
    mode: Mode
    at: FiniteFloat


AnyLine = EpisodeLine | FitLine | PhaseLine | ModeLine
LINES: TypeAdapter[AnyLine] = TypeAdapter(Annotated[AnyLine, Field(discriminator="kind")])
