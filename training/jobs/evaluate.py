"""What guidance is worth: all methods on the same tasks, seeds and candidates.

    qguide evaluate --engine textworld --games DIR --candidates 5 --seeds 0,1,2 --output DIR

writes, into the output folder:

    episodes.jsonl            one row per episode, so that a killed run goes on where it was
    results.json              rows, summary, paired comparisons, configuration, versions
    success_vs_tokens.png     success against completion tokens
"""

import platform
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator
from rich.console import Console

from qnet.decision.selection import TieBreak
from qnet.errors import EnvironmentFailureError, QGuideError
from qnet.types import BatchPolicy, Sampling, Scorer
from training.data.runs import JsonlWriter, RunFolder, open_run, read_rows
from training.environment import Task
from training.environments.registry import AnyEnvironment, default_environment, find_environment
from training.environments.task_selection import SelectedSuite, build_selected_suite
from training.evaluation.methods import Play
from training.evaluation.records import (
    METHODS,
    EpisodeRow,
    Failure,
    MethodName,
    Results,
)
from training.evaluation.report import plot_success, print_results
from training.evaluation.results import (
    NOTES,
    Key,
    compare,
    kinds_of,
    latest,
    method_rows,
    summarise,
)
from training.evaluation.schedule import TaskTrials, Trial, plan_trials, play_trials
from training.rollouts.models import (
    EMBEDDED,
    Inference,
    build_policy,
    build_scorer,
    model_folder,
    weights_sha256,
)
from training.rollouts.progress import ProgressBar
from training.rollouts.rollout import RolloutTask, run_processes

EPISODES = "episodes.jsonl"
RESULTS = "results.json"
PLOT = "success_vs_tokens.png"
MAY_CHANGE = frozenset({"output", "parallel", "inference"})
PACKAGES = ("qguide", "torch", "transformers", "numpy")


