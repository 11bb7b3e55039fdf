"""What an evaluation writes down: one row per episode, then the results."""

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

MethodName = Literal[
    "greedy",
    "sample",
    "random-of-m",
    "random-distinct",
    "no-repeat",
    "self-consistency",
    "likeliest",
    "q-guided",
    "best-of-n",
]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
DEFAULT_METHODS: tuple[MethodName, ...] = (
    "greedy",
    "sample",
    "random-of-m",
    "random-distinct",
    "q-guided",
    "best-of-n",
)

PEEKING: frozenset[str] = frozenset({"best-of-n"})
"""Methods that choose by the true reward, which no server can see."""

DETERMINISTIC: frozenset[str] = frozenset({"greedy"})
"""Methods that play a task the same way under every seed, so they play it once."""


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrajectoryCost(_Row):
    """One of the whole trajectories that best-of-n chose among."""

    reward: FiniteFloat
    success: bool
    steps: NonNegativeInt
    completion_tokens: NonNegativeInt


class EpisodeRow(_Row):
    """One task played by one method under one seed.

    Attributes:
        seed: None for a deterministic method.
        reward: the outcome reward; of the best trajectory for best-of-n.
        success: the environment's verdict on that trajectory.
        steps: of the trajectory whose reward this is, like `actions`.
        too_long: the history outgrew a model's context, which counts as a failure.
        decisions: steps at which the method chose, over all trajectories.
        distinct_candidates: different replies chosen among, summed over the decisions.
        invalid_actions: over all trajectories.
        completion_tokens: over all candidates of all trajectories.
        wall_time_s: the episode's share of the policy, the scorer and the environment.
        actions: the replies that were acted on.
        trajectories: of best-of-n alone.
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


class MethodRow(_Row):
    """One method under one seed, over all tasks.

    Attributes:
        success_rate: share of the episodes that succeeded, by the environment's own criterion.
        ci95: Wilson score interval of `success_rate`, tasks being the sample.
        completion_tokens: total over the episodes.
        wall_time_s: total over the episodes' shares of batched calls.
        deterministic: the same episodes stand in every seed's row.
        peeks: chooses by the true reward.
    """

    method: MethodName
    seed: int
    mean_reward: float
    success_rate: float
    ci95: tuple[float, float]
    episodes: int
    completion_tokens: int
    completion_tokens_per_episode: float
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


class MethodSummary(_Row):
    """One method over all seeds.

    Attributes:
        ci95: percentile bootstrap of `success_rate` over tasks; a task's seeds stay together.
        success_by_kind: success rate for each goal type.
    """

    method: MethodName
    seeds: int
    tasks: int
    mean_reward: float
    success_rate: float
    ci95: tuple[float, float]
    completion_tokens_per_episode: float
    success_by_kind: dict[str, float]
    peeks: bool


class Comparison(_Row):
    """The guided agent against another method on the same tasks and seeds.

    Attributes:
        difference: mean reward of `method` less that of `other`, over tasks and seeds.
        ci95: percentile bootstrap over tasks; a task's seeds stay together.
        p_value: two-sided sign-flip permutation test of the tasks' mean differences.
        tasks: those that both methods played under every seed.
    """

    method: MethodName
    other: MethodName
    difference: float
    ci95: tuple[float, float]
    p_value: float
    tasks: int
    seeds: int


class Failure(_Row):
    """An episode that could not be played; it counts in no figure and a resume tries it again."""

    method: MethodName
    seed: int | None
    task_id: str
    error: str


class Results(_Row):
    """`results.json`.

    Attributes:
        complete: every task has an episode of every method and seed.
        kinds: number of tasks of each goal type.
        notes: how the figures are to be read.
    """

    version: Literal[1] = 1
    complete: bool
    tasks: int
    kinds: dict[str, int]
    rows: tuple[MethodRow, ...]
    summary: tuple[MethodSummary, ...]
    comparisons: tuple[Comparison, ...]
    failures: tuple[Failure, ...]
    wall_clock_s: float
    config: dict[str, object]
    versions: dict[str, str]
    notes: dict[str, str]
