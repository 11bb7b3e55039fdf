"""Verdict on a Q model in the words of its manifest, and as a terminal shows it."""

import numpy as np
from rich.console import Console
from rich.table import Table

from qguide.qnet.features.domain import AnyDomain, SharedDomain
from qguide.qnet.models.manifest import Interval, Licence, Manifest, PriorSection, figure_text
from qguide.training.algorithms.posterior_temperature import FEWEST_DECISIONS
from qguide.training.data.left_out import LeftOut
from qguide.training.licence.credit import FEWEST_EPISODES, FEWEST_UNITS, Credit
from qguide.training.licence.domain import Outside
from qguide.training.licence.evidence import FEWEST_TASKS, MOST_MISSING, OWN, Evidence

_PREFERRED_BY = {"votes": "the vote", "greedy": "the greedy reply", "prior": "the vote with the greedy reply"}


def licence_of(evidence: Evidence, credit: Credit | None = None, *, held_back: str = "tasks") -> Licence:
    """The section of a manifest: granted if either kind of evidence is above chance."""
    credited = credit is not None and credit.licensed
    return Licence(
        granted=evidence.licensed or credited,
        reason=_reason(evidence, credit, held_back, credited=credited),
        decisions=evidence.decisions,
        tasks=evidence.tasks,
        pairs=evidence.pairs,
        choosers=dict(evidence.choosers),
        own=evidence.own,
        gain=evidence.gain,
        gain_interval=evidence.gain_interval,
        ceiling=evidence.ceiling,
        credit=None if credit is None else credit.correlation,
        credit_interval=None if credit is None else credit.interval,
        credit_tasks=0 if credit is None else credit.units,
        leads=dict(credit.leads) if credit else {},
        missing_decisions=0 if credited else evidence.missing_decisions,
    )


def judged_by_the_rest(licence: Licence, left_out: LeftOut, *, judging: float | None = None) -> Licence:
    """The verdict where tasks are left out because their replays differ.

    Chance chose the others, so nothing says what the choice gains in these. A licence has to hold even if it lost there
    as much as an environment's outcomes, which are 0 to 1, can differ: tasks * low - judging > 0, where low is the
    lower end of the gain's interval. It is of the tasks with a decision that matters; in the others the choice gains
    nothing. What earned more by credit has no such bound.

    Args:
        judging: how many of those left out would have judged, if some would have been trained on; None is all.
    """
    if not left_out.tasks:
        return licence
    reason = f"{licence.reason}; {left_out}"
    if not licence.granted:
        return licence.model_copy(update={"reason": reason})
    low = licence.gain_interval[0]
    if licence.decisions < FEWEST_DECISIONS or licence.tasks < FEWEST_TASKS or low <= 0:
        return licence.model_copy(update={"granted": False, "reason": f"{reason}, so credit gives no licence"})
    worst = licence.tasks * low - (left_out.tasks if judging is None else judging)
    reason += f", in which its choice may lose as much as an outcome can: at worst its gains add up to {worst:+.2f}"
    return licence.model_copy(update={"granted": worst > 0, "reason": reason})


def _reason(evidence: Evidence, credit: Credit | None, held_back: str, *, credited: bool) -> str:
    parts = [_of_decisions(evidence)]
    if credit is not None and (credited or not evidence.licensed):
        parts.append(_of_credit(credit, held_back, credited=credited))
    if credited and not evidence.licensed:
        parts.reverse()  # what grants the licence comes first
    return "; ".join(parts)


def _of_decisions(evidence: Evidence) -> str:
    low, high = evidence.gain_interval
    over = f"{evidence.decisions:,} held-back decisions of {evidence.tasks:,} tasks"
    by = ", three standard errors" if evidence.own == "draw" else ""
    by += f", wider for the best of {evidence.tried}" if evidence.tried > 1 else ""
    gain = f"{evidence.gain:+.3f} ({low:+.3f} to {high:+.3f}{by}) in outcome over {over}"
    if evidence.licensed:
        return f"its choice is above the agent's own{_name_of(evidence)}: {gain}"
    missing = evidence.missing_decisions
    if not evidence.choosers:
        return "no held-back decision differs in outcome, so its choices cannot be judged"
    few = evidence.decisions < FEWEST_DECISIONS or evidence.tasks < FEWEST_TASKS
    if few:
        more = f", and a licence by decisions takes {FEWEST_DECISIONS} decisions of {FEWEST_TASKS} tasks"
    elif missing:
        more = f", which about {missing:,} more decisions would show"
    else:
        near = f", so near 0 that {MOST_MISSING:,} more decisions would not show it"
        more = near if evidence.gain > 0 else ""
    return f"its choice is not shown to be above the agent's own{_name_of(evidence)}: {gain}{more}"


