"""A change of learning that is due."""

from dataclasses import dataclass

from qguide.server.learning.lines import Event, Phase, PhaseLine


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is due, and the state after it; see `PhaseLine`."""

    event: Event
    phase: Phase
    trial: int
    since: int
    reason: str
    version: int | None = None
    challenge: int = 0
    challenger: int | None = None
    refused: int = 0

    def line(self, *, at: float) -> PhaseLine:
        """The line that says so."""
        return PhaseLine(
            event=self.event,
            phase=self.phase,
            trial=self.trial,
            since=self.since,
            version=self.version,
            challenge=self.challenge,
            challenger=self.challenger,
            refused=self.refused,
            reason=self.reason,
            at=at,
        )
