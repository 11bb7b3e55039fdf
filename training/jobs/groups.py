"""Decision groups: every distinct candidate of played episodes, each valued by playing on.

    qguide groups --config training/configs/alfworld/embedded/groups.toml

reads a policy and, to guide it, a Q model; writes one row per episode. Values come from the
environment's expert, from roll-outs of the policy (as the papers do), or from those of the guided
policy. Many episodes are played at once, so that the policy samples in batches. Each draw's seed
comes from (seed, task, step): neither `parallel` nor a resume changes a row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console

from qnet.errors import EnvironmentFailureError, QGuideError
from qnet.types import BatchPolicy, Sampling, Scorer
from training.data.decision_groups import ContinuationBy, DecisionGroupsRow
from training.data.runs import JsonlWriter, RunFolder, finished_task_ids, open_run
from training.environment import Expert, Task
from training.environments.registry import AnyEnvironment, default_environment, find_environment
from training.environments.task_selection import SelectedSuite, build_selected_suite
from training.evaluation.methods import Play, q_guided
from training.exploration.decision_groups import (
    Continuing,
    Decisions,
    PlayedDecisions,
    expert_continuing,
    play_decisions,
)
from training.rollouts.episode import Agent, derived_seed, first_reply, seeded
from training.rollouts.models import (
    EMBEDDED,
    Inference,
    build_policy,
    build_scorer,
    expert_builder,
    model_folder,
    sha256_of_policy,
    weights_sha256,
)
from training.rollouts.progress import ProgressBar
from training.rollouts.rollout import RolloutTask, Timings, run_processes

MAY_CHANGE = frozenset({"output", "parallel", "inference"})


class Continuation(BaseModel):
    """How a candidate is valued.

    Attributes:
        by: the environment's "expert", the "policy", or the policy "guided" by `qnet`.
        repetitions: roll-outs of each candidate; an expert's are all alike, so it plays one.
        temperature: of a roll-out's draws; 0 is greedy, which plays one too.
        candidates: M of the guided policy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: ContinuationBy = "expert"
    repetitions: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.7, ge=0)
    candidates: int = Field(default=5, ge=2)

    @model_validator(mode="after")
    def _repetitions_differ(self) -> Self:
        alike = self.by == "expert" or (self.by == "policy" and self.temperature == 0)
        if alike and self.repetitions > 1:
            raise ValueError(
                f"repetitions is {self.repetitions}, but all would be alike; set 1, or a "
                "temperature above 0 with the policy"
            )
        return self


class GroupsConfig(BaseModel):
    """What `qguide groups` reads.

    Attributes:
        output: the run folder to write, or to resume.
        environment: the tasks to play.
        policy: "embedded" or a policy's folder: it draws the candidates.
        qnet: "embedded" or a Q model's folder, for `decisions.go_on` or `continuation.by` being
            "guided"; "" for none.
        inference: how the models run.
        decisions: how an episode is played and its candidates are drawn.
        continuation: how each candidate is valued.
        parallel: episodes played at the same time; a batch of the policy is as large.
        seed: of every draw.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    environment: AnyEnvironment = Field(default_factory=default_environment)
    policy: str = EMBEDDED
    qnet: str = ""
    inference: Inference = Inference()
    decisions: Decisions = Decisions()
    continuation: Continuation = Continuation()
    parallel: int = Field(default=64, ge=1)
    seed: int = 0

    @property
    def is_guided(self) -> bool:
        """A Q model is asked."""
        return "guided" in (self.decisions.go_on, self.continuation.by)

    @model_validator(mode="after")
    def _guided_by_a_qnet(self) -> Self:
        if self.is_guided != bool(self.qnet):
            raise ValueError(
                f"qnet is {self.qnet!r}, decisions.go_on {self.decisions.go_on!r} and "
                f"continuation.by {self.continuation.by!r}; name a qnet if, and only if, one of "
                'them is "guided"'
            )
        return self


class _ResolvedConfig(GroupsConfig):
    """What `config.json` holds: a model trained again under the same name is another one."""

    policy_sha256: str
    qnet_sha256: str


def run_groups(
    config: GroupsConfig,
    *,
    policy: BatchPolicy | None = None,
    scorer: Scorer | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Play the tasks that have no row yet.

    Args:
        config: what to play.
        policy, scorer: play instead of those that `config` names.
        console: where progress is shown; None takes stderr.

    Returns:
        What this run measured; a resumed one leaves out what came before it.

    Raises:
        ConfigError: the run folder belongs to another configuration, or the environment has no
            expert.
        EnvironmentFailureError: no task could be played.
    """
    resolved = _ResolvedConfig(
        **dict(config),
        policy_sha256="" if policy else sha256_of_policy(config.policy),
        qnet_sha256=weights_sha256(model_folder(config.qnet, "qnet")) if config.qnet else "",
    )
    with open_run(config.output, resolved, may_change=MAY_CHANGE) as run:
        return _play(config, run, policy, scorer, console)


