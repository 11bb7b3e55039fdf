"""The one job that plays tasks for data, and the method that says what it does with each of them.

explore, groups, rro, ipr, collect and paraphrase are one job: open the run, build the models, play
every task that has no row, sum the figures up, and derive further rows where the method has two
stages. What differs is the `Method`:

    run_groups = partial(play_job, Groups)
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel, Field
from rich.console import Console

from qguide.qnet.types import Scorer
from qguide.training.data.row_files import ROWS
from qguide.training.rollouts.harness import PlayableTask, RolloutConfig, Rollouts, open_rollouts
from qguide.training.rollouts.models import sha256_of_policy, sha256_of_q_model
from qguide.training.rollouts.policies import JobPolicy, PolicyWithRollouts
from qguide.training.rollouts.rollout import RolloutTask, RunBudget, TaskTimings, TimingsRequest

Config = TypeVar("Config", bound="MethodConfig")


class MethodConfig(RolloutConfig):
    """Configuration of a job that plays for data.

    The first of `policy_fields` draws, and the second, where it is named, plays roll-outs in its
    place.

    Attributes:
        seed: base seed of all draws.
        minutes: time after which a start of the job begins no further episode, and what is done is
            kept; None sets no limit.
        calls: number of requests to the policies after which it does the same.
    """

    q_field: ClassVar[str] = ""

    seed: int = 0
    minutes: float | None = Field(default=None, gt=0)
    calls: int | None = Field(default=None, ge=1)

    def models(self) -> dict[str, str]:
        """The models that rows depend on, by field; "" where none is named."""
        fields = (*self.policy_fields, *filter(None, [self.q_field]))
        return {field: getattr(self, field) for field in fields}


@dataclass(frozen=True, slots=True)
class JobModels:
    """Models of a job; None where it has none.

    Attributes:
        rollouts: plays roll-outs; None for `policy`.
        q_model: guides, or values in place of roll-outs.
    """

    policy: JobPolicy | None = None
    rollouts: JobPolicy | None = None
    q_model: Scorer | None = None

    @property
    def drawing(self) -> JobPolicy | None:
        """Both policies as one."""
        if self.policy is None or self.rollouts is None:
            return self.policy
        return PolicyWithRollouts(self.policy, self.rollouts)


@dataclass(frozen=True, slots=True)
class PlayedTask:
    """One task when it is played.

    Attributes:
        rows: written all at once; a task without any is played again, unless `Method.finished`
            knows it.
    """

    rows: Sequence[BaseModel]
    figures: Mapping[str, float]


class Method(ABC, Generic[Config]):
    """The part of a job that is its own: the play of one task.

    Attributes:
        unit: name of what a task is played to, such as "trees"; they are counted under it.
        rate: the figure that is also given per second.
        means: figures that are averaged over tasks; the others are summed.
        as_agent: the draws are an agent's, so they get the environment's tools and few-shot turns.
        needs_branches: the job is refused before any model is loaded where episodes cannot branch.
    """

    job: ClassVar[str]
    unit: ClassVar[str]
    rate: ClassVar[str]
    means: ClassVar[Set[str]] = frozenset()
    file: ClassVar[str] = ROWS
    as_agent: ClassVar[bool] = True
    needs_branches: ClassVar[bool] = False

    def __init__(self, config: Config, run: Rollouts, models: JobModels) -> None:
        self.config = config
        self.run = run
        self.models = models

    @property
    def source(self) -> str:
        """Name of the policy that draws."""
        assert self.models.policy is not None
        return self.models.policy.name

    @abstractmethod
    def play(self, playable: PlayableTask) -> RolloutTask[PlayedTask]:
        """Play one task."""

    def note(self, summary: Mapping[str, float]) -> str:
        """The latest figures, shown beside the progress bar."""
        rate = f"{self.rate}_per_s"
        return f"{summary[rate]:.1f} {self.rate}/s"

    def finished(self) -> Set[str] | None:
        """Ids of the tasks not to play; None leaves out those that have a row."""
        return None

    def derive(self) -> dict[str, float]:
        """Write the rows that follow from those of all tasks; returns their figures."""
        return {}

    def close(self) -> None:
        """Close files of the method's own."""


