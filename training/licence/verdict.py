"""Verdict on a Q model in the words of its manifest."""

from qnet.models.licence import Licence, LicenceFigures
from training.licence.credit import Credit
from training.licence.evidence import ChooserFigures, Evidence


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
        choosers={name: _figures(own) for name, own in evidence.choosers.items()},
        gain=evidence.gain,
        gain_interval=evidence.gain_interval,
        ceiling=evidence.ceiling,
        credit=None if credit is None else credit.correlation,
        credit_interval=None if credit is None else credit.interval,
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
        return f"its choice is above the agent's own: {gain}"
    missing = evidence.missing_decisions
    if not evidence.choosers:
        return "no held-back decision differs in outcome, so its choices cannot be judged"
    more = f", which about {missing:,} more decisions would show" if missing else ""
    return f"its choice is not shown to be above the agent's own: {gain}{more}"


def _of_credit(credit: Credit, *, credited: bool) -> str:
    low, high = credit.interval
    said = "earned more" if credited else "are not shown to have earned more"
    return (
        f"the actions that it prefers {said} than was expected: correlation "
        f"{credit.correlation:.2f} ({low:.2f} to {high:.2f}) over {credit.steps:,} recorded steps "
        f"of {credit.tasks:,} held-back tasks"
    )


def _figures(own: ChooserFigures) -> LicenceFigures:
    return LicenceFigures(
        outcome=own.outcome,
        interval=own.interval,
        regret=own.regret,
        pair_accuracy=own.pair_accuracy,
        pair_interval=own.pair_interval,
    )
