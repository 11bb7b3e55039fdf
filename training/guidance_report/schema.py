"""The report as data, as it is written to JSON."""

from typing import Literal

from qguide.qnet.records import Row
from qguide.qnet.types import ThresholdAction
from qguide.training.evaluation.statistics import Interval

Finding = Literal["helps", "harms", "unclear", "too_few"]


class Spread(Row):
    """Mean, median and 95th percentile; None where nothing was recorded."""

    mean: float | None
    median: float | None
    p95: float | None


class Arm(Row):
    """The episodes of one Q model, or the control arm.

    Attributes:
        ci95: interval of the mean outcome, over tasks; None with too few of them.
        tokens, ms: completion tokens, and time in the server, of an episode.
    """

    name: str
    episodes: int
    tasks: int
    mean_outcome: float
    ci95: Interval | None
    mean_steps: float
    tokens: Spread
    ms: Spread


class ArmComparison(Row):
    """An arm against the baseline, within each group and phase of a server that learns.

    Attributes:
        episodes: of groups and phases with both; the others' count nowhere here.
        difference: over these by Mantel and Haenszel's weights; None where none has both.
        points: the difference in hundredths of the range of outcomes.
        ci95: interval of the difference, over tasks; None with too few of them.
        more_episodes: how many more are needed to see a 5-point difference in four of five cases;
            None where that cannot be estimated.
    """

    arm: str
    baseline: str
    episodes: int
    difference: float | None
    points: float | None
    ci95: Interval | None
    finding: Finding
    more_episodes: int | None
    sentence: str


class Bin(Row):
    """Steps of similar Q.

    Attributes:
        ci95: interval of the mean outcome, over tasks.
    """

    mean_q: float
    mean_outcome: float
    ci95: Interval
    steps: int


class Reliability(Row):
    """Q of one Q model's steps against the outcomes of their episodes.

    Attributes:
        bins: steps by ascending Q, in parts of equal size.
        auc: probability that the mean Q of a successful episode is above that of another one; None
            if all outcomes are alike.
        success_above: outcome above which an episode counts as successful there.
        rank_correlation: Spearman's, of mean Q and outcome over episodes.
    """

    q_model: str
    steps: int
    episodes: int
    bins: tuple[Bin, ...]
    auc: float | None
    auc_ci95: Interval | None
    success_above: float
    rank_correlation: float | None
    sentence: str


class Agreement(Row):
    """Agreement of Q with the policy; shares are None where nothing was recorded.

    Attributes:
        with_choice: steps with at least two different candidates and their Q.
        windows: steps at which the Q model read a window of the history.
        unanimous: share of the steps with several draws at which all of them were equal.
        argmax_is_first: share of `with_choice` at which Q chose the first candidate.
        first_by_chance: the share that a random choice would have.
        argmax_is_most_frequent: share at which it chose the candidate drawn most often.
        fallback: share of all steps at which no Q chose, because the state was outside the Q
            model's domain or it did not answer.
        out_of_domain: share of `domain_asked`, the steps at which the Q model's domain was asked,
            that were outside it.
        followed: share of all steps at which the agent took the chosen candidate.
        q_gain: mean Q of the chosen candidate minus that of the first.
        changed, unchanged: episodes with and without a step at which Q chose another candidate
            than the first. They are not comparable: longer episodes have more such steps.
    """

    steps: int
    with_choice: int
    windows: int
    unanimous: float | None
    argmax_is_first: float | None
    first_by_chance: float | None
    argmax_is_most_frequent: float | None
    fallback: float | None
    out_of_domain: float | None
    domain_asked: int
    followed: float | None
    q_gain: float | None
    changed: int
    unchanged: int
    changed_outcome: float | None
    unchanged_outcome: float | None


class ActionFigures(Row):
    """One action that was taken where the best Q was below a threshold.

    Attributes:
        episodes: with a step at which it was taken.
        raised: share after which the best Q was no longer below the threshold.
        failed: share that brought no candidate.
        chosen: share at which one of its candidates was chosen; None for `stop`.
        q_before, q_after: mean of the best Q without and with its candidates.
        tokens: mean that it cost, read and generated.
        mean_outcome: of these episodes. Not comparable with that of the others: harder episodes
            have more such steps.
    """

    q_model: str
    action: ThresholdAction
    steps: int
    episodes: int
    raised: float
    failed: float
    chosen: float | None
    q_before: float
    q_after: float
    tokens: float
    mean_outcome: float


class ShadowedQ(Row):
    """Episodes of an arm that a second Q model scored, too, without effect; its arm counts them.

    Attributes:
        shadow: `name@version` of that Q model.
        ms: time in the server of an episode, which a shadow on the same device may lengthen.
    """

    arm: str
    shadow: str
    episodes: int
    tasks: int
    mean_outcome: float
    ms: Spread


