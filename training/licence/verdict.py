"""Verdict on a Q model in the words of its manifest."""

from qguide.qnet.models.manifest import Licence, LicenceFigures, LicenceLead
from qguide.training.licence.credit import Credit
from qguide.training.licence.evidence import ChooserFigures, Evidence

_PREFERRED_BY = {
    "votes": "the vote",
    "greedy": "the greedy reply",
    "prior": "the vote with the greedy reply",
}


def licence_of(evidence: Evidence, credit: Credit | None = None) -> Licence:
    """The section of a manifest: granted if either kind of evidence is above chance.

    Args:
        evidence: on held-back decisions.
        credit: on recorded steps, where the learner gives advantages.
    """
    credited = credit is not None and credit.licensed
    return Licence(
        granted=evidence.licensed or credited,
        reason=_reason(evidence, credit, credited=credited),
        decisions=evidence.decisions,
        tasks=evidence.tasks,
        pairs=evidence.pairs,
        choosers={name: _figures(own, evidence) for name, own in evidence.choosers.items()},
        own=evidence.own,
        gain=evidence.gain,
        gain_interval=evidence.gain_interval,
        ceiling=evidence.ceiling,
        credit=None if credit is None else credit.correlation,
        credit_interval=None if credit is None else credit.interval,
        credit_tasks=0 if credit is None else credit.tasks,
        leads={
            name: LicenceLead(difference=lead.difference, interval=lead.interval, steps=lead.steps)
            for name, lead in (credit.leads.items() if credit else ())
        },
        missing_decisions=0 if credited else evidence.missing_decisions,
    )


def _reason(evidence: Evidence, credit: Credit | None, *, credited: bool) -> str:
    parts = [_of_decisions(evidence)]
    if credit is not None and (credited or not evidence.licensed):
        parts.append(_of_credit(credit, credited=credited))
    return "; ".join(parts)


def _of_decisions(evidence: Evidence) -> str:
    low, high = evidence.gain_interval
    over = f"{evidence.decisions:,} held-back decisions of {evidence.tasks:,} tasks"
    gain = f"{evidence.gain:+.3f} ({low:+.3f} to {high:+.3f}) in outcome over {over}"
    if evidence.licensed:
        return f"its choice is above the agent's own{_name_of(evidence)}: {gain}"
    missing = evidence.missing_decisions
    if not evidence.choosers:
        return "no held-back decision differs in outcome, so its choices cannot be judged"
    more = f", which about {missing:,} more decisions would show" if missing else ""
    return f"its choice is not shown to be above the agent's own{_name_of(evidence)}: {gain}{more}"


def _name_of(evidence: Evidence) -> str:
    """The agent's hardest choice to beat, in words; nothing where it is a random draw."""
    own = {
        "votes": ", by votes",
        "greedy": ", its greedy reply",
        "prior": ", by votes and its greedy reply",
    }
    return own.get(evidence.own, "")


def _of_credit(credit: Credit, *, credited: bool) -> str:
    low, high = credit.interval
    behind = [name for name, lead in credit.leads.items() if lead.interval[0] <= 0]
    if not credited and low > 0 and behind:
        return (
            "the actions that it prefers are not shown to have earned more than those that "
            f"{' and '.join(_PREFERRED_BY[name] for name in behind)} prefers: correlation "
            + ", ".join(_lead_text(name, credit) for name in behind)
        )
    said = "earned more" if credited else "are not shown to have earned more"
    return (
        f"the actions that it prefers {said} than was expected: correlation "
        f"{credit.correlation:.2f} ({low:.2f} to {high:.2f}) over {credit.steps:,} recorded steps "
        f"of {credit.tasks:,} held-back tasks"
    )


def _lead_text(name: str, credit: Credit) -> str:
    lead = credit.leads[name]
    low, high = lead.interval
    return f"{lead.difference:+.2f} over {name} ({low:+.2f} to {high:+.2f}, {lead.steps:,} steps)"


def _figures(own: ChooserFigures, evidence: Evidence) -> LicenceFigures:
    return LicenceFigures(
        outcome=own.outcome,
        interval=own.interval,
        regret=own.regret,
        pair_accuracy=own.pair_accuracy,
        pair_interval=own.pair_interval,
        decisions=own.decisions if own.decisions < evidence.decisions else None,
    )
