"""Choice regret: the steps that a scorer's choices cost on decision groups with known values.

A success rate shows that guidance failed, but not where. Every candidate of a decision group has
been played to the end (`qguide groups`), so a scorer's argmax can be compared with the best, the
greedy and a random candidate, and its ranking with the true one. No episode is played.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np
from pydantic import Field, FiniteFloat, NonNegativeInt

from qguide.qnet.records import NodeRow, Row, TreeRow
from qguide.qnet.types import Candidate, SampleRequest, Sampling
from qguide.training.algorithms.choice_quality import Ending, ScoredChoice, choice_quality, steps_left
from qguide.training.data.decision_groups import GroupDecision, decisions_of
from qguide.training.evaluation.statistics import bootstrap_interval
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import derived_seed
from qguide.training.rollouts.rollout import RolloutTask, SampleRequests
from qguide.training.trajectory import reply_key

RESAMPLES = 2_000


class ScoredDecisionRow(Row):
    """One decision between at least two candidates, with a scorer's values.

    Attributes:
        step: number of actions before it.
        after_invalid: the environment did not understand the action before it.
        replies: the distinct candidates, in the order in which they were drawn.
        steps: expected steps to the end with each candidate; see `candidate_steps`.
        valid: False where the environment did not understand the action.
        greedy: index of the policy's greedy reply, None if it was not drawn.
        chosen: index of the highest value, the first of equal ones.
    """

    step: NonNegativeInt
    after_invalid: bool
    replies: tuple[str, ...]
    draws: tuple[int, ...]
    q_values: tuple[FiniteFloat, ...]
    steps: tuple[FiniteFloat, ...]
    valid: tuple[bool, ...]
    greedy: int | None
    chosen: int

    def to_choice(self) -> ScoredChoice:
        """The decision as `choice_quality` takes it."""
        return ScoredChoice(
            self.q_values,
            self.steps,
            self.valid,
            draws=self.draws,
            greedy=self.greedy,
            after_invalid=self.after_invalid,
        )


class ScoredEpisodeRow(Row):
    """The scored decisions of one episode, with the reward of the agent that played it."""

    task_id: str
    kind: str
    reward: FiniteFloat
    decisions: tuple[ScoredDecisionRow, ...]


def candidate_steps(candidate: NodeRow, *, horizon: float) -> float:
    """Expected steps to the goal, this action included; `horizon` for a failure."""
    endings = [Ending(c.outcome_reward, c.steps) for c in candidate.rollouts]
    return steps_left(endings, horizon=horizon)


def scored_episode(row: TreeRow, scores: Sequence[Sequence[float]], *, most_steps: float) -> ScoredEpisodeRow:
    """A row's decisions with a scorer's values."""
    made = decisions_of(row)
    return ScoredEpisodeRow(
        task_id=row.task_id,
        kind=row.kind,
        reward=made[-1].taken.reward,
        decisions=tuple(
            _scored(decision, values, step, most_steps)
            for step, (decision, values) in enumerate(zip(made, scores, strict=True))
            if len(decision.candidates) > 1
        ),
    )


def _scored(decision: GroupDecision, values: Sequence[float], step: int, most: float) -> ScoredDecisionRow:
    candidates = decision.candidates
    return ScoredDecisionRow(
        step=step,
        after_invalid=decision.after_noop,
        replies=tuple(c.action for c in candidates),
        draws=tuple(c.count for c in candidates),
        q_values=tuple(values),
        steps=tuple(candidate_steps(c, horizon=most) for c in candidates),
        valid=tuple(c.valid for c in candidates),
        greedy=decision.greedy,
        chosen=max(range(len(values)), key=values.__getitem__),
    )


def choice_figures(rows: Iterable[ScoredEpisodeRow]) -> dict[str, float]:
    """Figures of all decisions between at least two candidates.

    Returns:
        The number of `episodes`, the figures of `choice_quality`, and the means over tasks of
        regret and rank correlation (`regret_steps_by_task`, `spearman_by_task`), in which each
        task is the mean of its decisions, with their 95 % bootstrap intervals.
    """
    choices = [[decision.to_choice() for decision in row.decisions] for row in rows]
    figures = choice_quality([choice for episode in choices for choice in episode])
    regrets = [[choice.regret_steps for choice in episode] for episode in choices]
    correlations = [[choice.spearman for choice in episode if choice.spearman is not None] for episode in choices]
    by_task = _by_task("regret_steps", regrets) | _by_task("spearman", correlations)
    return {"episodes": len(choices), **figures, **by_task}


def _by_task(name: str, of_tasks: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean over the tasks that have such values, with its interval; nothing if none has."""
    means = [fmean(values) for values in of_tasks if values]
    if not means:
        return {}
    low, high = bootstrap_interval(means, np.random.default_rng(0), resamples=RESAMPLES)
    return {f"{name}_by_task": fmean(means), f"{name}_by_task_low": low, f"{name}_by_task_high": high}


class PolicyDraws(JobOptions):
    """Draws of a hosted policy in each state.

    Attributes:
        n: number of draws.
        temperature: sampling temperature; at 1 the shares estimate the policy's probabilities.
        max_tokens: maximum number of completion tokens of one draw.
        parallel: number of episodes whose states are drawn for at the same time.
    """

    n: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=128, ge=1)
    parallel: int = Field(default=64, ge=1)


def drawn_shares(row: TreeRow, draws: PolicyDraws, *, seed: int) -> RolloutTask[list[list[float]]]:
    """Share of the policy's draws with each candidate's action, for every decision of an episode.

    All states are recorded, so all are drawn for at once. A state with one candidate costs nothing.
    """
    made = decisions_of(row)
    choices = [step for step, decision in enumerate(made) if len(decision.candidates) > 1]
    requests = [
        SampleRequest(made[step].history, draws.n, _sampling(draws, seed, row.task_id, step)) for step in choices
    ]
    answers: list[list[Candidate]] = yield SampleRequests(tuple(requests))
    shares = [[0.0] for _ in made]
    for step, drawn in zip(choices, answers, strict=True):
        counts = Counter(reply_key(candidate.message) for candidate in drawn)
        candidates = made[step].candidates
        shares[step] = [counts[reply_key(c.message)] / len(drawn) for c in candidates]
    return shares


def _sampling(draws: PolicyDraws, seed: int, task_id: str, step: int) -> Sampling:
    return Sampling(draws.temperature, draws.max_tokens, seed=derived_seed(seed, task_id, step))
