"""Figures of a run: sums over its tasks, shown beside the progress bar and written at the end."""

from collections import defaultdict
from collections.abc import Mapping, Set
from time import monotonic

from qguide.training.rollouts.harness import Rollouts
from qguide.training.rollouts.rollout import Timings


class RunFigures:
    """Sums of the figures of the tasks that this start of a run has played.

    Args:
        rollouts: the run.
        unit: name of what a task is played to, such as "trees"; they are counted under it.
        rate: the figure that is also given per second.
        means: figures that are averaged over tasks; the others are summed.
    """

    def __init__(
        self, rollouts: Rollouts, *, unit: str, rate: str, means: Set[str] = frozenset()
    ) -> None:
        self._rollouts = rollouts
        self._unit = unit
        self._rate = rate
        self._means = means
        self._started = monotonic()
        self._count = 0
        self._totals: dict[str, float] = defaultdict(float)

    def add(self, figures: Mapping[str, float], spent: Timings) -> dict[str, float]:
        """Add those of one task, and the time that it took; returns the figures so far."""
        times = {
            "policy_s": spent.policy_s,
            "scorer_s": spent.scorer_s,
            "environment_s": spent.environment_s,
        }
        self._count += 1
        for name, figure in {**figures, **times}.items():
            self._totals[name] += figure
        return self.summary()

    def finish(self) -> dict[str, float]:
        """Write and return the run's figures."""
        self._rollouts.require_some(self._count)
        self._rollouts.metrics.write({"summary": self.summary()})
        return self.summary()

    def summary(self) -> dict[str, float]:
        """The figures so far."""
        seconds = monotonic() - self._started
        figures: dict[str, float] = {
            self._unit: self._count,
            "failures": len(self._rollouts.failures),
        }
        for name, total in self._totals.items():
            figures[name] = total / self._count if name in self._means else total
        figures["wall_time_s"] = seconds
        figures[f"{self._rate}_per_s"] = self._totals[self._rate] / seconds
        return figures
