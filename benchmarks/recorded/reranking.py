"""Choices among recorded candidates: by Q, by agreement, by both, and the bounds around them.

Every method gives a task the expected reward of its choice, a tie being broken by a fair draw, so
that no figure depends on the order of the candidates.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from qguide.qnet.records import NodeRow, TreeRow
from qguide.training.evaluation.statistics import bootstrap_interval, sign_flip_p_value

Q_METHODS = ("q", "majority-then-q", "q-weighted-majority")
"""Methods that read Q: alone, to break ties of the majority, and as the weight of each vote."""


BASELINES = ("random", "majority-by-result", "majority-then-best-run")
"""Methods that every other is compared with, task by task."""


@dataclass(frozen=True, slots=True)
class RankedTask:
    """One task's candidates with their values.

    Attributes:
        fold: tasks of one fold share the Q models, which were trained on the other folds.
        q_values: for each Q model, the value of each candidate.
        logprobs: of each candidate under a policy; empty without one.
    """

    row: TreeRow
    fold: int
    q_values: Sequence[Sequence[float]] = ()
    logprobs: Sequence[float] = field(default=())

    @property
    def candidates(self) -> Sequence[NodeRow]:
        """The distinct candidates of its one decision."""
        return self.row.nodes

    @property
    def rewards(self) -> list[float]:
        """The recorded reward of each."""
        return [candidate.outcome for candidate in self.candidates]


def method_rewards(tasks: Sequence[RankedTask], training: Sequence[TreeRow] = ()) -> dict[str, list[float]]:
    """Expected reward of each method on each task; Q models of several seeds are averaged.

    Args:
        training: tasks beside the other folds, on which the best run is chosen.

    Returns:
        `random`: of the runs' actions. `best-run`: the run that is best on the other folds.
        `majority-by-text`, `majority-by-result`: the most frequent action, or result of those that
        ran without an error. `majority-then-best-run`: among the most frequent results, that of
        the run which is best on the other folds. `likeliest`: by the policy's log-probability.
        `q`: the highest Q. `majority-then-q`: among the most frequent results, the highest Q.
        `q-weighted-majority`: the result with the greatest sum of Q over the runs. The same with
        `-of-mean`: by the mean Q of several models. `oracle`: the best.
    """
    by_run = {fold: _rewards_by_run(tasks, training, fold) for fold in {task.fold for task in tasks}}
    rewards = {
        "random": [_random(task) for task in tasks],
        "best-run": [_most(task, _run_scores(task, by_run[task.fold])) for task in tasks],
        "majority-by-text": [_most(task, _votes(task, _text)) for task in tasks],
        "majority-by-result": [_most(task, _votes(task, _result)) for task in tasks],
        "majority-then-best-run": [_tie_break(task, _run_scores(task, by_run[task.fold])) for task in tasks],
    }
    if all(task.logprobs for task in tasks):
        rewards["likeliest"] = [_most(task, task.logprobs) for task in tasks]
    if all(task.q_values for task in tasks):
        for name, choose in zip(Q_METHODS, (_most, _tie_break, _weighted_majority), strict=True):
            rewards[name] = [fmean(choose(task, q) for q in task.q_values) for task in tasks]
            if all(len(task.q_values) > 1 for task in tasks):
                rewards[f"{name}-of-mean"] = [choose(task, _mean_q(task)) for task in tasks]
    return rewards | {"oracle": [max(task.rewards) for task in tasks]}


def _mean_q(task: RankedTask) -> list[float]:
    return [fmean(values) for values in zip(*task.q_values, strict=True)]


def _random(task: RankedTask) -> float:
    counts = [candidate.count for candidate in task.candidates]
    return float(np.average(task.rewards, weights=counts))


def _rewards_by_run(tasks: Sequence[RankedTask], training: Sequence[TreeRow], fold: int) -> dict[str, float]:
    """Mean reward of each run outside a fold."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for row in (*training, *(task.row for task in tasks if task.fold != fold)):
        for candidate in row.nodes:
            for run in candidate.sources:
                rewards[run].append(candidate.outcome)
    return {run: fmean(values) for run, values in rewards.items()}


def _run_scores(task: RankedTask, by_run: Mapping[str, float]) -> list[float]:
    """Each candidate's score by the best of the runs that took it."""
    return [max((by_run.get(run, 0.0) for run in c.sources), default=0.0) for c in task.candidates]


def _text(candidate: NodeRow) -> Hashable:
    return " ".join(candidate.action.lower().rstrip("; ").split())


def _result(candidate: NodeRow) -> Hashable:
    return candidate.observation if candidate.valid else None


def _votes(task: RankedTask, key: Callable[[NodeRow], Hashable]) -> list[float]:
    """Runs that agree with each candidate; 0 for one that agrees with nothing, an error."""
    votes: dict[Hashable, int] = defaultdict(int)
    for candidate in task.candidates:
        votes[key(candidate)] += candidate.count
    return [float(votes[k]) if (k := key(c)) is not None else 0.0 for c in task.candidates]


def _most(task: RankedTask, scores: Sequence[float]) -> float:
    """Mean reward of the candidates with the highest score."""
    highest = max(scores)
    best = zip(task.rewards, scores, strict=True)
    return fmean(reward for reward, score in best if score == highest)


def _tie_break(task: RankedTask, q_values: Sequence[float]) -> float:
    votes = _votes(task, _result)
    tied = [q if vote == max(votes) else -np.inf for q, vote in zip(q_values, votes, strict=True)]
    return _most(task, tied)


def _weighted_majority(task: RankedTask, q_values: Sequence[float]) -> float:
    """Q is an expected reward, so the sum over a result's runs is its expected number of votes."""
    sums: dict[Hashable, float] = defaultdict(float)
    for candidate, q in zip(task.candidates, q_values, strict=True):
        sums[_result(candidate)] += candidate.count * max(q, 0.0)
    return _most(task, [sums[_result(candidate)] for candidate in task.candidates])


def rerank_figures(
    tasks: Sequence[RankedTask], training: Sequence[TreeRow] = (), *, seed: int = 0
) -> dict[str, Mapping[str, float]]:
    """Figures of every method.

    Args:
        training: as in `method_rewards`.

    Returns:
        By method: `reward`, the mean over tasks, with its 95 % interval; `over_folds`, the mean of
        the folds' means; and the paired differences to each of `BASELINES` with their intervals
        over tasks and the p-values of sign flips.
    """
    rewards = method_rewards(tasks, training)
    return {name: _figures(tasks, rewards, name, seed) for name in rewards}


def _figures(
    tasks: Sequence[RankedTask], rewards: Mapping[str, Sequence[float]], name: str, seed: int
) -> dict[str, float]:
    own = rewards[name]
    low, high = bootstrap_interval(own, np.random.default_rng(seed))
    folds = sorted({task.fold for task in tasks})
    by_fold = [fmean(reward for task, reward in zip(tasks, own, strict=True) if task.fold == fold) for fold in folds]
    figures = {"reward": fmean(own), "low": low, "high": high, "over_folds": fmean(by_fold)}
    for baseline in BASELINES:
        if baseline != name:
            gains = [a - b for a, b in zip(own, rewards[baseline], strict=True)]
            low, high = bootstrap_interval(gains, np.random.default_rng(seed))
            prefix = f"over_{baseline.replace('-', '_')}"
            figures |= {
                prefix: fmean(gains),
                f"{prefix}_low": low,
                f"{prefix}_high": high,
                f"{prefix}_p": sign_flip_p_value(gains, np.random.default_rng(seed)),
            }
    return figures
