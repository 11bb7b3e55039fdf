"""Expert trajectories: what behaviour cloning learns from.

    qguide collect --config training/configs/alfworld/collect.toml

plays the observation-only expert over a suite of games and writes trajectory rows. Tasks
that brought none are named in `skipped.jsonl`, so that a resumed run does not play them again.

With a `policy` it collects as DAgger does (Ross et al., 2011): the policy plays some of the steps,
so that the expert is heard in the states that the policy gets itself into.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console

from qnet.errors import QGuideError
from qnet.types import Candidate, History, SampleRequest, Sampling
from training.data.records import EXPERT, TrajectoryRow, rows_of
from training.data.runs import JsonlWriter, RunFolder, finished_task_ids, open_run
from training.environment import Expert, ExpertBuilder, Task
from training.environments.registry import AnyEnvironment, default_environment, find_environment
from training.environments.task_selection import SelectedSuite, build_selected_suite
from training.rollouts.episode import Agent, AgentStep, Episode, derived_seed, play_episode
from training.rollouts.models import (
    Inference,
    build_policy,
    expert_builder,
    sha256_of_policy,
)
from training.rollouts.progress import ProgressBar
from training.rollouts.rollout import ModelRequest, RolloutTask, Timings, run_processes

MAY_CHANGE = frozenset({"output", "parallel", "inference"})


class CollectConfig(BaseModel):
    """What `qguide collect` reads.

    Attributes:
        max_steps: actions after which an episode is cut off.
        only_won: keep successful trajectories alone; what success is, the environment says.
        mistakes: probability that a step is a plausible mistake of the expert's, which SFT does
            not imitate: what it learns is the way back.
        policy: "embedded" or a policy's folder, which plays some of the steps; "" for none. SFT
            imitates of them only what the expert would have said itself.
        policy_share: probability that a step is the policy's.
        temperature: at which the policy draws.
        max_tokens: most completion tokens of one of the policy's actions.
        inference: how the policy runs.
        seed: of the mistakes, and of what the policy draws.
        parallel: episodes at the same time; the rows do not depend on it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: AnyEnvironment = Field(default_factory=default_environment)
    output: Path
    max_steps: int = Field(default=40, ge=1)
    only_won: bool = True
    mistakes: float = Field(default=0.0, ge=0, lt=1)
    policy: str = ""
    policy_share: float = Field(default=0.5, gt=0, le=1)
    temperature: float = Field(default=0.7, ge=0)
    max_tokens: int = Field(default=128, ge=1)
    inference: Inference = Inference()
    seed: int = 0
    parallel: int = Field(default=4, ge=1)

    @model_validator(mode="after")
    def _policy_is_a_model(self) -> Self:
        if self.policy == EXPERT:
            raise ValueError(
                "policy is 'expert', whose mistakes `mistakes` asks for; name a model's folder"
            )
        if self.policy and self.mistakes:
            raise ValueError(
                f"policy is {self.policy!r} and mistakes {self.mistakes}; a policy makes its own, "
                "so set mistakes to 0"
            )
        return self


class _ResolvedConfig(CollectConfig):
    """What `config.json` holds: a policy trained again under the same name is another one."""

    policy_sha256: str


FIGURES = ("episodes", "won", "kept", "steps")


@dataclass(slots=True)
class Collected:
    """What a run of `collect` did; a resumed run counts its own episodes alone.

    Attributes:
        failed: task id and error of each task whose environment failed.
    """

    episodes: int = 0
    won: int = 0
    kept: int = 0
    steps: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


def run_collect(config: CollectConfig, *, console: Console | None = None) -> Collected:
    """Play every task that has not been played yet."""
    resolved = _ResolvedConfig(
        **dict(config), policy_sha256=sha256_of_policy(config.policy) if config.policy else ""
    )
    with open_run(config.output, resolved, may_change=MAY_CHANGE) as run:
        return _collect(config, run, console)


def _collect(config: CollectConfig, run: RunFolder, console: Console | None) -> Collected:
    policy = (
        build_policy(config.policy, config.inference, config.environment) if config.policy else None
    )
    suite = build_selected_suite(config.environment)
    build_expert = expert_builder(config.environment)
    skipped_path = run.path / "skipped.jsonl"
    finished = finished_task_ids(run.rows) | finished_task_ids(skipped_path)
    waiting = [task for task in suite.tasks if task.id not in finished]
    collected = Collected()
    try:
        with (
            JsonlWriter(run.rows) as rows,
            JsonlWriter(skipped_path) as skipped,
            ProgressBar(
                "collect",
                total=len(suite.tasks),
                done=len(suite.tasks) - len(waiting),
                console=console,
            ) as bar,
        ):
            run_processes(
                _episodes(config, suite, waiting, build_expert),
                policy=policy,
                parallel=config.parallel,
                environment_threads=config.environment.threads,
                on_done=_keeper(config, {t.id: t for t in waiting}, rows, skipped, collected, bar),
                on_failure=lambda task_id, error: _note(collected, task_id, error, bar),
            )
    finally:
        suite.close()
    with JsonlWriter(run.metrics) as metrics:
        metrics.write({name: getattr(collected, name) for name in FIGURES})
    return collected


