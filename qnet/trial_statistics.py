"""Anytime-valid statistics of outcomes: what difference guidance makes, and whether outcomes drop.

The difference is a confidence sequence, valid however often it is looked at.

Each episode is guided with a known probability p, and has an outcome Y in [0, 1]. With a guess g of
the mean outcome, made before the episode,

    X = (Y - g) / p          of a guided episode
    X = -(Y - g) / (1 - p)   of an unguided one

has the mean m1 - m0, whatever g is. Gamblers bet on X being above, and below, each value d that the
difference may have; d leaves the interval for good once they have made a fortune of its error:

    K(d) = prod (1 + lambda (X - d)) >= 2 / alpha       (Waudby-Smith and Ramdas, 2024, theorem 3)

By Ville's inequality the true difference ever leaves it with a probability of at most alpha. Where
the difference moves, the same holds of a hypothesis such as "never above 0".
"""

import math
from dataclasses import dataclass, field
from typing import Final

ALPHA: Final = 0.05
"""Probability that a Q model that does not help ever guides, where the operator names no other."""
_GRID: Final = 80  # steps of .025 from -1 to 1
_HORIZON: Final = 60  # episodes at which the bets are sharpest: a trial that has to wait longer sees less difference
_MOST_OF_FORTUNE: Final = 0.9
_HARM: Final = 0.25  # harm that is seen the soonest
_LEAST_VARIANCE: Final = 0.05
_LATEST: Final = 50
_LIKE: Final = 5  # episodes that the mean of all counts for beside those of a task
_TASKS_DIFFER: Final = 1.0
_MOST_GAIN: Final = 3.0
_MOST_OF_TASK: Final = 20
"""Episodes of a task by which the next is guessed, and a gain that some tens of guesses lose, or
make up for: once tasks have changed, what they were is soon forgotten."""
_MOST_TASKS: Final = 5_000
_VALUES: Final = tuple(-1 + 2 * i / _GRID for i in range(_GRID + 1))


def level_of(number: int, *, alpha: float) -> float:
    """Level of a trial's interval, half of it at each end; the lower ends add up to alpha."""
    # 1 / (n (n + 1)) adds up to 1 over all n, and half of each level is at the lower end.
    return 2 * alpha / (number * (number + 1))


@dataclass(frozen=True, slots=True)
class Interval:
    """Estimate of a difference and the ends of its interval."""

    low: float
    estimate: float
    high: float


@dataclass(slots=True)
class _Weighed:
    """Weighed mean of the outcomes of an arm."""

    total: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.weight

    def add(self, outcome: float, weight: float) -> None:
        self.total += weight * outcome
        self.weight += weight


def _bet(sharpest: float, loss: float) -> float:
    """Share of the fortune that the greatest loss does not take."""
    return min(sharpest, _MOST_OF_FORTUNE / loss) if loss > 0 else sharpest


def _told(outcome: float, guess: float, *, guided: bool, share: float) -> tuple[float, float, float]:
    """X of an episode, and how far it can fall below 0 and rise above it, whichever arm and outcome."""
    rest = 1 - share
    x = (outcome - guess) / share if guided else -(outcome - guess) / rest
    return x, max(guess / share, (1 - guess) / rest), max((1 - guess) / share, guess / rest)


