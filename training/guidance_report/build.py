"""The report of recorded episodes, and its verdict: whether to go on with guidance."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from qguide.qnet.errors import RecordError
from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.agreement import actions_of, agreement_of, mean_of, step_ranges
from qguide.training.guidance_report.calibration import CriteriaOutcomes, reliability_of, success_bound
from qguide.training.guidance_report.columns import CONTROL, NO_Q_MODEL, OF, Columns, read_columns
from qguide.training.guidance_report.comparison import (
    Mask,
    Trials,
    arms_named,
    arms_of,
    comparisons_of,
    pooled_learner,
    require_arm,
    shadowed_of,
)
from qguide.training.guidance_report.offers import environment_labels, offer_files, read_episodes
from qguide.training.guidance_report.other_taus import OtherTaus
from qguide.training.guidance_report.rare_values import ArgumentValues
from qguide.training.guidance_report.schema import (
    ArmComparison,
    EnvironmentReport,
    GuidanceReport,
    Reliability,
    TauEstimate,
)

_SHOWN_BAD_ROWS: Final = 20
_BOTH: Final = (
    "both may be true: guidance compares the candidates of one state, and the AUC compares "
    "episodes of different tasks, whose difficulty Q need not know"
)


def build_report(
    paths: Sequence[Path], *, baseline: str | None = None, skip_bad: bool = False, same_tasks: bool = False
) -> GuidanceReport:
    """Read recorded episodes and report on them; see `read_columns` for `same_tasks`."""
    bad: list[str] = []

    def on_bad_row(error: RecordError) -> None:
        if not skip_bad:
            raise error
        bad.append(str(error))

    files = offer_files(paths)
    notes = OtherTaus(), ArgumentValues(), Trials(), CriteriaOutcomes()
    episodes = _noting(read_episodes(files, on_bad_row), notes)
    columns = read_columns(episodes, lambda: environment_labels(paths), same_tasks=same_tasks)
    if not columns.episodes:
        raise RecordError(
            f"{', '.join(map(str, files))} has no episode; send outcomes to /v1/episodes/ID/outcome, which record them"
        )
    require_arm(columns, baseline)
    return _report(columns, notes, files, bad, baseline)


_Notes = tuple[OtherTaus, ArgumentValues, Trials, CriteriaOutcomes]
"""Notes on the candidates' texts, which are not kept."""


def _noting(episodes: Iterable[list[OfferRow]], notes: _Notes) -> Iterator[list[OfferRow]]:
    for rows in episodes:
        for note in notes:
            note.add(rows)
        yield rows


def _report(
    columns: Columns, notes: _Notes, files: Sequence[Path], bad: Sequence[str], baseline: str | None
) -> GuidanceReport:
    taus, values, trials, criteria = notes
    everything = np.ones(len(columns.episodes["outcome"]), dtype=np.bool_)
    arms = arms_of(columns, everything)
    comparisons = comparisons_of(columns, everything, baseline=baseline)
    reliability = reliability_of(columns)
    environments = _environments(columns, baseline)
    sentences = [comparison.sentence for comparison in comparisons]
    if not comparisons:
        sentences.append(_no_comparison(arms[0].name))
    for environment in environments:
        sentences += [comparison.sentence for comparison in environment.comparisons]
    sentences += [one.sentence for one in reliability]
    sentences += criteria.sentences()
    if _both_said(comparisons, reliability):
        sentences.append(_BOTH)
    other_taus = taus.estimates()
    return GuidanceReport(
        files=tuple(map(str, files)),
        bad_rows=len(bad),
        bad_row_messages=tuple(bad[:_SHOWN_BAD_ROWS]),
        episodes=len(everything),
        steps=len(columns.steps["depth"]),
        tasks=len(np.unique(columns.episodes["task"])),
        verdict=verdict_of(columns, everything, baseline, other_taus),
        sentences=tuple(sentences),
        arms=arms,
        comparisons=comparisons,
        reliability=reliability,
        agreement=agreement_of(columns),
        actions=actions_of(columns),
        by_step=step_ranges(columns),
        shadows=shadowed_of(columns),
        trials=tuple(trials.figures()),
        other_taus=other_taus,
        criteria=tuple(criteria.weights()),
        rare_values=values.rare(columns.episodes["outcome"], success_bound(columns)),
        environments=environments,
    )


def _both_said(comparisons: Sequence[ArmComparison], reliability: Sequence[Reliability]) -> bool:
    helpful = {one.arm for one in comparisons if one.finding == "helps"}
    return any(one.q_model in helpful and one.auc_ci95 is not None and one.auc_ci95[0] <= 0.5 for one in reliability)