def expert_chooser(expert: Expert, *, mistakes: float = 0.0, seed: int = 0) -> Agent:
    """The expert as an agent that asks no model."""
    rng = Random(seed)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        yield from ()
        reply = expert.reply(history[-1].content)
        if rng.random() < mistakes:
            return AgentStep(expert.deviate(rng), completion_tokens=0, mistaken=True)
        return AgentStep(reply, completion_tokens=0)

    return choose


def corrected_chooser(
    expert: Expert, *, policy_share: float, sampling: Sampling, seed: int
) -> Agent:
    """The expert, in a game that a policy plays too.

    Args:
        expert: a fresh one.
        policy_share: probability that a step is the policy's; it is mistaken wherever its reply
            is not the expert's word by word.
        sampling: how the policy draws; its seed is replaced at every step.
        seed: of whose step it is, and of the draws.
    """
    rng = Random(seed)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        wanted = expert.reply(history[-1].content)
        if rng.random() >= policy_share:
            return AgentStep(wanted, completion_tokens=0)
        drawn = replace(sampling, seed=derived_seed(seed, step))
        candidates: list[Candidate] = yield SampleRequest(history, 1, drawn)
        reply = candidates[0].message.content
        expert.follow(reply)
        return AgentStep(reply, candidates[0].completion_tokens, mistaken=reply != wanted)

    return choose


def _episodes(
    config: CollectConfig,
    suite: SelectedSuite,
    tasks: list[Task],
    build_expert: ExpertBuilder,
) -> Iterator[tuple[str, RolloutTask[Episode]]]:
    for task in tasks:
        chooser = _chooser(config, build_expert(), seed=derived_seed(config.seed, task.id))
        episode = play_episode(
            partial(suite.make, task),
            chooser,
            max_steps=config.max_steps,
            chat=suite.environment.chat,
        )
        yield task.id, episode


def _chooser(config: CollectConfig, expert: Expert, *, seed: int) -> Agent:
    if not config.policy:
        return expert_chooser(expert, mistakes=config.mistakes, seed=seed)
    sampling = Sampling(config.temperature, config.max_tokens)
    return corrected_chooser(expert, policy_share=config.policy_share, sampling=sampling, seed=seed)


def _keeper(
    config: CollectConfig,
    tasks: dict[str, Task],
    rows: JsonlWriter,
    skipped: JsonlWriter,
    collected: Collected,
    bar: ProgressBar,
) -> Callable[[str, Episode, Timings], None]:
    """Writes a finished episode where it belongs and counts it."""
    environment = find_environment(config.environment.name)

    def keep(task_id: str, episode: Episode, spent: Timings) -> None:
        won = environment.is_success(episode.reward, episode.terminated)
        collected.episodes += 1
        collected.won += won
        collected.steps += len(episode.steps)
        if won or not config.only_won:
            rows.write(trajectory_row(tasks[task_id], config.environment.name, episode))
            collected.kept += 1
        else:
            skipped.write({"task_id": task_id, "reward": episode.reward})
        bar.advance(f"{collected.won}/{collected.episodes} won")

    return keep


def trajectory_row(
    task: Task, environment: str, episode: Episode, *, source: str = EXPERT, seed: int | None = None
) -> TrajectoryRow:
    """The row of a played episode."""
    return TrajectoryRow(
        task_id=task.id,
        kind=task.kind,
        environment=environment,
        messages=rows_of(episode.messages),
        outcome_reward=episode.reward,
        terminated=episode.terminated,
        steps=len(episode.steps),
        completion_tokens=episode.completion_tokens,
        source=source,
        seed=seed,
        mistakes=tuple(i for i, choice in enumerate(episode.choices) if choice.mistaken),
    )


def _note(collected: Collected, task_id: str, error: QGuideError, bar: ProgressBar) -> None:
    collected.failed.append((task_id, str(error)))
    bar.advance(f"{len(collected.failed)} failed")
