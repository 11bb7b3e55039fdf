"""An episode's part in learning: how it is played, and what another version would have chosen."""

from typing import Self

from pydantic import BaseModel, Field

from qguide.qnet.trial_statistics import ALPHA


class LearningArm(BaseModel, frozen=True, extra="forbid"):
    """Part of an episode in learning (`qguide.server.learning`)."""

    trial: int  # number of the trial; 0 before the first
    guided: bool
    share: float  # probability with which it does, among the episodes that no challenger guides
    prompt: str = ""  # hash of its system prompt and tools
    task: str = Field(default="", exclude_if=lambda task: not task)  # hash of what it begins with beside those
    # of its outcome, by the episodes before of the same task; None: tasks do not differ
    guess: float | None = Field(default=None, exclude_if=lambda guess: guess is None)
    # number of the challenge in which it was begun; 0: none
    challenge: int = Field(default=0, exclude_if=lambda number: not number)
    # the version that is tried against the present one guides it
    challenger: bool = Field(default=False, exclude_if=lambda newer: not newer)
    # whose episodes learn together; "" on a server without keys
    group: str = Field(default="", exclude_if=lambda name: not name)
    # probability that a Q model that does not help ever guides
    alpha: float = Field(default=ALPHA, exclude_if=lambda alpha: alpha == ALPHA)


class Shadowed(BaseModel, frozen=True, extra="forbid"):
    """The choice that a version in the shadow would have made at one step."""

    version: int
    chosen: str  # text of its candidate; that of the step where the state is outside
    room: bool  # the candidates differed
    outside: bool
    disagreed: bool  # it would have chosen otherwise


class ShadowTally(BaseModel, frozen=True, extra="forbid"):
    """Numbers of decisions in the shadow of a version; see `Shadowed`."""

    version: int
    decisions: int = 0
    room: int = 0
    outside: int = 0
    disagreed: int = 0

    @classmethod
    def of(cls, one: Shadowed) -> Self:
        """The tally of one decision."""
        return cls(version=one.version, decisions=1, room=one.room, outside=one.outside, disagreed=one.disagreed)

    def plus(self, other: Self | None) -> Self:
        """Decisions of both; those of another version do not count."""
        if other is None or other.version != self.version:
            return self
        names = ("decisions", "room", "outside", "disagreed")
        return self.model_copy(update={name: getattr(self, name) + getattr(other, name) for name in names})