@dataclass(slots=True)
class TaskMeans:
    """Guesses of outcomes by the episodes before of the same task, once tasks are seen to differ.

    An interval is valid with any guess, and the narrower the better that is. Where all tasks are alike the guess of a
    task is worse than the mean of all, so none is given until guesses have shown what they are worth.

    Attributes:
        tasks: number and sum of outcomes of each, the latest last.
        gain: by how much the squared errors of guesses were less than those of the mean of all, within bounds.
    """

    count: int = 0
    total: float = 0.0
    gain: float = 0.0
    tasks: dict[str, tuple[int, float]] = field(default_factory=dict)

    def guess(self, task: str) -> float | None:
        """Expected outcome of the next episode of a task; None: the mean of all says as much."""
        return self._by_task(task) if task in self.tasks and self.gain >= _TASKS_DIFFER else None

    def add(self, task: str, outcome: float) -> None:
        """Count the outcome, in [0, 1], of an episode."""
        if task in self.tasks:
            gained = (outcome - self._mean) ** 2 - (outcome - self._by_task(task)) ** 2
            self.gain = max(-_MOST_GAIN, min(self.gain + gained, _MOST_GAIN))
        count, total = self.tasks.pop(task, (0, 0.0))
        if count == _MOST_OF_TASK:
            count, total = count - 1, total - total / count
        self.tasks[task] = count + 1, total + outcome
        self.count += 1
        self.total += outcome
        if len(self.tasks) > _MOST_TASKS:
            del self.tasks[next(iter(self.tasks))]

    @property
    def _mean(self) -> float:
        return (self.total + 0.5) / (self.count + 1)

    def _by_task(self, task: str) -> float:
        count, total = self.tasks[task]
        return (total + _LIKE * self._mean) / (count + _LIKE)


