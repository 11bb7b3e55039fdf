"""Outcome of an episode by the operator's rules. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from qguide.qnet.types import History
from qguide.server.settings.outcome_rules import OutcomeRule

_EXIT: Final = re.compile(
    r"\b(?:exit(?:ed)?[ _]?(?:with[ _])?(?:code|status)|return[ _]?code)"
    r"[\"']?\s?[:=]?\s?(-?\d{1,10})\b",
    re.IGNORECASE,
)
"""An exit code in words, in JSON or as `exit_code=0`. No part of it repeats without bound."""
_REPORT: Final = re.compile(r"\b(\d{1,9}) (passed|failed|errors?(?= in \d))", re.IGNORECASE)
"""Counts of a line by pytest, Jest, Vitest or cargo, such as "1 failed, 3 passed"."""


def ruled_outcome(
    rules: Sequence[OutcomeRule], history: History, *, final: bool = False
) -> float | None:
    """The outcome by the first rule that holds; None if none does.

    Args:
        history: of the step, with everything that its request brought.
        final: the step's reply calls no tool although there are tools.
    """
    for rule in rules:
        if rule.only_at_end and not final:
            continue
        if (outcome := _outcome_by(rule, history)) is not None:
            return outcome
    return None


def _outcome_by(rule: OutcomeRule, history: History) -> float | None:
    match rule.where:
        case "exit_code":
            return next((o for text in _newest(history) if (o := _by_exit(text)) is not None), None)
        case "test_report":
            reports = (_by_tests(text) for text in _newest(history))
            return next((share for share in reports if share is not None), None)
        case "last_message":
            text: str | None = history[-1].text
        case "last_tool_result":
            text = _last_tool_result(history)
    if text is None:
        return rule.outcome if not (rule.contains or rule.lacks) else None
    holds = rule.contains in text and not (rule.lacks and rule.lacks in text)
    return rule.outcome if holds else None


def _last_tool_result(history: History) -> str | None:
    """Results behind the last reply, one line each; None if there are none."""
    results: list[str] = []
    for message in reversed(history):
        if message.role == "assistant":
            break
        if message.role == "tool":
            results.append(message.content)
    return "\n".join(reversed(results)) if results else None


def _newest(history: History) -> Iterator[str]:
    """Tools' results and user's messages after replies, newest first."""
    begun = next((i for i, m in enumerate(history) if m.role == "assistant"), len(history))
    for message in reversed(history[begun:]):
        if message.role in ("tool", "user"):
            yield message.content


def _by_exit(text: str) -> float | None:
    codes = _EXIT.findall(text)
    return float(int(codes[-1]) == 0) if codes else None


def _by_tests(text: str) -> float | None:
    """Share of tests that passed by the last line that counts any."""
    for line in reversed(text.splitlines()):
        if line.lstrip().startswith("Snapshots:"):  # Jest's last line counts no tests
            continue
        counts = [(word.lower(), int(number)) for number, word in _REPORT.findall(line)]
        if total := sum(number for _, number in counts):
            return sum(number for word, number in counts if word == "passed") / total
    return None
