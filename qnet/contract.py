"""Checks of a contract that someone else's code has to keep, with what was found."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from qguide.qnet.errors import QGuideError
from qguide.qnet.packages import raised_text

Subject = TypeVar("Subject")

Outcome = Literal["passed", "failed", "not checked"]


class ContractError(QGuideError):
    """Something does not keep to its contract; the message says what it did instead."""


class NotCheckedError(QGuideError):
    """A check does not apply to something; the message says why."""


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """One rule of a contract.

    Attributes:
        rule: what holds of everything under the contract.
        run: raises `ContractError` if it does not hold.
        remedy: what to change then.
    """

    rule: str
    run: Callable[[Subject], None]
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: Check[Any]
    outcome: Outcome
    detail: str = ""


def require(holds: bool, problem: str) -> None:
    """Raise `ContractError` with the problem unless a condition holds."""
    if not holds:
        raise ContractError(problem)


def finding_of(check: Check[Subject], subject: Subject) -> Finding:
    """Run one check; whatever the subject raises fails it."""
    try:
        check.run(subject)
    except NotCheckedError as error:
        return Finding(check, "not checked", str(error))
    except QGuideError as error:
        return Finding(check, "failed", str(error))
    except Exception as error:  # someone else's code
        return Finding(check, "failed", raised_text(error))
    return Finding(check, "passed")


def findings_of(checks: Iterable[Check[Subject]], subject: Subject) -> list[Finding]:
    """Run checks in order."""
    findings: list[Finding] = []
    for check in checks:
        findings.append(told_once(finding_of(check, subject), findings))
    return findings


def told_once(finding: Finding, before: Sequence[Finding]) -> Finding:
    """The finding; one cause is one failure, so what fails as an earlier check did is not checked."""
    if finding.outcome == "failed" and finding.detail in {each.detail for each in before}:
        return Finding(finding.check, "not checked", "it fails as above")
    return finding
