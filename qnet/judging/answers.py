"""Scores and rankings, read from a judge's answers. Pure; a score is never invented."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ValidationError

from qguide.qnet.chat_messages import json_object
from qguide.qnet.errors import JudgeAnswerError
from qguide.qnet.judging.prompt import HIGHEST
from qguide.qnet.judging.settings import REASON
from qguide.qnet.types import Candidate, Verdict

_SHOWN_CHARACTERS: Final = 80
_REASON_CHARACTERS: Final = 300
_OBJECT_CHARACTERS: Final = 8_000  # longest object of verdicts that is looked for, at the answer's end
_SCORE: Final = re.compile(rf"(?:score\s*[:=]?\s*)?([0-9](?:\.[0-9]+)?)(?:\s*/\s*{HIGHEST})?", re.IGNORECASE)
_BARE_SCORE: Final = re.compile(r"[0-9](\.[0-9]+)?")
_LIST: Final = re.compile(r"\[[^\[\]]*\]")
_BEFORE: Final = " \t\r\n*_`:=\"'()[]"
_AFTER: Final = _BEFORE + "."  # characters that may surround a score, such as those of Markdown


class _Alternative(BaseModel, frozen=True):
    token: str
    logprob: float | None = None


class _Token(_Alternative):
    top_logprobs: list[_Alternative] = []


class _Logprobs(BaseModel, frozen=True):
    content: list[_Token] | None = None


def read_score(answer: Candidate, *, judge: str) -> float:
    """The score of an answer, in [0, 1].

    With the probabilities of the score's token it is the mean over the digits, sum_d p(d) d / sum_d p(d), of which ties
    between candidates are rare. Otherwise it is the digit itself. Text before the last line, such as a thought, is not
    read. Of an answer that was cut off the last line may be any line, so it has to be the score alone.
    """
    text = answer.message.content
    last_line = next((line for line in map(_bare, reversed(text.splitlines())) if line), "")
    found = _SCORE.fullmatch(last_line)
    whole = answer.finished or _BARE_SCORE.fullmatch(text.strip())
    if found is None or not whole or not _is_score(found[1]):
        raise _unreadable(answer, judge, f"one number from 0 to {HIGHEST}") from _said(text)
    mean = _mean_digit(answer.logprobs, found[1])
    return (float(found[1]) if mean is None else mean) / HIGHEST


def read_ranking(answer: Candidate, count: int, *, judge: str) -> tuple[float, ...]:
    """The scores of a ranking, in [0, 1]: 1 for the first, 0 for the last, in equal steps."""
    text = answer.message.content
    order = _last_list(text)
    whole = answer.finished or _LIST.fullmatch(text.strip())
    if not whole or sorted(order) != list(range(1, count + 1)):
        form = f"a list of the numbers 1 to {count}, each once"
        raise _unreadable(answer, judge, form) from _said(text)
    place = {number: index for index, number in enumerate(order)}
    return tuple(1 - place[number] / (count - 1) for number in range(1, count + 1))


def read_verdict(answer: Candidate, criteria: Collection[str], *, judge: str) -> Verdict:
    """The verdict by each criterion and the reason, which is cut to 300 characters."""
    text = answer.message.content
    said = _last_object(text)
    whole = answer.finished or _bare_object(text).startswith("{")
    scores = {name: said.get(name) for name in criteria}
    verdicts = {
        name: float(score)
        for name, score in scores.items()
        if isinstance(score, int | float) and not isinstance(score, bool) and _is_score(str(score))
    }
    if not whole or len(verdicts) < len(scores):
        form = f"a JSON object with a number from 0 to {HIGHEST} for each of {', '.join(criteria)}"
        raise _unreadable(answer, judge, form) from _said(text)
    reason = said.get(REASON)
    line = " ".join(reason.split()) if isinstance(reason, str) else ""
    # A lone surrogate, which JSON can hold, has no UTF-8.
    return Verdict(verdicts, line[:_REASON_CHARACTERS].encode(errors="replace").decode())


def weighted_score(verdict: Verdict, weights: Mapping[str, float]) -> float:
    """The weighted mean of the verdicts, in [0, 1]."""
    total = math.fsum(weights.values())
    weighted = (weight * verdict.criteria[name] for name, weight in weights.items())
    return math.fsum(weighted) / total / HIGHEST


def _last_object(text: str) -> dict[str, object]:
    """The JSON object in which a text ends; empty if there is none."""
    end = _bare_object(text)[-_OBJECT_CHARACTERS:]
    start = len(end)
    while (start := end.rfind("{", 0, start)) >= 0:
        if (found := json_object(end[start:])) is not None:  # else a brace within a string, or of an inner object
            return found
    return {}


def _bare_object(text: str) -> str:
    return text.strip().removeprefix("```json").strip("`").strip()


def _is_score(number: str) -> bool:
    """True for a number of the scale; a fraction up to 1 may be of the scale from 0 to 1."""
    return 0 <= float(number) <= HIGHEST and ("." not in number or float(number) > 1)


def _bare(text: str) -> str:
    return text.lstrip(_BEFORE).rstrip(_AFTER)


def _last_list(text: str) -> list[int]:
    lists = _LIST.findall(text)
    try:
        order = json.loads(lists[-1]) if lists else []
    except ValueError:
        return []
    return order if all(type(number) is int for number in order) else []


def _mean_digit(logprobs: Mapping[str, object] | None, score: str) -> float | None:
    """Mean of the digits that could have stood at the score's place; None if it is unknown."""
    try:
        tokens = _Logprobs.model_validate(logprobs or {}).content or []
    except ValidationError:  # a shape of the upstream's own
        return None
    # The first of its line: in "9/9" the second is the scale's end.
    place = next((t for t in _tokens_of_last_line(tokens) if _bare(t.token) == score), None)
    return _mean(place.top_logprobs) if place else None


def _tokens_of_last_line(tokens: Sequence[_Token]) -> list[_Token]:
    lines: list[list[_Token]] = [[]]
    for token in tokens:
        said = token.token.strip()
        before, _, after = token.token.partition(said) if said else (token.token, "", "")
        if "\n" in before:
            lines.append([])
        lines[-1].append(token)
        if "\n" in after:
            lines.append([])
    return next((line for line in reversed(lines) if any(_bare(t.token) for t in line)), [])


def _mean(alternatives: Sequence[_Alternative]) -> float | None:
    weights = [
        (int(digit), math.exp(min(alternative.logprob, 0.0)))
        for alternative in alternatives
        if alternative.logprob is not None and re.fullmatch("[0-9]", digit := _bare(alternative.token))
    ]
    total = math.fsum(weight for _, weight in weights)
    return math.fsum(digit * weight for digit, weight in weights) / total if total else None


def _unreadable(answer: Candidate, judge: str, form: str) -> JudgeAnswerError:
    """The error for the caller, who must not see the answer: it may quote the operator's prompt."""
    fault, remedy = "", "change its prompt_file"
    if not answer.finished:
        fault, remedy = " and was cut off by max_tokens", "raise it, change its prompt_file"
    return JudgeAnswerError(
        f"judge {judge} gave an answer that does not end in {form}{fault}; {remedy}, or choose a "
        "model that keeps to the form"
    )


def _said(text: str) -> ValueError:
    """The answer's beginning as a cause, because the log has messages of exceptions at DEBUG."""
    return ValueError(f"it begins with {text[:_SHOWN_CHARACTERS]!r}")
