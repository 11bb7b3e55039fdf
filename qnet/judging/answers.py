"""Scores and rankings, read from a judge's answers. Pure; a score is never invented."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from qnet.errors import JudgeAnswerError
from qnet.judging.prompt import HIGHEST
from qnet.types import Candidate

_SHOWN_CHARACTERS: Final = 80
_SCORE: Final = re.compile(
    rf"(?:score\s*[:=]?\s*)?([0-9](?:\.[0-9]+)?)(?:\s*/\s*{HIGHEST})?", re.IGNORECASE
)
_LIST: Final = re.compile(r"\[[^\[\]]*\]")
_AROUND: Final = " \t\r\n*_`.:=\"'()[]"
"""Characters that may surround a score, such as those of Markdown."""


class _Alternative(BaseModel):
    model_config = ConfigDict(frozen=True)

    token: str
    logprob: float | None = None


class _Token(_Alternative):
    top_logprobs: list[_Alternative] = []


class _Logprobs(BaseModel):
    model_config = ConfigDict(frozen=True)

    content: list[_Token] | None = None


def read_score(answer: Candidate, *, judge: str) -> float:
    """The score of an answer, in [0, 1].

    With the probabilities of the score's token it is the mean over the digits,
    sum_d p(d) d / sum_d p(d), of which ties between candidates are rare. Otherwise it is the digit
    itself. Text before the last line, such as a thought, is not read.

    Raises:
        JudgeAnswerError: the last line is not one score from 0 to 9.
    """
    text = answer.message.content
    found = _SCORE.fullmatch(_last_line(text))
    if found is None or float(found[1]) > HIGHEST:
        raise JudgeAnswerError(
            f"judge {judge} answered {_beginning(text)}, which does not end in one number from 0 "
            f"to {HIGHEST}{_cut_off(answer)}; change its prompt_file, or choose a model that keeps "
            "to the form"
        )
    mean = _mean_digit(answer.logprobs, found[1])
    return (float(found[1]) if mean is None else mean) / HIGHEST


def read_ranking(answer: Candidate, count: int, *, judge: str) -> tuple[float, ...]:
    """The scores of a ranking, in [0, 1]: 1 for the first, 0 for the last, in equal steps.

    Args:
        count: number of candidates, at least 2.

    Raises:
        JudgeAnswerError: the answer's last list does not hold every number from 1 to `count` once.
    """
    text = answer.message.content
    order = _last_list(text)
    if sorted(order) != list(range(1, count + 1)):
        raise JudgeAnswerError(
            f"judge {judge} answered {_beginning(text)}, which does not end in a list of the "
            f"numbers 1 to {count}, each once{_cut_off(answer)}; change its prompt_file, or choose "
            "a model that keeps to the form"
        )
    place = {number: index for index, number in enumerate(order)}
    return tuple(1 - place[number] / (count - 1) for number in range(1, count + 1))


def _last_line(text: str) -> str:
    lines = [line.strip(_AROUND) for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _last_list(text: str) -> list[int]:
    """The integers of the last JSON list; empty if there is none."""
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
    # From the end, because digits may stand in a thought before the score.
    place = next((t for t in reversed(tokens) if t.token.strip(_AROUND) == score), None)
    return _mean(place.top_logprobs) if place else None


def _mean(alternatives: Sequence[_Alternative]) -> float | None:
    weights = [
        (int(digit), math.exp(min(alternative.logprob, 0.0)))
        for alternative in alternatives
        if alternative.logprob is not None
        and re.fullmatch("[0-9]", digit := alternative.token.strip(_AROUND))
    ]
    total = math.fsum(weight for _, weight in weights)
    return math.fsum(digit * weight for digit, weight in weights) / total if total else None


def _beginning(text: str) -> str:
    shown = text[:_SHOWN_CHARACTERS]
    return repr(shown) + ("…" if len(text) > len(shown) else "")


def _cut_off(answer: Candidate) -> str:
    return "" if answer.finished else " and was cut off by max_tokens"