def play_job(
    method: type[Method[Config]],
    config: Config,
    *,
    policy: JobPolicy | None = None,
    rollouts: JobPolicy | None = None,
    q_model: Scorer | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Play the tasks that have no row yet.

    Models that are given take the place of those that the configuration names; see `JobModels`.

    Returns:
        Time, cost and figures of what this start of the run played, and the figures of all rows
        that a method derives in the end.
    """
    given = JobModels(policy, rollouts, q_model)
    weights = hashes_of(config, given)
    with open_rollouts(method.job, config, weights=weights, console=console) as run:
        if method.needs_branches:
            run.branch(required=True)
        models = _build(config, run, given, as_agent=method.as_agent)
        run.budget = RunBudget(config.minutes, config.calls)
        with closing(method(config, run, models)) as playing:
            figures = _RunFigures(playing)

            def play(playable: PlayableTask) -> RolloutTask[None]:
                played = yield from playing.play(playable)
                spent: TaskTimings = yield TimingsRequest()
                summary = figures.add(played.figures, spent)
                run.write(*played.rows, note=playing.note(summary))

            run.play(
                play,
                policy=models.drawing,
                scorer=models.q_model,
                finished=playing.finished(),
                rows=method.file,
                as_agent=method.as_agent,
            )
            spent = figures.finish()
            if derived := playing.derive():
                run.metrics.write({"pairs": derived})
            return spent | derived


def hashes_of(config: MethodConfig, given: JobModels) -> dict[str, str]:
    """Hashes of the named models' weights for `config.json`; "" for none and for given ones."""
    own = dict(zip(config.policy_fields, (given.policy, given.rollouts), strict=False))
    hashes: dict[str, str] = {}
    for field, name in config.models().items():
        if field == config.q_field:
            found = "" if given.q_model else sha256_of_q_model(name, config.inference)
        else:
            found = "" if own[field] or not name else sha256_of_policy(name)
        hashes[f"{field}_sha256"] = found
    return hashes


def _build(config: MethodConfig, run: Rollouts, given: JobModels, *, as_agent: bool) -> JobModels:
    def policy(number: int) -> JobPolicy | None:
        fields = config.policy_fields
        name = getattr(config, fields[number]) if number < len(fields) else ""
        return run.build_policy(name, as_agent=as_agent) if name else None

    q_name = getattr(config, config.q_field) if config.q_field else ""
    return JobModels(
        policy=given.policy or policy(0),
        rollouts=given.rollouts or policy(1),
        q_model=given.q_model or (run.build_scorer(q_name) if q_name else None),
    )


class _RunFigures:
    """Sums of the figures of the tasks that this start of a run has played."""

    def __init__(self, method: Method[Config]) -> None:
        self._method = method
        self._started = monotonic()
        self._count = 0
        self._totals: dict[str, float] = defaultdict(float)

    def add(self, figures: Mapping[str, float], spent: TaskTimings) -> dict[str, float]:
        """Add those of one task, and the time that it took; returns the figures so far."""
        times = {"policy_s": spent.policy_s, "scorer_s": spent.scorer_s, "environment_s": spent.environment_s}
        self._count += 1
        for name, figure in {**figures, **times}.items():
            self._totals[name] += figure
        return self._summary()

    def finish(self) -> dict[str, float]:
        """Write and return the run's figures."""
        run, summary = self._method.run, self._summary()
        run.require_some(self._count)
        run.metrics.write({"summary": summary})
        return summary

    def _summary(self) -> dict[str, float]:
        method, seconds = self._method, monotonic() - self._started
        figures: dict[str, float] = {method.unit: self._count, "failures": len(method.run.failures)}
        for name, total in self._totals.items():
            figures[name] = total / self._count if name in method.means else total
        figures["wall_time_s"] = seconds
        figures[f"{method.rate}_per_s"] = self._totals[method.rate] / seconds
        return figures
