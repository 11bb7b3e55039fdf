"""All trials of one task, played one after the other as one rollout task.

They run in sequence because the real engine takes seconds to load a game and milliseconds to play a
loaded game again.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from qguide.qnet.errors import EnvironmentFailureError, QGuideError
from qguide.training.environment import Environment
from qguide.training.evaluation.beam_search import BeamSearch
from qguide.training.evaluation.lats import TreeSearch
from qguide.training.evaluation.methods import Play, method_of, no_repeat, q_guided
from qguide.training.evaluation.paraphrased import under_paraphrase, with_paraphrases
from qguide.training.evaluation.records import (
    DETERMINISTIC,
    MANY_TRAJECTORIES,
    PARAPHRASED,
    EpisodeFailure,
    EpisodeRow,
    MethodName,
    TrajectoryCost,
    in_order,
)
from qguide.training.evaluation.reflexion import Reflecting, Reflexion
from qguide.training.evaluation.search import (
    Searched,
    TrajectoryBudget,
    Verification,
    trajectory_seed,
    verifier_best_of_n,
)
from qguide.training.rollouts.episode import Agent, Episode, first_reply, seeded
from qguide.training.rollouts.harness import PlayableTask
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


@dataclass(frozen=True, slots=True)
class TaskTrials:
    """One task and everything that its trials share.

    Attributes:
        budgets: for each seed, the completion tokens of `budget_of` once it is played.
        budget_of: the guided method whose tokens either best-of-n gets; None if none is played,
            and it draws `trajectories`.
        trajectories: maximum number of trajectories of either best-of-n, beside that budget.
        paraphrases: of the task; some if a method draws under them.
    """

    playable: PlayableTask
    play: Play
    budgets: dict[int, int]
    budget_of: MethodName | None
    trajectories: int
    guided_trajectories: int
    verification: Verification
    reflexion: Reflexion
    paraphrases: Sequence[str]
    on_row: Callable[[EpisodeRow], None]
    on_failure: Callable[[EpisodeFailure], None]


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


def _play_trial(shared: TaskTrials, trial: MethodTrial) -> RolloutTask[Searched]:
    seed, task_id = trial.seed or 0, shared.playable.task.id
    match trial.method:
        case "q-guided-n":
            return (yield from _q_guided_n(shared, seed))
        case "best-of-n" | "best-of-n-aug":
            return (yield from _best_of_n(shared, seed, trial.method))
        case "verifier-best-of-n":
            return (
                yield from verifier_best_of_n(
                    lambda agent: _play(shared, agent),
                    shared.play,
                    shared.verification,
                    seed=seed,
                    task_id=task_id,
                    budget=_budget(shared, seed),
                )
            )
        case "q-beam":
            beams = BeamSearch(shared.playable.game(seed), shared.play, shared.verification)
            return (yield from beams.search())
        case "lats":
            tree = TreeSearch(
                shared.playable.game(seed),
                shared.play,
                observes=shared.verification.observes,
                is_success=shared.playable.environment.is_success,
            )
            return (yield from tree.search(iterations=shared.verification.iterations))
        case "reflexion":
            reflecting = Reflecting(
                lambda agent: _play(shared, agent),
                shared.play,
                shared.reflexion,
                is_success=shared.playable.environment.is_success,
            )
            return (yield from reflecting.search(seed=seed, task_id=task_id))
    episode = yield from _play(shared, _agent(shared, trial))
    return Searched([episode], chosen=0)


def _play(shared: TaskTrials, agent: Agent) -> RolloutTask[Episode]:
    return shared.playable.game(0).play(agent, max_steps=shared.play.max_steps)


def _agent(shared: TaskTrials, trial: MethodTrial) -> Agent:
    play, task_id, seed = shared.play, shared.playable.task.id, trial.seed or 0
    match trial.method:
        case "no-repeat":
            return no_repeat(play, seed, task_id, void_observation=shared.playable.environment.void_observation)
        case "q-guided-aug":
            markers = shared.playable.environment.task_markers
            return with_paraphrases(q_guided(play, seed, task_id), shared.paraphrases, markers)
    return method_of(trial.method)(play, seed, task_id)


def _q_guided_n(shared: TaskTrials, seed: int) -> RolloutTask[Searched]:
    """Play N guided trajectories, the first of which is q-guided's (QLASS, algorithm 4)."""
    episodes: list[Episode] = []
    for number in range(shared.guided_trajectories):
        agent = q_guided(shared.play, seed, shared.playable.task.id, trajectory=number)
        episodes.append((yield from _play(shared, agent)))
    return Searched(episodes, _best_by_reward(episodes))


def _best_of_n(shared: TaskTrials, seed: int, method: MethodName) -> RolloutTask[Searched]:
    """Play whole trajectories until the budget is spent; the one that would exceed it is left out.

    Trajectory k > 0 of best-of-n-aug is drawn under paraphrase k - 1, round and round.
    """
    budget = _budget(shared, seed)
    episodes: list[Episode] = []
    while budget.goes_on(episodes):
        parts = trajectory_seed(seed, shared.playable.task.id, episodes)
        agent = first_reply(seeded(shared.play.sampling, *parts))
        if method in PARAPHRASED and episodes:
            text = shared.paraphrases[(len(episodes) - 1) % len(shared.paraphrases)]
            agent = under_paraphrase(agent, text, shared.playable.environment.task_markers)
        episode = yield from _play(shared, agent)
        if not budget.affords(episodes, episode):
            break
        episodes.append(episode)
    best = _best_by_reward(episodes)
    return Searched(episodes, best, excess_tokens=budget.excess(episodes))


def _best_by_reward(episodes: Sequence[Episode]) -> int:
    """Index of the episode of highest true reward, the first of equal ones."""
    return max(range(len(episodes)), key=lambda number: episodes[number].reward)


def _budget(shared: TaskTrials, seed: int) -> TrajectoryBudget:
    if shared.budget_of is None:
        return TrajectoryBudget(shared.trajectories)
    if seed not in shared.budgets:
        raise EnvironmentFailureError(
            f"best-of-n has no budget: the {shared.budget_of} episode of seed {seed} failed; resume the run"
        )
    return TrajectoryBudget(shared.trajectories, shared.budgets[seed])


def episode_row(shared: TaskTrials, trial: MethodTrial, searched: Searched, spent: TaskTimings) -> EpisodeRow:
    """The row of a trial, with the outcome of the trajectory that it chose."""
    episodes, best = searched.episodes, searched.episodes[searched.chosen]
    values = searched.values or ((),) * len(episodes)
    choices = [choice for episode in episodes for choice in episode.choices]
    trajectories = [
        TrajectoryCost(
            reward=episode.reward,
            success=shared.playable.environment.is_success(episode.reward, episode.terminated),
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
        success=shared.playable.environment.is_success(best.reward, best.terminated),
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
