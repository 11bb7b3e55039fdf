"""Mock LLM: a policy that draws its replies from a distribution that is written down.

It knows the tools and half of the facts, and makes mistakes of several kinds. The distribution is
one at temperature 1; temperature 0 takes its mode, and every candidate carries its log-probability.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from random import Random
from typing import Literal

from qguide.qnet.types import Candidate, History, Message, SampleRequest, Sampling, ToolCall
from qguide.training.trajectory import react_reply

Mistake = Literal["", "guess", "malformed", "skip", "repeat", "stop", "rule"]
"""Kinds of mistakes: none; a guessed value, which may be right; an ill-formed action; a step left
out; a failed action once more; an end too early; a rule that was told and is not kept."""

Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Option:
    """A reply that the mock may give in one state.

    Attributes:
        weight: share of the draws; the weights of a state need not add up to 1.
        mistake: its kind; "" for the reply of a careful agent.
    """

    reply: Message
    weight: float
    mistake: Mistake = ""


def text(action: str, weight: float, mistake: Mistake = "") -> Option:
    """An option that is a bare text action in ReAct's form."""
    return Option(Message("assistant", f"Action: {action}"), weight, mistake)


def tool(name: str, arguments: Mapping[str, str], weight: float, mistake: Mistake = "") -> Option:
    """An option that calls one tool."""
    call = ToolCall(name, json.dumps(dict(arguments)))
    return Option(Message("assistant", "", (call,)), weight, mistake)


Options = Callable[[History], Sequence[Option]]
"""The replies of a mock in a state."""


class MockPolicy:
    """A policy of explicit options; see `Policy` and `BatchPolicy` of `qguide.qnet.types`.

    Args:
        options: its distribution.
        thoughts: what it says before a text action, at random; such replies act alike.
    """

    def __init__(self, name: str, options: Options, thoughts: Sequence[str] = ()) -> None:
        self.name = name
        self.options = options
        self._thoughts = tuple(thoughts)

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` replies."""
        return self._draw(history, n, sampling)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Draw the replies of each request."""
        return [self._draw(each.history, each.n, each.sampling) for each in requests]

    def _draw(self, history: History, n: int, sampling: Sampling) -> list[Candidate]:
        options = merged(self.options(history))
        total = sum(option.weight for option in options)
        temperature = 1.0 if sampling.temperature is None else sampling.temperature
        chance = Random(sampling.seed)
        mode = max(options, key=lambda option: option.weight)
        if temperature == 0:
            drawn = [mode] * n
        else:
            powers = [(option.weight / total) ** (1 / temperature) for option in options]
            drawn = chance.choices(options, powers, k=n)
        if sampling.first_greedy:
            drawn = [mode, *drawn[1:]]
        turn = sum(message.role == "assistant" for message in history)
        return [self._candidate(option, total, turn, chance) for option in drawn]

    def _candidate(self, option: Option, total: float, turn: int, chance: Random) -> Candidate:
        reply, logprob = option.reply, log(option.weight / total)
        if reply.tool_calls:
            calls = [replace(c, id=f"call-{turn}-{i}") for i, c in enumerate(reply.tool_calls)]
            reply = replace(reply, tool_calls=tuple(calls))
        elif self._thoughts:
            said = reply.content.removeprefix("Action: ")
            reply = Message("assistant", react_reply(chance.choice(self._thoughts), said))
            logprob -= log(len(self._thoughts))
        return Candidate(reply, completion_tokens=len(reply.text.split()), logprob=logprob)


def merged(options: Iterable[Option]) -> list[Option]:
    """Options with distinct replies and positive weights; a step that is right stays right."""
    kept: dict[Message, Option] = {}
    for option in options:
        if option.weight <= 0:
            continue
        known = kept.get(option.reply)
        if known is None:
            kept[option.reply] = option
        else:
            weight = known.weight + option.weight
            kept[option.reply] = known if not known.mistake else option
            kept[option.reply] = replace(kept[option.reply], weight=weight)
    return list(kept.values())


def shares(weights: Weights) -> dict[str, float]:
    """Weights that add up to 1."""
    total = sum(weights.values())
    return {value: weight / total for value, weight in weights.items()}


def named(wordings: Mapping[str, Sequence[str]], told: str) -> str:
    """The value that is told in one of its wordings; "" if none is."""
    return next((value for value, said in wordings.items() if any(each in told for each in said)), "")


def beliefs(
    truth: Mapping[str, str],
    values: Sequence[str],
    chance: Random,
    *,
    known: float = 0.3,
    misled: float = 0.35,
    strength: float = 3.0,
) -> dict[str, dict[str, float]]:
    """Shares by which a mock guesses the value of each fact.

    Args:
        truth: the facts.
        values: from which it guesses.
        chance: draws what it knows.
        known: probability that the right value is its favourite.
        misled: probability that a wrong one is.
        strength: weight of a favourite beside 1 for every other value.
    """
    believed = {}
    for fact, right in truth.items():
        weights = dict.fromkeys(values, 1.0)
        luck = chance.random()
        if luck < known:
            weights[right] = strength
        elif luck < known + misled:
            weights[chance.choice([value for value in values if value != right])] = strength
        believed[fact] = shares(weights)
    return believed