def _play(
    config: GroupsConfig,
    run: RunFolder,
    policy: BatchPolicy | None,
    scorer: Scorer | None,
    console: Console | None,
) -> dict[str, float]:
    policy = policy or build_policy(config.policy, config.inference, config.environment)
    if config.is_guided and scorer is None:
        scorer = build_scorer(config.qnet, config.inference)
    build_expert: Callable[[], Expert] | None = None
    if config.continuation.by == "expert":
        build_expert = partial(expert_builder(config.environment), forgetful=True)
    with (
        closing(build_selected_suite(config.environment)) as suite,
        JsonlWriter(run.rows) as rows,
        JsonlWriter(run.metrics) as metrics,
    ):
        finished = finished_task_ids(run.rows)
        waiting = [task for task in suite.tasks if task.id not in finished]
        done = len(suite.tasks) - len(waiting)
        with ProgressBar("groups", total=len(suite.tasks), done=done, console=console) as bar:
            tasks = {task.id: task for task in waiting}
            recorder = _Recorder(config, policy.name, tasks, rows, metrics, bar)
            run_processes(
                _processes(config, suite, waiting, build_expert),
                policy=policy,
                scorer=scorer,
                parallel=config.parallel,
                environment_threads=config.environment.threads,
                on_done=recorder.on_done,
                on_failure=recorder.on_failure,
            )
        return recorder.close()


def _processes(
    config: GroupsConfig,
    suite: SelectedSuite,
    tasks: Sequence[Task],
    build_expert: Callable[[], Expert] | None,
) -> Iterator[tuple[str, RolloutTask[PlayedDecisions]]]:
    for task in tasks:
        yield (
            task.id,
            play_decisions(
                partial(suite.make, task),
                task_id=task.id,
                settings=config.decisions,
                seed=config.seed,
                continuing=_continuing(config, task, build_expert),
                repetitions=config.continuation.repetitions,
                chat=suite.environment.chat,
            ),
        )


def _continuing(
    config: GroupsConfig, task: Task, build_expert: Callable[[], Expert] | None
) -> Continuing:
    """The agents that play on; each has a seed of its own."""
    if build_expert is not None:
        return expert_continuing(build_expert)
    sampling = Sampling(config.continuation.temperature, config.decisions.max_tokens)
    play = Play(candidates=config.continuation.candidates, sampling=sampling)

    def continuing(*place: int) -> Agent:
        seed = derived_seed(config.seed, task.id, "on", *place)
        if config.continuation.by == "guided":
            return q_guided(play, seed, task.id)
        return first_reply(seeded(sampling, seed), role="rollout")

    return continuing


class _Recorder:
    """Writes each row as its episode is finished, and counts what this run has played."""

    def __init__(
        self,
        config: GroupsConfig,
        source: str,
        tasks: Mapping[str, Task],
        rows: JsonlWriter,
        metrics: JsonlWriter,
        bar: ProgressBar,
    ) -> None:
        self._config = config
        self._source = source
        self._tasks = tasks
        self._rows = rows
        self._metrics = metrics
        self._bar = bar
        self._started = monotonic()
        self._failures: list[str] = []
        self._totals: dict[str, float] = defaultdict(float)

    def on_done(self, task_id: str, played: PlayedDecisions, timings: Timings) -> None:
        row = groups_row(self._tasks[task_id], self._config, played, source=self._source)
        self._rows.write(row)
        spent = {"policy_s": timings.policy_s, "scorer_s": timings.scorer_s}
        spent["environment_s"] = timings.environment_s
        for name, figure in (groups_figures(row) | spent).items():
            self._totals[name] += figure
        summary = self._summary()
        self._bar.advance(f"{summary['states']:,.0f} states  {summary['states_per_s']:.1f}/s")

    def on_failure(self, task_id: str, error: QGuideError) -> None:
        self._failures.append(f"{task_id}: {error}")
        self._metrics.write({"task_id": task_id, "error": str(error)})
        self._bar.advance(f"{len(self._failures)} failed, the last one {task_id}")

    def close(self) -> dict[str, float]:
        """Write the run's figures.

        Raises:
            EnvironmentFailureError: every task failed.
        """
        if self._failures and not self._totals:
            raise EnvironmentFailureError(
                f"all {len(self._failures)} tasks failed; the first: {self._failures[0]}"
            )
        self._metrics.write({"summary": self._summary()})
        return self._summary()

    def _summary(self) -> dict[str, float]:
        seconds = monotonic() - self._started
        states_per_s = self._totals["states"] / seconds
        return dict(self._totals) | {
            "failures": len(self._failures),
            "wall_time_s": seconds,
            "states_per_s": states_per_s,
        }


def groups_row(
    task: Task, config: GroupsConfig, played: PlayedDecisions, *, source: str
) -> DecisionGroupsRow:
    """The row of a played episode."""
    return DecisionGroupsRow(
        task_id=task.id,
        kind=task.kind,
        environment=config.environment.name,
        first_observation=played.first_observation,
        system=find_environment(config.environment.name).chat.system,
        decisions=played.decisions,
        source=source,
        continuation=config.continuation.by,
        seed=config.seed,
        completion_tokens=played.completion_tokens,
    )


def groups_figures(row: DecisionGroupsRow) -> dict[str, float]:
    """Counts of an episode that add up over episodes."""
    candidates = [candidate for decision in row.decisions for candidate in decision.candidates]
    succeeded = find_environment(row.environment).is_success(
        row.outcome_reward, row.decisions[-1].taken.terminated
    )
    return {
        "episodes": 1,
        "won": succeeded,
        "states": len(row.decisions),
        "choices": sum(len(decision.candidates) > 1 for decision in row.decisions),
        "candidates": len(candidates),
        "invalid_candidates": sum(not candidate.valid for candidate in candidates),
        "continuations": sum(len(candidate.continuations) for candidate in candidates),
        "completion_tokens": row.completion_tokens,
    }