class EvaluateConfig(BaseModel):
    """What `qguide evaluate` reads.

    Attributes:
        policy, qnet: "embedded" or a checkpoint's folder; qnet matters to q-guided alone.
        candidates: M.
        temperature: of every draw but greedy's.
        greedy_candidate: the first of the M candidates is the greedy one.
        tie_break: which of several replies of highest Q is taken.
        parallel: tasks that are played at the same time; no result depends on it.
        policy_sha256, qnet_sha256: of the weights; the job fills them in, so that a run is
            never resumed with other models.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    environment: AnyEnvironment = Field(default_factory=default_environment)
    policy: str = EMBEDDED
    qnet: str = EMBEDDED
    inference: Inference = Inference()
    methods: tuple[MethodName, ...] = Field(default=METHODS, min_length=1)
    candidates: int = Field(default=5, ge=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0, 1, 2), min_length=1)
    temperature: float = Field(default=0.7, gt=0)
    max_tokens: int = Field(default=128, ge=1)
    max_steps: int = Field(default=40, ge=1)
    greedy_candidate: bool = True
    tie_break: TieBreak = "first"
    parallel: int = Field(default=64, ge=1)
    policy_sha256: str = ""
    qnet_sha256: str = ""

    @field_validator("methods", "seeds")
    @classmethod
    def _once_each(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) != len(values):
            raise ValueError("names one value twice")
        return values

    @property
    def play(self) -> Play:
        """How episodes are played."""
        return Play(
            candidates=self.candidates,
            sampling=Sampling(temperature=self.temperature, max_tokens=self.max_tokens),
            greedy_candidate=self.greedy_candidate,
            tie_break=self.tie_break,
            max_steps=self.max_steps,
        )


def run_evaluate(
    config: EvaluateConfig,
    *,
    policy: BatchPolicy | None = None,
    scorer: Scorer | None = None,
    console: Console | None = None,
) -> Results:
    """Play what has not been played yet, then sum up.

    Args:
        config: what to play.
        policy: plays instead of the one that `config` names.
        scorer: scores instead of the Q model that `config` names.
        console: where tables are shown; None takes stdout.

    Raises:
        ConfigError: the output folder belongs to another configuration.
        EnvironmentFailureError: not a single episode could be played.
    """
    config = _with_hashes(config, policy is None, scorer is None)
    with open_run(config.output, config, may_change=MAY_CHANGE) as run:
        return _evaluate(config, run, policy, scorer, console)


def _evaluate(
    config: EvaluateConfig,
    run: RunFolder,
    policy: BatchPolicy | None,
    scorer: Scorer | None,
    console: Console | None,
) -> Results:
    if policy is None:
        policy = build_policy(config.policy, config.inference, config.environment)
    if scorer is None and "q-guided" in config.methods:
        scorer = build_scorer(config.qnet, config.inference)
    start = perf_counter()
    with closing(build_selected_suite(config.environment)) as suite:
        failures = _play_all(config, run, suite, policy, scorer)
        tasks = suite.tasks
    return _sum_up(
        config, run, tasks, failures, seconds=perf_counter() - start, console=console or Console()
    )


def _with_hashes(config: EvaluateConfig, own_policy: bool, own_qnet: bool) -> EvaluateConfig:
    hashes: dict[str, str] = {}
    if own_policy:
        hashes["policy_sha256"] = weights_sha256(model_folder(config.policy, "policy"))
    if own_qnet and "q-guided" in config.methods:
        hashes["qnet_sha256"] = weights_sha256(model_folder(config.qnet, "qnet"))
    return config.model_copy(update=hashes)


@dataclass(slots=True)
class _Board:
    """What the running tasks write to and read from."""

    writer: JsonlWriter
    bar: ProgressBar
    failures: list[Failure] = field(default_factory=list)
    won: int = 0
    played: int = 0

    def on_row(self, row: EpisodeRow) -> None:
        self.writer.write(row)
        self.won += row.success
        self.played += 1
        self.bar.advance(f"{self.won}/{self.played} won")

    def on_failure(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.bar.advance(f"{len(self.failures)} failed")


def _play_all(
    config: EvaluateConfig,
    run: RunFolder,
    suite: SelectedSuite,
    policy: BatchPolicy,
    scorer: Scorer | None,
) -> list[Failure]:
    """Every trial that has no row yet; returns those that could not be played."""
    with JsonlWriter(run.path / EPISODES) as writer:
        played = _read_episodes(run)
        trials = plan_trials(config.methods, config.seeds)
        total = len(trials) * len(suite.tasks)
        with ProgressBar("evaluate", total=total, done=len(played)) as bar:
            board = _Board(writer, bar)
            run_processes(
                _processes(config, suite, trials, played, board),
                policy=policy,
                scorer=scorer,
                parallel=config.parallel,
                environment_threads=config.environment.threads,
                on_done=lambda name, value, spent: None,
                on_failure=_raise,
            )
    return board.failures


def _processes(
    config: EvaluateConfig,
    suite: SelectedSuite,
    trials: Sequence[Trial],
    played: dict[Key, EpisodeRow],
    board: _Board,
) -> Iterator[tuple[str, RolloutTask[None]]]:
    for task in suite.tasks:
        waiting = [trial for trial in trials if (trial.method, trial.seed, task.id) not in played]
        guided = [played.get(("q-guided", seed, task.id)) for seed in config.seeds]
        shared = TaskTrials(
            task=task,
            make=partial(suite.make, task),
            environment=suite.environment,
            play=config.play,
            budgets={r.seed: r.completion_tokens for r in guided if r and r.seed is not None},
            matched="q-guided" in config.methods,
            on_row=board.on_row,
            on_failure=board.on_failure,
        )
        if waiting:
            yield task.id, play_trials(shared, waiting)


def _raise(name: str, error: QGuideError) -> None:
    """A trial's failure is caught at its table, so whatever comes here is not one."""
    raise error


def _read_episodes(run: RunFolder) -> dict[Key, EpisodeRow]:
    path = run.path / EPISODES
    return latest(read_rows(path, EpisodeRow)) if path.exists() else {}


def _sum_up(
    config: EvaluateConfig,
    run: RunFolder,
    tasks: Sequence[Task],
    failures: Sequence[Failure],
    *,
    seconds: float,
    console: Console,
) -> Results:
    """Write and show the results."""
    environment = find_environment(config.environment.name)
    episodes = _read_episodes(run)
    if not episodes and failures:
        raise EnvironmentFailureError(
            f"no episode could be played; the first failure: {failures[0].error}"
        )
    expected = len(plan_trials(config.methods, config.seeds)) * len(tasks)
    results = Results(
        complete=len(episodes) == expected,
        tasks=len(tasks),
        kinds=kinds_of(episodes),
        rows=tuple(method_rows(episodes, config.seeds)),
        summary=tuple(summarise(episodes, config.seeds)),
        comparisons=tuple(compare(episodes, config.seeds)),
        failures=tuple(failures),
        wall_clock_s=seconds,
        config=config.model_dump(mode="json"),
        versions=_versions((*PACKAGES, *environment.packages)),
        notes=NOTES,
    )
    unfinished = run.path / f"{RESULTS}.tmp"
    unfinished.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    unfinished.replace(run.path / RESULTS)
    plot_success(results, episodes, run.path / PLOT)
    print_results(results, console)
    return results


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Of what the figures depend on; a package that is not installed is left out."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
