"""Where guidance fails: every candidate of guided episodes, played to the end by one who knows.

    qguide judge --config training/configs/alfworld/judge.toml --set environment.games=DIR

reads a policy and a Q model; writes one row per episode, and what the decisions come to.
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
from training.environments.task_selection import (
    EnvironmentConfig,
    SelectedSuite,
    build_selected_suite,
)
from training.evaluation.choice_regret import JudgedRow, judged_episode, judgement
from training.evaluation.methods import Play
from training.rollouts.models import EMBEDDED, Inference, build_policy, build_scorer
from training.rollouts.policies import PolicyWithRollouts
from training.rollouts.progress import ProgressBar
from training.rollouts.rollout import RolloutTask, Timings, run_processes

MAY_CHANGE = frozenset({"output", "parallel", "inference"})


class JudgeConfig(BaseModel):
    """What `qguide judge` reads.

    Attributes:
        output: the run folder to write, or to resume.
        policy, qnet: "embedded" or a checkpoint's folder: the guided agent.
        judge: plays on after every candidate, at temperature 0; "expert" is ALFWorld's.
        candidates: M.
        temperature: of the draws; the first candidate is the greedy one where the next says so.
        max_steps: of the guided episode.
        horizon: of a judged one, the steps before its candidate included.
        parallel: episodes played at the same time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    environment: EnvironmentConfig = EnvironmentConfig()
    policy: str = EMBEDDED
    qnet: str = EMBEDDED
    judge: str = "expert"
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


def run_judge(
    config: JudgeConfig,
    *,
    policy: BatchPolicy | None = None,
    scorer: Scorer | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Judge the tasks that have not been judged yet; returns what all of them come to.

    Args:
        policy, scorer: play in place of those that `config` names; the policy judges, too.

    Raises:
        ConfigError: the run folder belongs to another configuration.
        EnvironmentFailureError: an episode failed; a run again goes on with the others.
    """
    with open_run(config.output, config, may_change=MAY_CHANGE) as run:
        return _judge(config, run, policy, scorer, console)


def _judge(
    config: JudgeConfig,
    run: RunFolder,
    policy: BatchPolicy | None,
    scorer: Scorer | None,
    console: Console | None,
) -> dict[str, float]:
    scorer = scorer or build_scorer(config.qnet, config.inference)
    policy = policy or PolicyWithRollouts(
        build_policy(config.policy, config.inference), build_policy(config.judge, config.inference)
    )
    failures: list[str] = []
    finished = finished_task_ids(run.rows)
    with (
        closing(build_selected_suite(config.environment)) as suite,
        JsonlWriter(run.rows) as rows,
        ProgressBar("judge", total=len(suite.tasks), done=len(finished), console=console) as bar,
    ):

        def on_done(task_id: str, row: JudgedRow, _: Timings) -> None:
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
    summary = judgement(list(read_rows(run.rows, JudgedRow)))
    with JsonlWriter(run.metrics) as metrics:
        metrics.write(summary)
    return summary


def _processes(
    config: JudgeConfig, suite: SelectedSuite, finished: set[str]
) -> Iterator[tuple[str, RolloutTask[JudgedRow]]]:
    for task in suite.tasks:
        if task.id not in finished:
            yield (
                task.id,
                judged_episode(
                    partial(suite.make, task),
                    config.play,
                    seed=config.seed,
                    task_id=task.id,
                    kind=task.kind,
                    horizon=config.horizon,
                ),
            )
