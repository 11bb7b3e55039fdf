"""Everything that is played on one task, one episode after the other, as one process.

All methods and seeds of a game are played close together, because the real engine takes
seconds to load a game and milliseconds to play a loaded one again.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from qnet.errors import EnvironmentFailureError, QGuideError
from training.environment import Environment, Task
from training.evaluation.methods import Play, greedy, q_guided, random_of_m, sample
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
    """One method's turn at a task; the seed of a deterministic method is None."""

    method: MethodName
    seed: int | None


def plan_turns(methods: Sequence[MethodName], seeds: Sequence[int]) -> list[Trial]:
    """Every turn at a task, q-guided before the best-of-n that gets its budget."""
    once = [Trial(m, None) for m in METHODS if m in methods and m in DETERMINISTIC]
    drawn = [m for m in METHODS if m in methods and m not in DETERMINISTIC]
    return once + [Trial(method, seed) for seed in seeds for method in drawn]


@dataclass(frozen=True, slots=True)
class Table:
    """What the turns at one task share.

    Attributes:
        make: a fresh environment.
        budgets: completion tokens of the guided episode of each seed, so far.
        matched: best-of-n draws while its tokens are below the guided episode's; otherwise it
            draws as many trajectories as the others draw candidates.
        on_row: gets each episode as soon as it is over.
        on_failure: gets each episode that could not be played.
    """

    task: Task
    make: Callable[[], Environment]
    play: Play
    budgets: dict[int, int]
    matched: bool
    on_row: Callable[[EpisodeRow], None]
    on_failure: Callable[[Failure], None]


def play_turns(table: Table, turns: Sequence[Trial]) -> RolloutTask[None]:
    """Take the turns in order; one that fails leaves the others alone."""
    yield EnvironmentCall(lambda: _load(table.make))
    for turn in turns:
        before: Timings = yield TimingsRequest()
        try:
            episodes = yield from _take(table, turn)
        except QGuideError as error:
            failure = Failure(
                method=turn.method, seed=turn.seed, task_id=table.task.id, error=str(error)
            )
            table.on_failure(failure)
            continue
        after: Timings = yield TimingsRequest()
        row = episode_row(table.task, turn, episodes, after.since(before))
        if turn.method == "q-guided" and turn.seed is not None:
            table.budgets[turn.seed] = row.completion_tokens
        table.on_row(row)


def _load(make: Callable[[], Environment]) -> None:
    """Let the engine load the game, so that no method's time pays for it.

    A game that cannot be loaded is each turn's failure, and reported there.
    """
    with suppress(EnvironmentFailureError), closing(make()) as environment:
        environment.reset()


def _take(table: Table, turn: Trial) -> RolloutTask[list[Episode]]:
    if turn.method == "best-of-n":
        return (yield from _best_of_n(table, turn.seed or 0))
    episode = yield from _play(table, _chooser(table, turn))
    return [episode]


def _play(table: Table, chooser: Agent) -> RolloutTask[Episode]:
    return play_episode(table.make, chooser, max_steps=table.play.max_steps)


def _chooser(table: Table, turn: Trial) -> Agent:
    play, task_id, seed = table.play, table.task.id, turn.seed or 0
    match turn.method:
        case "greedy":
            return greedy(play)
        case "sample":
            return sample(play, seed, task_id)
        case "random-of-m":
            return random_of_m(play, seed, task_id)
        case "q-guided":
            return q_guided(play, seed, task_id)
        case "best-of-n":
            raise AssertionError("best-of-n plays many episodes")


def _best_of_n(table: Table, seed: int) -> RolloutTask[list[Episode]]:
    """Whole trajectories until the budget is spent; the last one may overspend it."""
    if table.matched and seed not in table.budgets:
        raise EnvironmentFailureError(
            f"best-of-n has no budget: the guided episode of seed {seed} failed; resume the run"
        )
    episodes: list[Episode] = []
    while _goes_on(table, seed, episodes):
        parts = (seed, table.task.id, "best-of-n", len(episodes))
        chooser = first_reply(seeded(table.play.sampling, *parts))
        episodes.append((yield from _play(table, chooser)))
    return episodes


def _goes_on(table: Table, seed: int, episodes: Sequence[Episode]) -> bool:
    if not episodes:
        return True
    if not table.matched:
        return len(episodes) < table.play.candidates
    spent = sum(episode.completion_tokens for episode in episodes)
    # An episode that costs nothing (its history was too long at once) would never end this.
    return episodes[-1].completion_tokens > 0 and spent < table.budgets[seed]


def episode_row(task: Task, turn: Trial, episodes: Sequence[Episode], spent: Timings) -> EpisodeRow:
    """The row of a turn; the reward is that of the best trajectory."""
    best = max(episodes, key=lambda episode: episode.reward)
    choices = [choice for episode in episodes for choice in episode.choices]
    trajectories = [
        TrajectoryCost(reward=e.reward, steps=len(e.steps), completion_tokens=e.completion_tokens)
        for e in episodes
    ]
    return EpisodeRow(
        method=turn.method,
        seed=turn.seed,
        task_id=task.id,
        kind=task.kind,
        reward=best.reward,
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
        trajectories=tuple(trajectories) if turn.method == "best-of-n" else (),
    )
