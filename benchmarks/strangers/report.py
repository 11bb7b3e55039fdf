"""Tables of a measurement: reward by task, and the share of the way from random to the oracle."""

from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np

from benchmarks.strangers.protocol import Result
from qguide.training.evaluation.statistics import Interval, bootstrap_interval

_SEED = 0
_HEADINGS = (
    "chooser",
    "episodes",
    "reward",
    "95 % interval by task",
    "by recording",
    "share of the way",
    "least",
    "licensed",
    "fit, CPU s",
)


def share_of_way(reward: float, random: float, oracle: float) -> float:
    """The share of the way from random choice to the one-step oracle; 1 is the oracle's."""
    return (reward - random) / (oracle - random)


def interval_of(results: Sequence[Result]) -> Interval:
    """Interval of the mean over tasks, each averaged over its recordings."""
    tasks = results[0].task_rewards
    means = [fmean(result.task_rewards[task] for result in results) for task in tasks]
    return bootstrap_interval(means, np.random.default_rng(_SEED))


def markdown(results: Sequence[Result]) -> str:
    """One table for each environment and world."""
    kinds = dict.fromkeys((result.environment, result.world) for result in results)
    return "\n\n".join(_table([r for r in results if (r.environment, r.world) == kind]) for kind in kinds)


def _table(results: Sequence[Result]) -> str:
    """The table of one environment in one world."""
    fixed = {result.chooser: result.reward for result in results if result.recording is None}
    groups: dict[tuple[str, int, int], list[Result]] = {}
    for result in results:
        groups.setdefault((result.chooser, result.episodes, result.rounds), []).append(result)
    first = results[0]
    lines = [
        f"### {first.environment}, world {first.world}: {len(first.task_rewards)} new tasks",
        "",
        f"| {' | '.join(_HEADINGS)} |",
        "|" + "---|" * len(_HEADINGS),
    ]
    lines += [f"| {' | '.join(_cells(group, fixed['random'], fixed.get('oracle')))} |" for group in groups.values()]
    return "\n".join(lines)


def _cells(group: Sequence[Result], random: float, oracle: float | None) -> Iterator[str]:
    """The cells of one chooser; without the oracle's reward there is no way to have a share of."""
    first, rewards = group[0], [result.reward for result in group]
    low, high = interval_of(group)
    shares = [] if oracle is None else [share_of_way(reward, random, oracle) for reward in rewards]
    learns = first.recording is not None
    yield first.chooser
    yield _episodes(first) if learns else ""
    yield f"{fmean(rewards):.3f}"
    yield f"{low:.3f} to {high:.3f}"
    yield " ".join(f"{reward:.3f}" for reward in rewards) if learns else ""
    yield f"{fmean(shares):.0%}" if shares else ""
    yield f"{min(shares):.0%}" if shares and learns else ""
    yield _licences(group)
    yield f"{fmean(result.fit_s for result in group):.1f}" if learns else ""


def _licences(group: Sequence[Result]) -> str:
    """Number of recordings after which the learner says that it has learned."""
    verdicts = [result.licensed for result in group if result.licensed is not None]
    return f"{sum(verdicts)} of {len(verdicts)}" if verdicts else ""


def _episodes(result: Result) -> str:
    rounds = f" in {result.rounds} rounds" if result.rounds > 1 else ""
    return f"{result.episodes:,}{rounds}"