def _environments(columns: Columns, baseline: str | None) -> tuple[EnvironmentReport, ...]:
    if len(columns.environments) < 2:
        return ()
    found = []
    for number, name in enumerate(columns.environments):
        among = columns.episodes["environment"] == number
        found.append(
            EnvironmentReport(
                name=name,
                episodes=int(among.sum()),
                arms=arms_of(columns, among),
                comparisons=comparisons_of(columns, among, baseline=baseline, label=f'in "{name}"'),
            )
        )
    return tuple(sorted(found, key=lambda environment: -environment.episodes))


def _no_comparison(arm: str) -> str:
    if arm == CONTROL:
        return "no step had a choice, so there is nothing to say about guidance"
    return (
        f"all episodes were guided by {arm}, so nothing says what would have happened without it; "
        "serve a split, or send a share of the episodes with num_candidates = 1"
    )


VOTES: Final = "votes"
"""Name of the rule that takes the most frequent draw."""

_ALIKE: Final = 0.99
"""Share of the steps with a choice at which Q chose what votes choose: nothing is left of Q."""


def verdict_of(
    columns: Columns, among: Mask, baseline: str | None = None, other_taus: Sequence[TauEstimate] = ()
) -> str:
    """Judgement by the recorded episodes of the guided arm with the most of them."""
    names = [arm.name for arm in arms_of(columns, among)]
    plain = baseline or next((arm for arm in (CONTROL, NO_Q_MODEL) if arm in names), None)
    votes = _named(names, VOTES)
    unguided = {plain, votes, CONTROL, NO_Q_MODEL}  # a server that explores has two of them
    guided = next((name for name in names if name not in unguided), None)
    if guided is None:
        return "no verdict: no episode was guided by a Q model"
    guided = (OF in guided and pooled_learner(names, plain or "")) or guided
    if votes and (found := _against(columns, among, guided, votes)).finding != "too_few":
        if found.finding == "harms" or (found.finding == "unclear" and found.more_episodes == 0):
            return f"votes would have done as well: {found.sentence}"
    elif (share := _votes_share(columns, guided)) is not None and share >= _ALIKE:
        return (
            f"votes would have done as well: at {share:.0%} of the steps with a choice {guided} "
            "chose what was drawn most often"
        )
    elif better := _better_votes(other_taus, guided):
        return f"votes would have done as well, by an estimate: {better}"
    if plain is None:
        return (
            f"no verdict: nothing was recorded without {guided}; send a share of the episodes with "
            "num_candidates = 1, or split them with the Q model none"
        )
    return _sentence(_against(columns, among, guided, plain))


def _sentence(found: ArmComparison) -> str:
    if found.finding == "helps":
        return f"use it: {found.sentence}"
    if found.finding == "harms":
        trial = found.episodes + (found.more_episodes or 0)  # of what is learned, which has no episodes yet
        return f"do without it: {found.sentence}; train on these episodes, then record {trial:,} more to judge again"
    more = f"record {found.more_episodes:,} more episodes" if found.more_episodes else ""
    wanted = more or ("record more" if found.finding == "too_few" else "")
    return f"not shown to help{f'; {wanted}' if wanted else ''}: {found.sentence}"


def _against(columns: Columns, among: Mask, arm: str, baseline: str) -> ArmComparison:
    found = comparisons_of(columns, among, baseline=baseline)
    return next(one for one in found if one.arm == arm)


def _votes_share(columns: Columns, q_model: str) -> float | None:
    steps = columns.steps
    own = np.isin(steps["q_model"], [columns.q_models.index(name) for name in arms_named(columns, q_model)])
    return mean_of(np.where(own, steps["is_vote"], np.nan))


def _better_votes(other_taus: Sequence[TauEstimate], q_model: str) -> str:
    """The estimate that the vote leads to more than Q; "" without one."""
    alone = next((one for one in other_taus if one.q_model == q_model and one.tau is None), None)
    if alone is None or alone.ci95 is None or alone.ci95[0] <= 0:
        return ""
    low, high = alone.ci95
    return (
        f"where Q chose otherwise, the vote led to {alone.difference:+.3f} in outcome "
        f"({low:+.3f} to {high:+.3f}, {alone.known:,} decisions of {alone.tasks:,} tasks)"
    )


def _named(arms: list[str], name: str) -> str | None:
    return next((arm for arm in arms if arm.partition("@")[0] == name), None)
