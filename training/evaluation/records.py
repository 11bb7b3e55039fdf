"""Records of an evaluation: one row per episode, and the results."""

from collections.abc import Collection
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, FiniteFloat, NonNegativeInt

from qguide.qnet.packages import plugins
from qguide.qnet.records import Row
from qguide.training.rollouts.usage import UpstreamUsage

OwnMethod = Literal[
    "greedy",
    "sample",
    "random-of-m",
    "random-distinct",
    "no-repeat",
    "self-consistency",
    "likeliest",
    "q-guided",
    "q-posterior",
    "adaptive",
    "q-guided-aug",
    "q-guided-n",
    "verifier-best-of-n",
    "q-beam",
    "lats",
    "reflexion",
    "best-of-n",
    "best-of-n-aug",
]
METHODS: tuple[OwnMethod, ...] = get_args(OwnMethod)


def _known(name: str) -> str:
    """A method of ours, or the import path of another; a name that a package brings becomes its path."""
    if name in METHODS or ":" in name:
        return name
    brought = plugins("methods")
    if name not in brought:
        raise ValueError(
            f"there is no method {name!r}; name one of {', '.join((*METHODS, *brought))}, or package.module:name"
        )
    return brought[name]


MethodName = Annotated[str, AfterValidator(_known)]


def in_order(methods: Collection[str]) -> list[str]:
    """Ours as they are listed, then the others by name."""
    return [*(name for name in METHODS if name in methods), *sorted(set(methods).difference(METHODS))]


DEFAULT_METHODS: tuple[OwnMethod, ...] = (
    "greedy",
    "sample",
    "random-of-m",
    "random-distinct",
    "q-guided",
    "q-posterior",
    "best-of-n",
)
"""The papers' argmax, the posterior by which a server chooses, and what both have to beat."""

PEEKING: frozenset[str] = frozenset({"q-guided-n", "lats", "reflexion", "best-of-n", "best-of-n-aug"})
"""Methods that choose or go on by the true reward, which a server does not know."""

DETERMINISTIC: frozenset[str] = frozenset({"greedy"})
"""Methods that play each task once, because every seed would give the same episode."""


GUIDED: frozenset[str] = frozenset({"q-guided", "q-posterior", "adaptive", "q-guided-aug", "q-guided-n"})
"""Methods that take the candidate of highest Q, or posterior, at each step, as the server does."""

COMPARED: tuple[OwnMethod, ...] = ("q-guided", "q-posterior")
"""Methods that are compared with every other; these with the first baseline alone."""

PARAPHRASED: frozenset[str] = frozenset({"q-guided-aug", "best-of-n-aug"})
"""Methods that draw under paraphrases of the task."""

MANY_TRAJECTORIES: frozenset[str] = frozenset(
    {"q-guided-n", "verifier-best-of-n", "lats", "reflexion", "best-of-n", "best-of-n-aug"}
)
"""Methods that play several whole trajectories and choose one of them."""


VALUING: frozenset[str] = frozenset({"verifier-best-of-n", "q-beam", "lats"})
"""Methods that try before they choose, by the value of what came of it."""


class TrajectoryCost(Row):
    """One of the trajectories between which a method chose.

    Attributes:
        values: Q of its last state; empty if the true reward chose.
    """

    reward: FiniteFloat
    success: bool
    steps: NonNegativeInt
    completion_tokens: NonNegativeInt
    values: tuple[FiniteFloat, ...] = ()


