"""Outcome of an episode by the operator's rules: the rules, and what they say of a history."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from qguide.qnet.types import History


class OutcomeRule(BaseModel, frozen=True, extra="forbid"):
    """A condition on a step that ends its episode, and the outcome; the first that holds counts.

    Attributes:
        where: what is read: `last_tool_result` is the results behind the policy's last reply, `last_message` the last
            message, whatever its role. `exit_code` (success is 0) and `test_report` (the share of tests that passed)
            are read from the newest result or user's message that has one.
        contains: text that must stand there.
        lacks: text that must not stand there.
        outcome: the outcome, 0 to 1; `exit_code` and `test_report` have their own.
        final: the rule holds only if the step's reply calls no tool although the request has tools, so that the agent
            is at its end; always so of `exit_code` and `test_report`.
    """

    where: Literal["last_tool_result", "last_message", "exit_code", "test_report"]
    contains: str = ""
    lacks: str = ""
    outcome: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    final: bool = False

    @property
    def reads_outcome(self) -> bool:
        """True if the outcome is read from the text."""
        return self.where in ("exit_code", "test_report")

    @property
    def greatest(self) -> float:
        """The greatest outcome that it can give."""
        return 1.0 if self.reads_outcome else self.outcome or 0.0

    @property
    def only_at_end(self) -> bool:
        """True if it holds only of an agent's final reply."""
        return self.final or self.reads_outcome

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.reads_outcome:
            if self.contains or self.lacks or self.outcome is not None:
                raise ValueError(f"{self.where} reads its outcome itself; leave contains, lacks and outcome out")
        elif self.outcome is None:
            raise ValueError(f"{self.where} needs an outcome; give one from 0 to 1")
        elif not (self.contains or self.lacks or self.final):
            raise ValueError(
                "neither contains nor lacks is given, so every step would end its episode; give "
                'one of them, or "final": true'
            )
        return self


_EXIT: Final = re.compile(
    r"\b(?:exit(?:ed)?[ _]?(?:with[ _])?(?:code|status)|return[ _]?code)"
    r"[\"']?\s?[:=]?\s?(-?\d{1,10})\b",
    re.IGNORECASE,
)
"""An exit code in words, in JSON or as `exit_code=0`. No part of it repeats without bound."""
_REPORT: Final = re.compile(r"\b(\d{1,9}) (passed|failed|errors?(?= in \d))", re.IGNORECASE)
"""Counts of a line by pytest, Jest, Vitest or cargo, such as "1 failed, 3 passed"."""


def ruled_outcome(rules: Sequence[OutcomeRule], history: History, *, final: bool = False) -> float | None:
    """The outcome by the first rule that holds; None if none does.

    Args:
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
            codes = next(filter(None, map(_EXIT.findall, _newest(history))), None)
            return float(int(codes[-1]) == 0) if codes else None
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


def _by_tests(text: str) -> float | None:
    """Share of tests that passed by the last line that counts any."""
    for line in reversed(text.splitlines()):
        if line.lstrip().startswith("Snapshots:"):  # Jest's last line counts no tests
            continue
        counts = [(word.lower(), int(number)) for number, word in _REPORT.findall(line)]
        if total := sum(number for _, number in counts):
            return sum(number for word, number in counts if word == "passed") / total
    return None
