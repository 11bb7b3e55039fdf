"""Manifest and licence of a Q model as text."""

import numpy as np
from rich.console import Console
from rich.table import Table

from qguide.qnet.features.domain import Domain
from qguide.qnet.models.manifest import Interval, Licence, Manifest, PriorSection
from qguide.training.licence.domain import Outside
from qguide.training.licence.evidence import OWN


def show_licence(licence: Licence | None, console: Console) -> None:
    """Print the table of choosers, then the verdict."""
    if licence is None:
        console.print(
            "licence: not judged; held-back decision groups judge a trained Q model "
            "(held_back_groups, or validation_fraction of groups)",
            soft_wrap=True,
        )
        return
    if licence.choosers:
        console.print(_choosers(licence))
    if licence.ceiling is not None:
        console.print(
            f"two halves of the outcomes agree on the order of {licence.ceiling:.0%} of pairs, "
            "where chance is 50%: no Q model can be judged more finely than that"
        )
    verdict = "granted" if licence.granted else "none, not better than your agent's own choice yet"
    console.print(f"licence: {verdict}; {licence.reason}", markup=False, soft_wrap=True)


def show_manifest(manifest: Manifest, console: Console) -> None:
    """Print a manifest's origin, figures, prior and licence."""
    table = Table(show_header=False, box=None)
    for name in ("name", "kind", "environment", "target", "label_range", "trunk", "read_at"):
        if value := getattr(manifest, name):
            table.add_row(name, str(value))
    for name, figure in manifest.metrics.items():
        table.add_row(name, f"{figure:,.4g}")
    console.print(table)
    if manifest.prior is not None:
        console.print(_prior(manifest.prior), markup=False, soft_wrap=True)
    if manifest.kind != "policy":
        show_licence(manifest.licence, console)


def domain_line(domain: Domain | None) -> str:
    """A domain's size and limits as text."""
    if domain is None:
        return "domain: unknown, so every state is guided; `qguide domain` gives it one"
    return (
        f"domain: {len(domain.known):,} words, of which nearly all states have "
        f"{len(domain.common):,}; "
        f"outside beyond {domain.unknown_limit:.1%} unknown or {domain.missing_limit:.1%} missing"
    )


def outside_line(found: Outside) -> str:
    """The states outside a domain as text."""
    middle, high = np.quantile(found.distances, (0.5, 0.99))
    return (
        f"{found.share:.2%} of {len(found.distances):,} states outside, in {found.tasks_outside:,} "
        f"of {found.tasks:,} tasks; median distance {middle:.2g}, 99 % quantile {high:.2g}"
    )


def _choosers(licence: Licence) -> Table:
    table = Table("choice by", "outcome", "95 % interval", "regret", "pairs in order (chance 0.5)")
    for name in dict.fromkeys((*OWN, *licence.choosers)):
        if (own := licence.choosers.get(name)) is None:
            table.add_row(name, "unknown")
            continue
        pairs = "" if own.pair_accuracy is None else f"{own.pair_accuracy:.3f}"
        if own.pair_interval is not None:
            pairs += f" ({_range(own.pair_interval)})"
        known = f"{name} (of {own.decisions:,})" if own.decisions is not None else name
        table.add_row(known, f"{own.outcome:.3f}", _range(own.interval), f"{own.regret:.3f}", pairs)
    return table


def _range(interval: Interval) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def _prior(prior: PriorSection) -> str:
    tried = ", ".join(f"{point.tau:g}: {point.outcome:.3f}" for point in prior.curve)
    curve = f"; outcome by tau: {tried}" if tried else ""
    return f"posterior: Q / {prior.tau:g} + log prior by {prior.by}{curve}"
