"""A challenge: a newer version is tried against the one that guides, on the guided share."""

from qguide.qnet.trials.difference import DifferenceSequence, Interval
from qguide.server.learning.lines import EpisodeLine
from qguide.server.learning.rules import Rules
from qguide.server.learning.tally import Tally

SHARE = 0.5
"""Share of the guided episodes that the newer version plays."""


class Challenge:
    """Outcomes of the two versions since the challenge began.

    Attributes:
        version: the newer one.
        newer, present: episodes of each.
    """

    def __init__(self, number: int, version: int, rules: Rules) -> None:
        self.number = number
        self.version = version
        self.newer = Tally()
        self.present = Tally()
        self._most = rules.most_in_trial
        self._compared = DifferenceSequence(alpha=rules.alpha_of(number))

    @property
    def interval(self) -> Interval:
        """Newer minus present mean outcome."""
        return self._compared.interval

    @property
    def figures(self) -> str:
        """Mean outcomes of both in words."""
        newer, present = self.newer, self.present
        return (
            f"{newer.mean:.0%} of {newer.count} against {present.mean:.0%} of {present.count} "
            "episodes"
        )

    def add(self, line: EpisodeLine, *, newer: bool) -> None:
        """Count a guided episode."""
        (self.newer if newer else self.present).add(line)
        self._compared.add(line.outcome, guided=newer, share=SHARE)

    def decided(self) -> bool | None:
        """True: the newer version wins; False: it does not; None: the challenge goes on."""
        if self.interval.low > 0:
            return True
        if self.interval.high < 0 or self.newer.count + self.present.count >= self._most:
            return False
        return None

    @property
    def lost(self) -> bool:
        """True if the newer version is shown to be worse."""
        return self.interval.high < 0
