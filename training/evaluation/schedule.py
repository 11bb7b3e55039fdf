"""All trials of one task, played one after the other as one rollout task.

They run in sequence because the real engine takes seconds to load a game and milliseconds to play a
loaded game again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from qguide.qnet.errors import EnvironmentFailureError, QGuideError
from qguide.training.environment import Environment
from qguide.training.evaluation.beam_search import BeamSearch
from qguide.training.evaluation.lats import TreeSearch
from qguide.training.evaluation.methods import method_of, no_repeat, q_guided
from qguide.training.evaluation.paraphrased import with_paraphrases
from qguide.training.evaluation.records import (
    DETERMINISTIC,
    MANY_TRAJECTORIES,
    EpisodeFailure,
    EpisodeRow,
    MethodName,
    TrajectoryCost,
    in_order,
)
from qguide.training.evaluation.reflexion import Reflecting
from qguide.training.evaluation.search import Searched, TaskTrials, best_of_n, q_guided_n
from qguide.training.rollouts.episode import Agent
from qguide.training.rollouts.rollout import EnvironmentCall, RolloutTask, TaskTimings, TimingsRequest


@dataclass(frozen=True, slots=True)
class MethodTrial:
    """One method under one seed; a deterministic method has the seed None."""

    method: MethodName
    seed: int | None


def plan_trials(methods: Sequence[MethodName], seeds: Sequence[int]) -> list[MethodTrial]:
    """Every trial of a task.

    q-guided and q-guided-n come before best-of-n and verifier-best-of-n, which get their budget.
    """
    once = [MethodTrial(method, None) for method in in_order(methods) if method in DETERMINISTIC]
    drawn = [method for method in in_order(methods) if method not in DETERMINISTIC]
    return once + [MethodTrial(method, seed) for seed in seeds for method in drawn]


def play_trials(shared: TaskTrials, trials: Sequence[MethodTrial]) -> RolloutTask[None]:
    """Play the trials in order; a trial that fails does not stop the others."""
    yield EnvironmentCall(lambda: _load(shared.playable.make))
    for trial in trials:
        before: TaskTimings = yield TimingsRequest()
        try:
            searched = yield from _play_trial(shared, trial)
        except QGuideError as error:
            failure = EpisodeFailure(
                method=trial.method, seed=trial.seed, task_id=shared.playable.task.id, error=str(error)
            )
            shared.on_failure(failure)
            continue
        after: TaskTimings = yield TimingsRequest()
        row = episode_row(shared, trial, searched, after.since(before))
        if trial.method == shared.budget_of and trial.seed is not None:
            shared.budgets[trial.seed] = row.completion_tokens
        shared.on_row(row)


def _load(make: Callable[[], Environment]) -> None:
    """Make the engine load the game before the first trial is timed.

    If the game cannot be loaded, every trial fails and reports it.
    """
    with suppress(EnvironmentFailureError), closing(make()) as environment:
        environment.reset()


_SEARCHES: Final[Mapping[str, Callable[[TaskTrials, int], RolloutTask[Searched]]]] = {
    "q-guided-n": q_guided_n,
    "best-of-n": best_of_n,
    "best-of-n-aug": partial(best_of_n, paraphrased=True),
    "verifier-best-of-n": partial(best_of_n, verified=True),
    "q-beam": lambda shared, seed: BeamSearch(shared, seed).search(),
    "lats": lambda shared, seed: TreeSearch(shared, seed).search(),
    "reflexion": lambda shared, seed: Reflecting(shared, seed).search(),
}
"""Methods that play several trajectories, or try before they choose; the others are agents."""


def _play_trial(shared: TaskTrials, trial: MethodTrial) -> RolloutTask[Searched]:
    if search := _SEARCHES.get(trial.method):
        return (yield from search(shared, trial.seed or 0))
    episode = yield from shared.episode(_agent(shared, trial))
    return Searched([episode], chosen=0)


def _agent(shared: TaskTrials, trial: MethodTrial) -> Agent:
    play, task_id, seed = shared.play, shared.playable.task.id, trial.seed or 0
    match trial.method:
        case "no-repeat":
            return no_repeat(play, seed, task_id, void_observation=shared.playable.environment.void_observation)
        case "q-guided-aug":
            markers = shared.playable.environment.task_markers
            return with_paraphrases(q_guided(play, seed, task_id), shared.paraphrases, markers)
    return method_of(trial.method)(play, seed, task_id)


def episode_row(shared: TaskTrials, trial: MethodTrial, searched: Searched, spent: TaskTimings) -> EpisodeRow:
    """The row of a trial, with the outcome of the trajectory that it chose."""
    episodes, best = searched.episodes, searched.episodes[searched.chosen]
    values = searched.values or ((),) * len(episodes)
    choices = [choice for episode in episodes for choice in episode.choices]
    trajectories = [
        TrajectoryCost(
            reward=episode.reward,
            success=shared.succeeds(episode),
            steps=len(episode.steps),
            completion_tokens=episode.completion_tokens,
            values=valued,
        )
        for episode, valued in zip(episodes, values, strict=True)
    ]
    return EpisodeRow(
        method=trial.method,
        seed=trial.seed,
        task_id=shared.playable.task.id,
        kind=shared.playable.task.kind,
        reward=best.reward,
        success=shared.succeeds(best),
        terminated=best.terminated,
        too_long=best.too_long,
        steps=len(best.steps),
        decisions=len(choices),
        distinct_candidates=sum(choice.distinct_candidates for choice in choices),
        invalid_actions=sum(episode.invalid_actions for episode in episodes),
        completion_tokens=sum(choice.completion_tokens for choice in choices) + searched.reflection_tokens,
        scored_tokens=sum(choice.scored_tokens for choice in choices) + searched.scored_tokens,
        wall_time_s=spent.total_s,
        policy_time_s=spent.policy_s,
        scorer_time_s=spent.scorer_s,
        environment_time_s=spent.environment_s,
        actions=tuple(step.action for step in best.steps),
        trajectories=tuple(trajectories) if trial.method in MANY_TRAJECTORIES else (),
        reflections=searched.reflections,
        excess_tokens=searched.excess_tokens,
    )
