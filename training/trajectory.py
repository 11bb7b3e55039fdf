"""Steps of an episode, and the chat that they make (QLASS equation 6).

A state is the first observation, then replies and observations in turn. A reply is ReAct's
"Thought: … Action: …"; the environment gets the bare action alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qnet.types import History, Message

ACTION_PREFIX = "Action:"


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a trajectory and what it did.

    Attributes:
        action: the whole reply.
        reward: outcome reward of an episode that ends here.
        valid: False where the action meant nothing to the environment.
    """

    action: str
    observation: str
    reward: float = 0.0
    terminated: bool = False
    valid: bool = True


def observation_message(observation: str) -> Message:
    """An observation as the chat sees it."""
    return Message("user", observation)


def path_history(first_observation: str, steps: Sequence[Step]) -> History:
    """The chat after these steps."""
    messages = [observation_message(first_observation)]
    for step in steps:
        messages += step_messages(step)
    return tuple(messages)


def step_messages(step: Step) -> History:
    """The reply and the observation of one step."""
    return Message("assistant", step.action), observation_message(step.observation)


def parse_action(reply: str) -> str:
    """The bare action of a ReAct reply: what follows the last "Action:" on its line.

    A reply without the marker yields "", which means nothing to an environment.
    """
    _, marker, rest = reply.rpartition(ACTION_PREFIX)
    return rest.strip().split("\n", 1)[0].strip() if marker else ""


def react_reply(thought: str, action: str) -> str:
    """The ReAct reply "Thought: … Action: …" that `parse_action` reads back."""
    return f"Thought: {thought}\n{ACTION_PREFIX} {action}"


def action_key(reply: str) -> str:
    """The part of a reply that acts: equal for two replies that differ in their thoughts alone.

    Such replies lead to the same state, so as siblings their labels would tell a Q model nothing.
    A reply without a marker is its own key.
    """
    return parse_action(reply) or reply.strip()


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The form that an environment's episodes have as chats.

    Attributes:
        system: the system message before the first observation, None for none.
        parse_action: from a whole reply to the bare action.
    """

    system: str | None = None
    parse_action: Callable[[str], str] = parse_action

    def history(self, first_observation: str, steps: Sequence[Step]) -> History:
        """The chat after these steps, the system message included."""
        before = () if self.system is None else (Message("system", self.system),)
        return (*before, *path_history(first_observation, steps))


REACT = ChatFormat()
"""Replies in ReAct's form, and no system message."""
