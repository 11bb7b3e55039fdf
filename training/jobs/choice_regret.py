r"""Regret of guided choices: every candidate of guided episodes, played to the end by an expert.

    qguide choice-regret --config training/configs/alfworld/choice_regret.toml \
        --set environment.games=DIR

reads a policy and a Q model; writes one row per episode, and figures over all decisions.
"""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from qnet.errors import EnvironmentFailureError, QGuideError
from qnet.types import BatchPolicy, Sampling, Scorer
from training.data.runs import JsonlWriter, RunFolder, finished_task_ids, open_run, read_rows
from training.environments.registry import AnyEnvironment, default_environment
from training.environments.task_selection import SelectedSuite, build_selected_suite
from training.evaluation.choice_regret import (
    ChoiceRegretRow,
    play_choices,
    summarise_choices,
)
from training.evaluation.methods import Play
from training.rollouts.models import EMBEDDED, EXPERT, Inference, build_policy, build_scorer
from training.rollouts.policies import PolicyWithRollouts
from training.rollouts.progress import ProgressBar
from training.rollouts.rollout import RolloutTask, Timings, run_processes

MAY_CHANGE = frozenset({"output", "parallel", "inference"})


class ChoiceRegretConfig(BaseModel):
    """Configuration of `qguide choice-regret`.

    Attributes:
        output: the run folder to write, or to resume.
        policy, qnet: "embedded" or a checkpoint's folder: the guided agent.
        rollouts: plays on after every candidate, at temperature 0: "expert" for the
            environment's, or a policy as above.
        candidates: M.
        temperature: of the draws; the first candidate is the greedy one where the next says so.
        max_steps: of the guided episode.
        horizon: most actions of a rollout, those before its candidate included.
        parallel: episodes played at the same time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    environment: AnyEnvironment = Field(default_factory=default_environment)
    policy: str = EMBEDDED
    qnet: str = EMBEDDED
    rollouts: str = EXPERT
    inference: Inference = Inference()
    candidates: int = Field(default=5, ge=2)
    temperature: float = Field(default=0.7, gt=0)
    max_tokens: int = Field(default=128, ge=1)
    greedy_candidate: bool = True
    seed: int = 0
    max_steps: int = Field(default=40, ge=1)
    horizon: int = Field(default=60, ge=1)
    parallel: int = Field(default=64, ge=1)

    @property
    def play(self) -> Play:
        """How the guided agent plays."""
        return Play(
            candidates=self.candidates,
            sampling=Sampling(self.temperature, self.max_tokens),
            greedy_candidate=self.greedy_candidate,
            max_steps=self.max_steps,
        )


def run_choice_regret(
    config: ChoiceRegretConfig,
    *,
    policy: BatchPolicy | None = None,
    scorer: Scorer | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Play the tasks that have no row yet; returns figures over all of them.

    Args:
        config: what to play.
        policy, scorer: play in place of those that `config` names; the policy plays on, too.
        console: where progress is shown; None takes stderr.

    Raises:
        ConfigError: the run folder belongs to another configuration.
        EnvironmentFailureError: an episode failed; a run again goes on with the others.
    """
    with open_run(config.output, config, may_change=MAY_CHANGE) as run:
        return _play(config, run, policy, scorer, console)


def _play(
    config: ChoiceRegretConfig,
    run: RunFolder,
    policy: BatchPolicy | None,
    scorer: Scorer | None,
    console: Console | None,
) -> dict[str, float]:
    scorer = scorer or build_scorer(config.qnet, config.inference)
    policy = policy or PolicyWithRollouts(
        build_policy(config.policy, config.inference, config.environment),
        build_policy(config.rollouts, config.inference, config.environment),
    )
    failures: list[str] = []
    finished = finished_task_ids(run.rows)
    with (
        closing(build_selected_suite(config.environment)) as suite,
        JsonlWriter(run.rows) as rows,
        ProgressBar(
            "choice-regret", total=len(suite.tasks), done=len(finished), console=console
        ) as bar,
    ):

        def on_done(task_id: str, row: ChoiceRegretRow, _: Timings) -> None:
            rows.write(row)
            bar.advance()

        def on_failure(task_id: str, error: QGuideError) -> None:
            failures.append(f"{task_id}: {error}")
            bar.advance(f"{len(failures)} failed")

        run_processes(
            _processes(config, suite, finished),
            policy=policy,
            scorer=scorer,
            parallel=config.parallel,
            environment_threads=config.environment.threads,
            on_done=on_done,
            on_failure=on_failure,
        )
    if failures:
        raise EnvironmentFailureError(f"{len(failures)} tasks failed; the first: {failures[0]}")
    summary = summarise_choices(list(read_rows(run.rows, ChoiceRegretRow)))
    with JsonlWriter(run.metrics) as metrics:
        metrics.write(summary)
    return summary


def _processes(
    config: ChoiceRegretConfig, suite: SelectedSuite, finished: set[str]
) -> Iterator[tuple[str, RolloutTask[ChoiceRegretRow]]]:
    for task in suite.tasks:
        if task.id not in finished:
            yield (
                task.id,
                play_choices(
                    partial(suite.make, task),
                    config.play,
                    seed=config.seed,
                    task=task,
                    environment=suite.environment,
                    horizon=config.horizon,
                ),
            )
