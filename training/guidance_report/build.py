"""The report of recorded episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from qnet.errors import RecordError
from training.guidance_report.agreement import agreement_of, step_ranges
from training.guidance_report.calibration import reliability_of
from training.guidance_report.columns import CONTROL, Columns, read_columns
from training.guidance_report.comparison import arms_of, comparisons_of, require_arm
from training.guidance_report.offers import environment_labels, offer_files, read_episodes
from training.guidance_report.schema import Environment, GuidanceReport
from training.guidance_report.threshold_actions import actions_of
from training.guidance_report.verdict import verdict_of

_SHOWN_BAD_ROWS: Final = 20


def build_report(
    paths: Sequence[Path], *, baseline: str | None = None, skip_bad: bool = False
) -> GuidanceReport:
    """Read recorded episodes and report on them.

    Args:
        paths: folders of recorded episodes, or `offers-*.jsonl` files.
        baseline: the arm that the others are compared with; None chooses one.
        skip_bad: leave out rows that cannot be read, instead of ending with the first of them.

    Raises:
        ConfigError: the baseline has no episode.
        RecordError: there are no episodes, or a row cannot be read.
    """
    bad: list[str] = []

    def on_bad_row(error: RecordError) -> None:
        if not skip_bad:
            raise error
        bad.append(str(error))

    files = offer_files(paths)
    columns = read_columns(read_episodes(files, on_bad_row), environment_labels(paths))
    if not len(columns.episodes["outcome"]):
        raise RecordError(
            f"{', '.join(map(str, files))} has no episode; send outcomes to "
            "/v1/episodes/ID/outcome, which record them"
        )
    require_arm(columns, baseline)
    return _report(columns, files, bad, baseline)


def _report(
    columns: Columns, files: Sequence[Path], bad: Sequence[str], baseline: str | None
) -> GuidanceReport:
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
    return GuidanceReport(
        files=tuple(map(str, files)),
        bad_rows=len(bad),
        bad_row_messages=tuple(bad[:_SHOWN_BAD_ROWS]),
        episodes=len(everything),
        steps=len(columns.steps["depth"]),
        tasks=len(np.unique(columns.episodes["task"])),
        verdict=verdict_of(columns, everything, baseline),
        sentences=tuple(sentences),
        arms=arms,
        comparisons=comparisons,
        reliability=reliability,
        agreement=agreement_of(columns),
        actions=actions_of(columns),
        by_step=step_ranges(columns),
        environments=environments,
    )


def _environments(columns: Columns, baseline: str | None) -> tuple[Environment, ...]:
    """The environments, if there is more than one."""
    if len(columns.environments) < 2:
        return ()
    found = []
    for number, name in enumerate(columns.environments):
        among = columns.episodes["environment"] == number
        found.append(
            Environment(
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
