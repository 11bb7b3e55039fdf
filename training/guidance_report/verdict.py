"""Verdict of the report in one sentence: whether to go on with guidance."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from qguide.training.guidance_report.agreement import mean_of
from qguide.training.guidance_report.columns import CONTROL, Columns
from qguide.training.guidance_report.comparison import Mask, arms_of, comparisons_of
from qguide.training.guidance_report.schema import Comparison, TauEstimate

NONE: Final = "none"
VOTES: Final = "votes"
"""Names of the Q model that guides nothing, and of the rule that takes the most frequent draw."""

_ALIKE: Final = 0.99
"""Share of the steps with a choice at which Q chose what votes choose: nothing is left of Q."""


def verdict_of(
    columns: Columns,
    among: Mask,
    baseline: str | None = None,
    other_taus: Sequence[TauEstimate] = (),
) -> str:
    """Judgement by the recorded episodes of the guided arm with the most of them.

    Args:
        baseline: the unguided arm; None for episodes of one candidate, or of the Q model `none`.
        other_taus: estimates of what votes alone would have led to.
    """
    names = [arm.name for arm in arms_of(columns, among)]
    plain = baseline or (CONTROL if CONTROL in names else _named(names, NONE))
    votes = _named(names, VOTES)
    guided = next((name for name in names if name not in (plain, votes, CONTROL)), None)
    if guided is None:
        return "no verdict: no episode was guided by a Q model"
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


def _sentence(found: Comparison) -> str:
    if found.finding == "helps":
        return f"use it: {found.sentence}"
    if found.finding == "harms":
        return f"do without it: {found.sentence}; train on these episodes"
    more = f"record {found.more_episodes:,} more episodes" if found.more_episodes else ""
    wanted = more or ("record more tasks" if found.finding == "too_few" else "")
    return f"not shown to help{f'; {wanted}' if wanted else ''}: {found.sentence}"


def _against(columns: Columns, among: Mask, arm: str, baseline: str) -> Comparison:
    found = comparisons_of(columns, among, baseline=baseline)
    return next(one for one in found if one.arm == arm)


def _votes_share(columns: Columns, q_model: str) -> float | None:
    """Share of the Q model's choices that are those of the votes; None without any."""
    steps = columns.steps
    own = steps["q_model"] == columns.q_models.index(q_model)
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
