"""All trials of one task, one episode after the other, as one rollout task.

All trials of a game follow each other, because the real engine takes seconds to load a game and
milliseconds to play a loaded one again.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from qnet.errors import EnvironmentFailureError, QGuideError
from training.environment import Environment, EnvironmentBundle, Task
from training.evaluation.methods import (
    Play,
    greedy,
    likeliest,
    no_repeat,
    q_guided,
    random_distinct,
    random_of_m,
    sample,
    self_consistency,
)
from training.evaluation.records import (
    DETERMINISTIC,
    METHODS,
    EpisodeRow,
    Failure,
    MethodName,
    TrajectoryCost,
)
from training.rollouts.episode import Agent, Episode, first_reply, play_episode, seeded
from training.rollouts.rollout import EnvironmentCall, RolloutTask, Timings, TimingsRequest


@dataclass(frozen=True, slots=True)
class Trial:
    """One method under one seed; None is the seed of a deterministic method."""

    method: MethodName
    seed: int | None


def plan_trials(methods: Sequence[MethodName], seeds: Sequence[int]) -> list[Trial]:
    """Every trial of a task; q-guided comes before best-of-n, which gets its budget."""
    once = [Trial(m, None) for m in METHODS if m in methods and m in DETERMINISTIC]
    drawn = [m for m in METHODS if m in methods and m not in DETERMINISTIC]
    return once + [Trial(method, seed) for seed in seeds for method in drawn]


@dataclass(frozen=True, slots=True)
class TaskTrials:
    """One task with all that its trials share.

    Attributes:
        make: a fresh, single-use episode.
        environment: that of the task.
        budgets: completion tokens of each seed's guided episode, so far.
        matched: best-of-n draws trajectories while its tokens are below the guided episode's;
            otherwise it draws as many trajectories as the others draw candidates.
        on_row: gets each episode as soon as it is over.
        on_failure: gets each episode that could not be played.
    """

    task: Task
    make: Callable[[], Environment]
    environment: EnvironmentBundle[Any]
    play: Play
    budgets: dict[int, int]
    matched: bool
    on_row: Callable[[EpisodeRow], None]
    on_failure: Callable[[Failure], None]


def play_trials(shared: TaskTrials, trials: Sequence[Trial]) -> RolloutTask[None]:
    """Play the trials in order; the failure of one does not end the others."""
    yield EnvironmentCall(lambda: _load(shared.make))
    for trial in trials:
        before: Timings = yield TimingsRequest()
        try:
            episodes = yield from _play_trial(shared, trial)
        except QGuideError as error:
            failure = Failure(
                method=trial.method, seed=trial.seed, task_id=shared.task.id, error=str(error)
            )
            shared.on_failure(failure)
            continue
        after: Timings = yield TimingsRequest()
        row = episode_row(shared, trial, episodes, after.since(before))
        if trial.method == "q-guided" and trial.seed is not None:
            shared.budgets[trial.seed] = row.completion_tokens
        shared.on_row(row)


def _load(make: Callable[[], Environment]) -> None:
    """Let the engine load the game before the clock of the first trial starts.

    If the game cannot be loaded, every trial fails and reports it.
    """
    with suppress(EnvironmentFailureError), closing(make()) as environment:
        environment.reset()


def _play_trial(shared: TaskTrials, trial: Trial) -> RolloutTask[list[Episode]]:
    if trial.method == "best-of-n":
        return (yield from _best_of_n(shared, trial.seed or 0))
    episode = yield from _play(shared, _agent(shared, trial))
    return [episode]


def _play(shared: TaskTrials, agent: Agent) -> RolloutTask[Episode]:
    return play_episode(
        shared.make, agent, max_steps=shared.play.max_steps, chat=shared.environment.chat
    )


def _agent(shared: TaskTrials, trial: Trial) -> Agent:
    play, task_id, seed = shared.play, shared.task.id, trial.seed or 0
    match trial.method:
        case "greedy":
            return greedy(play)
        case "sample":
            return sample(play, seed, task_id)
        case "random-of-m":
            return random_of_m(play, seed, task_id)
        case "random-distinct":
            return random_distinct(play, seed, task_id)
        case "no-repeat":
            void = shared.environment.void_observation
            return no_repeat(play, seed, task_id, void_observation=void)
        case "self-consistency":
            return self_consistency(play, seed, task_id)
        case "likeliest":
            return likeliest(play, seed, task_id)
        case "q-guided":
            return q_guided(play, seed, task_id)
        case "best-of-n":
            raise AssertionError("best-of-n plays many episodes")


def _best_of_n(shared: TaskTrials, seed: int) -> RolloutTask[list[Episode]]:
    """Play whole trajectories until the budget is spent; the last one may exceed it."""
    if shared.matched and seed not in shared.budgets:
        raise EnvironmentFailureError(
            f"best-of-n has no budget: the guided episode of seed {seed} failed; resume the run"
        )
    episodes: list[Episode] = []
    while _goes_on(shared, seed, episodes):
        parts = (seed, shared.task.id, "best-of-n", len(episodes))
        agent = first_reply(seeded(shared.play.sampling, *parts))
        episodes.append((yield from _play(shared, agent)))
    return episodes


def _goes_on(shared: TaskTrials, seed: int, episodes: Sequence[Episode]) -> bool:
    if not episodes:
        return True
    if not shared.matched:
        return len(episodes) < shared.play.candidates
    spent = sum(episode.completion_tokens for episode in episodes)
    # An episode without tokens (its first history was too long) would repeat for ever.
    return episodes[-1].completion_tokens > 0 and spent < shared.budgets[seed]


def episode_row(
    shared: TaskTrials, trial: Trial, episodes: Sequence[Episode], spent: Timings
) -> EpisodeRow:
    """The row of a trial, with the outcome of its best trajectory."""

    def succeeded(episode: Episode) -> bool:
        return shared.environment.is_success(episode.reward, episode.terminated)

    best = max(episodes, key=lambda episode: episode.reward)
    choices = [choice for episode in episodes for choice in episode.choices]
    trajectories = [
        TrajectoryCost(
            reward=episode.reward,
            success=succeeded(episode),
            steps=len(episode.steps),
            completion_tokens=episode.completion_tokens,
        )
        for episode in episodes
    ]
    return EpisodeRow(
        method=trial.method,
        seed=trial.seed,
        task_id=shared.task.id,
        kind=shared.task.kind,
        reward=best.reward,
        success=succeeded(best),
        terminated=best.terminated,
        too_long=best.too_long,
        steps=len(best.steps),
        decisions=len(choices),
        distinct_candidates=sum(choice.distinct_candidates for choice in choices),
        invalid_actions=sum(episode.invalid_actions for episode in episodes),
        completion_tokens=sum(choice.completion_tokens for choice in choices),
        scored_tokens=sum(choice.scored_tokens for choice in choices),
        wall_time_s=spent.total_s,
        policy_time_s=spent.policy_s,
        scorer_time_s=spent.scorer_s,
        environment_time_s=spent.environment_s,
        actions=tuple(step.action for step in best.steps),
        trajectories=tuple(trajectories) if trial.method == "best-of-n" else (),
    )
