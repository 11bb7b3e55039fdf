"""The fake upstream as a judge: a rule over the question's text, in place of a model's opinion.

The value of a proposal is the share of its words that the task has, where the task is the
conversation's first user message; an action that the agent has already taken has the value 0. Only
the line after "Action:" counts, if there is one.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.judging.prompt import CONVERSATION, HIGHEST, RANK_QUESTION, SCORE_QUESTION
from qguide.qnet.openai_messages import text_of

_ACTION = "Action:"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a judge's question.

    Attributes:
        text: a digit, or a list of numbers.
        probabilities: of the digits that a score lies between; empty for a ranking.
    """

    text: str
    probabilities: Mapping[str, float]

    def logprobs(self) -> Json | None:
        """OpenAI's `logprobs`, by which the mean digit is the rule's value; None for a ranking."""
        if not self.probabilities:
            return None
        top = [_token(digit, p) for digit, p in self.probabilities.items() if p > 0]
        token = _token(self.text, self.probabilities[self.text])
        return {"content": [{**token, "top_logprobs": top}], "refusal": None}


def read_question(messages: Sequence[Mapping[str, Any]]) -> Verdict | None:
    """The rule's answer to the last message; None if it is no question of a judge."""
    text = text_of(messages[-1].get("content"))
    if not text.startswith(CONVERSATION):
        return None
    objects = [json.loads(line) for line in text.split("\n") if line.startswith("{")]
    proposals = [entry["text"] for entry in objects if "role" not in entry]
    turns = [(entry["role"], entry["text"]) for entry in objects if "role" in entry]
    values = [proposal_value(turns, proposal) for proposal in proposals]
    if text.endswith(SCORE_QUESTION):
        return _score(values[0])
    if text.endswith(RANK_QUESTION.format(count=len(proposals))):
        order = sorted(range(len(values)), key=lambda i: -values[i])
        return Verdict(json.dumps([i + 1 for i in order]), {})
    return None


def proposal_value(turns: Sequence[tuple[str, str]], proposal: str) -> float:
    """The rule's value, in [0, 1]."""
    action = _action_of(proposal)
    if any(role == "assistant" and _action_of(text) == action for role, text in turns):
        return 0.0
    task = next((_words(text) for role, text in turns if role == "user"), set())
    words = _words(action)
    return len(words & task) / len(words) if words else 0.0


def _score(value: float) -> Verdict:
    """The digits around the value, with probabilities whose mean is the value."""
    low, share = divmod(value * HIGHEST, 1)
    probabilities = {str(int(low)): 1 - share}
    if share:
        probabilities[str(int(low) + 1)] = share
    return Verdict(max(probabilities, key=lambda digit: probabilities[digit]), probabilities)


def _token(digit: str, probability: float) -> Json:
    return {"token": digit, "logprob": math.log(probability), "bytes": list(digit.encode())}


def _action_of(text: str) -> str:
    return text.rpartition(_ACTION)[2].strip().lower()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
