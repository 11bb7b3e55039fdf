"""Rules of learning: when it fits, how it tries what it learned, and how sure it has to be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbers by which learning decides.

    Attributes:
        every: ends of episodes between two fits.
        exploration: share of the steps, while nothing guides, that take a random candidate.
        control: share of the episodes that stay unguided.
        alpha: probability that a Q model that is not better ever guides, over all trials together.
        most_in_trial: episodes after which a trial ends without a result.
        patience: least mean number of guided episodes to a rollback where nothing is worse.
    """

    every: int = 25
    exploration: float = 0.1
    control: float = 0.1
    alpha: float = 0.05
    most_in_trial: int = 300
    patience: float = 100.0

    def alpha_of(self, trial: int) -> float:
        """Level of a trial's interval, half of it at each end; the lower ends add up to alpha."""
        return 2 * self.alpha / (trial * (trial + 1))
