"""Mock LLM of the help desk: it knows the tools, half of the tables, and forgets policies."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.strangers.helpdesk import CHANNELS, COMPLAINTS, REMEDIES, TEAMS, case, desk
from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, tool
from benchmarks.strangers.worlds import shared_out
from qguide.qnet.types import History, ToolCall

_STEPS: Final = ("find_order", "find_customer", "assign", "resolve", "notify", "close_ticket")
_TICKET = re.compile(r"Ticket: (\w+ \w+) writes that order (\d+) ([^.]+)\.")
_CUSTOMER = re.compile(r"is a (\w+) customer in the (\w+)\.")
_ORDER = re.compile(r"Order \d+ is a (\w+)\.")
_REFUSED = ("sends the ticket back", "error", "already")


@dataclass(frozen=True)
class _State:
    """The state of a ticket as the mock reads it; "" where it has not read something.

    Attributes:
        done: tools that had their effect.
        failed: the last call, if it was refused.
        sent_back: teams that sent the ticket back.
    """

    name: str
    order: str
    complaint: str
    product: str
    tier: str
    region: str
    done: frozenset[str]
    failed: ToolCall | None
    sent_back: frozenset[str]


def policy(world: int = 0) -> MockPolicy:
    """The mock that works at the help desk of a world."""
    return MockPolicy("desk-mock", _Beliefs(world).options)


class _Beliefs:
    """Shares by which the mock guesses each table of its desk, and its habits.

    Attributes:
        late: for each complaint, a step that it likes to put off until the ticket is resolved.
    """

    def __init__(self, world: int) -> None:
        secrets, chance = desk(world), Random(f"desk mock {world}")
        self._team = beliefs(secrets.team, TEAMS, chance, known=0.25, misled=0.5)
        self._remedy = beliefs(secrets.remedy, REMEDIES, chance, known=0.2, misled=0.6)
        self._channel = beliefs(secrets.channel, CHANNELS, chance, known=0.2, misled=0.6)
        self.late = shared_out(COMPLAINTS, chance.sample(_STEPS[:3], 2), chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        state = _read(history)
        left = [step for step in _STEPS if step not in state.done]
        late = self.late[state.complaint]
        put_off = late in left and "resolve" in left
        habitual = [step for step in left if step != late]
        if late in left:
            habitual.insert(habitual.index("resolve") + 1 if put_off else 0, late)
        found = list(_mistakes(state))
        for place, step in enumerate(habitual):
            weight = 0.6 if place == 0 else 0.25 * 0.5**place
            found += self._step(state, step, weight, step != left[0])
        return found

    def _step(self, state: _State, step: str, weight: float, early: bool) -> Iterator[Option]:
        """The calls that do a step, by what the mock believes.

        Args:
            state: the ticket's.
            step: a tool.
            weight: of all of its calls.
            early: steps before it are left out.
        """
        if step == "find_order":
            yield tool(step, {"number": state.order}, weight)
        elif step == "find_customer":
            yield tool(step, {"name": state.name}, weight)
        elif step == "close_ticket":
            yield tool(step, {}, weight, "stop" if early else "")
        else:
            argument, shares = self._guesses(state, step)
            forgets = early and step == "resolve"
            for value, share in shares.items():
                tried = step == "assign" and value in state.sent_back
                kind: Mistake = "rule" if forgets else "skip" if early else "guess"
                yield tool(step, {argument: value}, weight * share * (0.1 if tried else 1), kind)

    def _guesses(self, state: _State, step: str) -> tuple[str, Mapping[str, float]]:
        """The argument of a tool, and the shares of its values."""
        if step == "assign":
            return "team", self._team.get(state.product) or _even(TEAMS)
        if step == "resolve":
            known = self._remedy.get(case(state.complaint, state.tier))
            return "remedy", known or _even(REMEDIES)
        return "channel", self._channel.get(state.region) or _even(CHANNELS)


def _even(values: tuple[str, ...]) -> dict[str, float]:
    return dict.fromkeys(values, 1 / len(values))


def _mistakes(state: _State) -> Iterator[Option]:
    """Carelessness of every state."""
    yield tool("find_customer", {"name": state.name.split()[0]}, 0.03, "malformed")
    yield tool("assign", {"group": "support"}, 0.03, "malformed")
    yield tool("close_ticket", {}, 0.02, "stop")
    if state.failed is not None:
        yield tool(state.failed.name, _arguments(state.failed), 0.05, "repeat")


def _arguments(call: ToolCall) -> dict[str, str]:
    return dict(re.findall(r'"(\w+)": "([^"]*)"', call.canonical_arguments))


def _read(history: History) -> _State:
    """The state that a history tells."""
    turns = [message for message in history if message.role != "system"]
    ticket = _TICKET.search(turns[0].content)
    assert ticket is not None
    done, sent_back, failed = set[str](), set[str](), None
    product = tier = region = ""
    for reply, answer in zip(turns[1::2], turns[2::2], strict=True):
        failed = None
        for call in reply.tool_calls:
            if any(word in answer.content for word in _REFUSED):
                failed = call
                if call.name == "assign":
                    sent_back.update(_arguments(call).values())
                continue
            done.add(call.name)
        if order := _ORDER.search(answer.content):
            product = order[1]
        if customer := _CUSTOMER.search(answer.content):
            tier, region = customer.groups()
    name, number, complaint = ticket.groups()
    return _State(name, number, complaint, product, tier, region, frozenset(done), failed, frozenset(sent_back))