def _name_of(evidence: Evidence) -> str:
    """The agent's hardest choice to beat, in words; nothing where it is a random draw."""
    own = {"votes": ", by votes", "greedy": ", its greedy reply", "prior": ", by votes and its greedy reply"}
    return own.get(evidence.own, "")


def _of_credit(credit: Credit, held_back: str, *, credited: bool) -> str:
    low, high = credit.interval
    behind = [name for name, lead in credit.leads.items() if lead.interval[0] <= 0]
    if not credited and low > 0 and behind and credit.enough:
        return (
            "the actions that it prefers are not shown to have earned more than those that "
            f"{' and '.join(_PREFERRED_BY[name] for name in behind)} prefers: correlation "
            + ", ".join(_lead_text(name, credit) for name in behind)
        )
    said = "earned more" if credited or low > 0 else "are not shown to have earned more"
    few = "" if credit.enough else f", and a licence by credit takes {_lacking(credit, held_back)}"
    return (
        f"the actions that it prefers {said} than was expected: correlation "
        f"{credit.correlation:.2f} ({low:.2f} to {high:.2f} by three standard errors) over {credit.steps:,} "
        f"recorded steps of {credit.units:,} held-back {held_back}{few}"
    )


def _lacking(credit: Credit, held_back: str) -> str:
    needed = {held_back: (FEWEST_UNITS, credit.units)} | {"episodes": (FEWEST_EPISODES, credit.episodes)}
    takes = " and ".join(f"{n} {kind}" for kind, (n, _) in needed.items())
    lacks = {kind: n - found for kind, (n, found) in needed.items() if n > found}
    more = " and ".join(f"{n} more {kind if n > 1 else kind[:-1]}" for kind, n in lacks.items())
    return f"{takes}: record {more}"


def _lead_text(name: str, credit: Credit) -> str:
    lead = credit.leads[name]
    low, high = lead.interval
    return f"{lead.difference:+.2f} over {name} ({low:+.2f} to {high:+.2f}, {lead.steps:,} steps)"


def show_licence(trained: Manifest, console: Console) -> None:
    """Print the table of choosers, then the verdict."""
    licence = trained.licence
    if licence is None:
        console.print(f"licence: none, it {trained.remark}", markup=False, soft_wrap=True)
        return
    if licence.choosers:
        console.print(_choosers(licence))
    if licence.ceiling is not None:
        console.print(
            f"noise ceiling: a Q model that knew the expected outcomes would have about {licence.ceiling:.0%} "
            "of pairs in the order of these outcomes",
            soft_wrap=True,
        )
    if licence.judged_by:
        by = ", ".join(f"{one.name} ({one.tasks:,} tasks, sha256 {one.sha256[:12]})" for one in licence.judged_by)
        console.print(f"judged by {by}", markup=False, soft_wrap=True)
    if licence.granted and "greedy" not in licence.choosers.keys() | licence.leads.keys():
        console.print(
            "these episodes do not tell your agent's greedy reply: it may be as good, so if your agent can play at "
            "temperature 0, compare with that",
            soft_wrap=True,
        )
    verdict = "granted" if licence.granted else "none, not better than your agent's own choice yet"
    console.print(f"licence: {verdict}; {licence.reason}", markup=False, soft_wrap=True)


def show_manifest(manifest: Manifest, console: Console) -> None:
    """Print a manifest's origin, figures, prior and licence."""
    table = Table(show_header=False, box=None)
    for name in ("name", "kind", "environment", "target", "label_range", "trunk", "read_at"):
        if value := getattr(manifest, name):
            table.add_row(name, str(value))
    for name in manifest.metrics:
        table.add_row(name, figure_text(name, manifest.metrics))
    console.print(table)
    if manifest.prior is not None:
        console.print(_prior(manifest.prior), markup=False, soft_wrap=True)
    if manifest.kind != "policy":
        show_licence(manifest, console)


def domain_line(domain: AnyDomain | None) -> str:
    """A domain's size and limits as text."""
    if domain is None:
        return "domain: unknown, so every state is guided; `qguide domain` gives it one"
    if isinstance(domain, SharedDomain):
        return "\n".join(("domain: what its members have in common", *map(domain_line, domain.members)))
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