class TauEstimate(Row):
    """Estimate of what another temperature of the posterior would have changed.

    Attributes:
        tau: None is the vote alone.
        decisions: recorded choices whose candidates have their Q and draws.
        changed: of those, the ones at which it chooses another candidate than was taken.
        known: of those, the ones whose other candidate another episode took in the same state.
        tasks: of those.
        difference: mean over tasks of the mean outcome after its choice minus that after the
            recorded one; None without a known decision.
        ci95: interval of the difference, over tasks; None with too few of them.
    """

    q_model: str
    tau: float | None
    decisions: int
    changed: int
    known: int
    tasks: int
    difference: float | None
    ci95: Interval | None

    @property
    def choice(self) -> str:
        """The rule of choice."""
        return "votes alone" if self.tau is None else f"tau {self.tau:g}"


class CriterionWeight(Row):
    """Weight of a judge's criterion by the outcomes of episodes.

    Attributes:
        effect: change of the outcome if the mean verdict on an episode's chosen candidates were
            the best and not the worst, the other criteria being equal; None where nothing tells it.
        weight: share of the highest effect, 0 for a negative one.
    """

    q_model: str
    criterion: str
    episodes: int
    effect: float | None
    ci95: Interval | None
    weight: float | None


class RareValue(Row):
    """An argument value that few episodes tried.

    Attributes:
        tool: the tool, or the first word of an action in words.
        argument: its name; "" for an action in words.
        episodes: number that tried it, of which `successes` succeeded.
        offered: steps with a candidate that has it.
    """

    tool: str
    argument: str
    value: str
    episodes: int
    successes: int
    offered: int

    @property
    def place(self) -> str:
        """The tool and the argument."""
        return f"{self.tool} ({self.argument})" if self.argument else self.tool

    @property
    def tried(self) -> str:
        """The outcomes of the episodes that tried it."""
        if not self.episodes:
            return "never tried"
        return f"{self.successes:,} successes of {self.episodes:,}"


class StepRange(Row):
    """Steps of similar depth.

    Attributes:
        auc: as in `Reliability`, of the Q at these steps, all Q models together.
    """

    depths: str
    steps: int
    with_choice: float
    argmax_is_first: float | None
    q_gain: float | None
    auc: float | None
    tokens: Spread
    ms: Spread


class EnvironmentReport(Row):
    """The arms and comparisons of one environment."""

    name: str
    episodes: int
    arms: tuple[Arm, ...]
    comparisons: tuple[ArmComparison, ...]


class TrialArm(Row):
    """Episodes of a trial that were played in one way; outcomes are cut to 0 and 1.

    Attributes:
        tokens: mean completion tokens of an episode.
    """

    episodes: int
    mean: float
    tokens: float


class TrialFigures(Row):
    """A trial of a server that learns, and the guidance after it, as GET /v1/learning tells them.

    Attributes:
        group: the key, or "+" and the name of the keys, that learned together; "" without keys.
        low, difference, high: guided minus unguided mean outcome, each episode weighed by 1 / the
            probability of its arm, and the confidence sequence's interval.
    """

    group: str = ""
    trial: int
    guided: TrialArm
    unguided: TrialArm
    low: float
    difference: float
    high: float

    @property
    def name(self) -> str:
        """Number of the trial, and the group."""
        return f"{self.trial} of {self.group}" if self.group else str(self.trial)

    @property
    def extra_tokens(self) -> float:
        """Cost of guidance, per episode."""
        return self.guided.tokens - self.unguided.tokens


class GuidanceReport(Row):
    """Report of served episodes.

    Attributes:
        bad_row_messages: the first of them, with their lines.
        verdict: whether to go on with guidance, in one sentence.
        trials: of a server that learned while it served.
        other_taus: estimates, by Q model.
        criteria: of judges that have some.
        rare_values: the rarest first, at most 20.
    """

    version: Literal[1] = 1
    files: tuple[str, ...]
    bad_rows: int
    bad_row_messages: tuple[str, ...]
    episodes: int
    steps: int
    tasks: int
    verdict: str
    sentences: tuple[str, ...]
    arms: tuple[Arm, ...]
    comparisons: tuple[ArmComparison, ...]
    reliability: tuple[Reliability, ...]
    agreement: Agreement
    actions: tuple[ActionFigures, ...]
    by_step: tuple[StepRange, ...]
    shadows: tuple[ShadowedQ, ...]
    trials: tuple[TrialFigures, ...] = ()
    other_taus: tuple[TauEstimate, ...]
    criteria: tuple[CriterionWeight, ...] = ()
    rare_values: tuple[RareValue, ...]
    environments: tuple[EnvironmentReport, ...]