@dataclass(slots=True)
class DifferenceSequence:
    """Running interval of the difference of mean outcomes, guided minus unguided.

    Its fields are its whole state, so that it can be saved and go on elsewhere.

    Attributes:
        alpha: probability that the true difference is ever outside; each end has half of it.
        above, below: logarithms of the fortunes of the bets against each value.
        arms: unguided and guided episodes.
    """

    alpha: float
    above: list[float] = field(default_factory=lambda: [0.0] * len(_VALUES))
    below: list[float] = field(default_factory=lambda: [0.0] * len(_VALUES))
    low: float = -1.0
    high: float = 1.0
    count: int = 0
    outcomes: float = 0.0
    squares: float = 0.0
    arms: tuple[_Weighed, _Weighed] = field(default_factory=lambda: (_Weighed(), _Weighed()))

    @property
    def interval(self) -> Interval:
        """The interval of the episodes so far."""
        return Interval(self.low, min(max(self._estimate, self.low), self.high), self.high)

    @property
    def fortune(self) -> float:
        """Logarithm of the fortune of the bet that guidance helps."""
        return self.above[_GRID // 2]

    @property
    def more_to_show_a_gain(self) -> float:
        """About how many more episodes lift the interval above 0; infinite if these do not tend to.

        The fortune of the bet against 0 grows by E log(1 + b X) = b m - b^2 E X^2 / 2 an episode,
        to the second order, if the difference m stays as it is.
        """
        mean = self.outcomes / self.count if self.count else 0.5
        bet = _bet(self._sharpest, max(mean, 1 - mean) / 0.5)
        growth = bet * self._estimate - bet**2 * self._variance / 2
        missing = math.log(2 / self.alpha) - self.fortune
        return max(missing, 0.0) / growth if growth > 0 else math.inf

    @property
    def _estimate(self) -> float:
        """Difference of the means, each episode weighed by 1 / the probability of its arm.

        Where all had the same one it is the difference of the plain means.
        """
        unguided, guided = self.arms
        return guided.mean - unguided.mean if guided.weight and unguided.weight else 0.0

    def add(self, outcome: float, *, guided: bool, share: float, guess: float | None = None) -> None:
        """Count one episode.

        Args:
            outcome: in [0, 1].
            share: probability with which it was guided, in (0, 1).
            guess: of the outcome, in [0, 1], made before its arm was drawn; None: the mean so far.
        """
        # From the episodes before this one: a guess that knew the outcome would bias X.
        if guess is None:
            guess = (self.outcomes + 0.5) / (self.count + 1)
        x, lowest, highest = _told(outcome, guess, guided=guided, share=share)
        # Laid before X is counted: a bet that knew it could not lose, and Ville's inequality would not hold.
        sharpest = self._sharpest
        above = [_bet(sharpest, lowest + value) for value in _VALUES]
        below = [_bet(sharpest, highest - value) for value in _VALUES]
        self.count += 1
        self.arms[guided].add(outcome, 1 / share if guided else 1 / (1 - share))
        self.outcomes += outcome
        self.squares += x * x
        for i, value in enumerate(_VALUES):
            self.above[i] += math.log1p(above[i] * (x - value))
            self.below[i] += math.log1p(-below[i] * (x - value))
        self._shrink()

    @property
    def _variance(self) -> float:
        # As if one episode with X = 1 had been seen before all others: the first bets stay small.
        return (self.squares + 1) / (self.count + 1)

    @property
    def _sharpest(self) -> float:
        """Bet that makes the interval after n episodes tightest, by what was seen before."""
        # Beyond the horizon n grows with the episodes, and bets get smaller.
        return math.sqrt(2 * math.log(2 / self.alpha) / (self._variance * max(_HORIZON, self.count)))

    def _shrink(self) -> None:
        """Leave out the values that are refuted, from the ends; an interval never grows again."""
        fortune = math.log(2 / self.alpha)
        refuted = [v for v, k in zip(_VALUES, self.above, strict=True) if k >= fortune]
        if refuted:
            self.low = max(self.low, refuted[-1])
        refuted = [v for v, k in zip(_VALUES, self.below, strict=True) if k >= fortune]
        if refuted:
            self.high = min(self.high, refuted[0])


@dataclass(slots=True)
class _Detector:
    """Alarm of a change for the worse, and since when.

    A gambler bets on the change, and begins anew whenever nothing was won by it (the e-CUSUM of Shin, Ramdas and
    Rinaldo, 2023). Where nothing changes, the mean time to an alarm is at least `patience` episodes.

    Attributes:
        patience: least mean number of episodes to an alarm where nothing changes.
        since: number of episodes before the change, as far as it is seen.
        fortune: logarithm of what the gambler has.
    """

    patience: float
    since: int = 0
    fortune: float = 0.0
    count: int = 0

    @property
    def alarmed(self) -> bool:
        """True once there is an alarm, until outcomes recover."""
        return self.fortune >= math.log(self.patience)


@dataclass(slots=True)
class DropDetector(_Detector):
    """Alarm when outcomes in [0, 1] have fallen below a level."""

    def add(self, outcome: float, *, level: float) -> None:
        """Count one outcome.

        Args:
            level: mean outcome that is no drop, known before the outcome.
        """
        if self.fortune <= 0:
            self.fortune, self.since = 0.0, self.count
        self.count += 1
        # An outcome of 1 takes this share of the fortune at most: a fortune of 0 would win nothing back.
        bet = min(1.0, _MOST_OF_FORTUNE / max(1 - level, 1e-9))
        self.fortune += math.log1p(bet * (level - outcome))


@dataclass(slots=True)
class HarmDetector(_Detector):
    """Alarm when guided outcomes have fallen below unguided ones, whichever of them changed: X is below 0.

    The difference since a trial began is slow to tell of a change after hundreds of episodes.

    Attributes:
        mean: outcome of the latest episodes.
        arms: unguided and guided episodes since then.
    """

    mean: float = 0.5
    arms: tuple[_Weighed, _Weighed] = field(default_factory=lambda: (_Weighed(), _Weighed()))

    @property
    def figures(self) -> str:
        """Mean outcomes since then in words."""
        unguided, guided = (f"{arm.mean:.0%}" if arm.weight else "none" for arm in self.arms)
        return f"guided {guided}, unguided {unguided}"

    def add(self, outcome: float, *, guided: bool, share: float, number: int) -> None:
        """Count one episode.

        Args:
            outcome: in [0, 1].
            share: probability with which it was guided, in (0, 1).
            number: of the episodes before it.
        """
        if self.fortune <= 0:
            self.fortune, self.since, self.arms = 0.0, number, (_Weighed(), _Weighed())
        guess = self.mean
        x, _, highest = _told(outcome, guess, guided=guided, share=share)
        # What wins the most where the harm is as large as that, by the greatest variance of X.
        bet = min(_HARM * share * (1 - share) / max(guess * (1 - guess), _LEAST_VARIANCE), _MOST_OF_FORTUNE / highest)
        self.fortune += math.log1p(-bet * x)
        self.arms[guided].add(outcome, 1.0)
        self.count += 1
        self.mean += (outcome - guess) / min(self.count + 1, _LATEST)