class EpisodeRow(Row):
    """One task played by one method under one seed.

    Attributes:
        seed: None for a deterministic method.
        reward: outcome reward; for a method of several trajectories, that of the chosen one, to
            which `success`, `steps`, `terminated`, `too_long` and `actions` belong too.
        decisions: steps at which the method chose, over all trajectories.
        distinct_candidates: number of distinct replies, summed over the decisions.
        invalid_actions: number of invalid actions, over all trajectories; for q-beam, in the
            chosen one.
        completion_tokens: tokens of all candidates of all trajectories, and of reflections.
        wall_time_s: the episode's share of the time of policy, scorer and environment.
        trajectories: those between which the method chose; empty for other methods.
        excess_tokens: completion tokens above the budget that the method had.
    """

    version: Literal[1] = 1
    method: MethodName
    seed: int | None
    task_id: str
    kind: str
    reward: FiniteFloat
    success: bool
    terminated: bool
    too_long: bool
    steps: NonNegativeInt
    decisions: NonNegativeInt
    distinct_candidates: NonNegativeInt
    invalid_actions: NonNegativeInt
    completion_tokens: NonNegativeInt
    scored_tokens: NonNegativeInt
    wall_time_s: FiniteFloat
    policy_time_s: FiniteFloat
    scorer_time_s: FiniteFloat
    environment_time_s: FiniteFloat
    actions: tuple[str, ...]
    trajectories: tuple[TrajectoryCost, ...] = ()
    reflections: tuple[str, ...] = Field(default=(), exclude_if=lambda texts: not texts)
    excess_tokens: NonNegativeInt = 0


class MethodRow(Row):
    """One method under one seed, over all tasks.

    Attributes:
        success_rate: share of the episodes that succeeded by the environment's own criterion.
        ci95: Wilson score interval of `success_rate` over tasks.
        completion_tokens: total over the episodes.
        wall_time_s: total of the episodes' shares; see `EpisodeRow`.
        peeks: the method chooses or goes on by the true reward.
        deterministic: the rows of all seeds have the same episodes.
    """

    method: MethodName
    seed: int
    mean_reward: float
    success_rate: float
    ci95: tuple[float, float]
    episodes: int
    completion_tokens: int
    completion_tokens_per_episode: float
    excess_tokens: int = 0
    scored_tokens: int
    distinct_candidates_per_step: float
    invalid_action_rate: float
    steps_per_episode: float
    too_long_episodes: int
    wall_time_s: float
    policy_time_s: float
    scorer_time_s: float
    environment_time_s: float
    peeks: bool
    deterministic: bool


class MethodSummary(Row):
    """One method over all seeds.

    Attributes:
        ci95: percentile bootstrap of `success_rate` over tasks; a task's seeds stay together.
        reward_ci95: the same of `mean_reward`; older results have none.
    """

    method: MethodName
    seeds: int
    tasks: int
    mean_reward: float
    success_rate: float
    ci95: tuple[float, float]
    reward_ci95: tuple[float, float] | None = None
    completion_tokens_per_episode: float
    success_by_kind: dict[str, float]
    peeks: bool


class Comparison(Row):
    """One method against another on the same tasks and seeds.

    Attributes:
        difference: mean reward of `method` minus that of `other`, over tasks and seeds.
        ci95: percentile bootstrap over tasks; a task's seeds stay together.
        p_value: two-sided sign-flip permutation test of the tasks' mean differences.
        tasks: number of tasks that both methods played under every seed.
    """

    method: MethodName
    other: MethodName
    difference: float
    ci95: tuple[float, float]
    p_value: float
    tasks: int
    seeds: int


class EpisodeFailure(Row):
    """An episode that could not be played; no figure counts it, and a resumed run retries it."""

    method: MethodName
    seed: int | None
    task_id: str
    error: str


class Results(Row):
    """Contents of `results.json`.

    Attributes:
        complete: every task has an episode of every method and seed.
        usage: what a hosted policy's requests cost; None for a policy of this process.
        judge_usage: what a judge's requests cost in the last run, cached tokens counted as read;
            None for a trained Q model.
    """

    version: Literal[1] = 1
    complete: bool
    tasks: int
    kinds: dict[str, int]
    rows: tuple[MethodRow, ...]
    summary: tuple[MethodSummary, ...]
    comparisons: tuple[Comparison, ...]
    failures: tuple[EpisodeFailure, ...]
    wall_clock_s: float
    usage: UpstreamUsage | None = Field(default=None, exclude_if=lambda usage: usage is None)
    judge_usage: UpstreamUsage | None = Field(default=None, exclude_if=lambda usage: usage is None)
    config: dict[str, object]
    versions: dict[str, str]
    notes: dict[str, str]
