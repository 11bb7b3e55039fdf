"""Steps of an episode, and the chat that they form (QLASS equation 6).

A state is the first observation, followed by alternating replies and observations. A reply has
ReAct's form "Thought: … Action: …"; the environment gets only the bare action.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qguide.qnet.chat_messages import ACTION_PREFIX, message_key
from qguide.qnet.errors import ConfigError
from qguide.qnet.types import History, Message, ToolCall

Tool = Mapping[str, Any]
"""One tool: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


def function_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Tool:
    """A tool that is a function."""
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": function}


def tool_name(tool: Tool) -> str:
    """The name by which replies call a tool."""
    name: str = tool["function"]["name"]
    return name


def read_call(text: str) -> ToolCall:
    """A call that is written as `name({"argument": 1})`."""
    name, bracket, rest = text.strip().partition("(")
    call = ToolCall(name.strip(), rest.removesuffix(")"))
    if not bracket or not name or arguments_of(call) is None:
        raise ConfigError(f'{text!r} is no tool call; write name({{"argument": 1}})')
    return call


def arguments_of(call: ToolCall) -> dict[str, Any] | None:
    """The arguments of a call; None if they are no JSON object."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A candidate that a policy drew in one state.

    Attributes:
        count: how often it was drawn.
        greedy: whether it is the policy's greedy reply; None if that is unknown.
        propensity: probability with which a random choice took it; None if none was made.
    """

    message: Message
    count: int = 1
    greedy: bool | None = None
    propensity: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a trajectory and its effect.

    Attributes:
        reward: outcome reward if the episode ends here.
        terminated: the task is over, won or lost for good; None if a recording ends here and does not say so.
        reply: the reply, if it calls tools; None if `action` is all of it.
        observed: the messages after the reply; None if they are `observation` as a user message, or
            if nothing was recorded and `observation` is empty.
        truncated: the environment's own limit ended the episode here; not recorded in rows.
        tried: False for a candidate that nobody took, of which nothing is known but its reply.
        drawn: the different candidates before the action; empty if unknown. Equal steps may have
            been chosen from other ones.
    """

    action: str
    observation: str
    reward: float = 0.0
    terminated: bool | None = False
    valid: bool = True
    reply: Message | None = None
    observed: History | None = None
    truncated: bool = False
    tried: bool = True
    drawn: tuple[Drawn, ...] = field(default=(), compare=False)

    @classmethod
    def of_messages(
        cls,
        reply: Message,
        observed: History,
        *,
        reward: float = 0.0,
        terminated: bool | None = False,
        valid: bool = True,
        truncated: bool = False,
    ) -> "Step":
        """The step of a reply and the messages after it."""
        text = observation_text(observed)
        return cls(
            reply.text,
            text,
            reward,
            terminated,
            valid,
            reply=reply if reply.tool_calls else None,
            # An empty message is kept, because no messages and no text mean "not recorded".
            observed=None if text and observed == (observation_message(text),) else observed,
            truncated=truncated,
        )

    @property
    def message(self) -> Message:
        """The reply as a chat message."""
        return text_reply(self.action) if self.reply is None else self.reply

    @property
    def ended(self) -> bool:
        """True if the environment goes no further, because the task is over or by its own limit."""
        return self.terminated is not False or self.truncated

    @property
    def unobserved(self) -> bool:
        """True if nothing was recorded after the reply."""
        return not self.observation and self.observed is None

    @property
    def left_open(self) -> bool:
        """True if neither an observation nor an end of the episode was recorded after the reply."""
        return self.unobserved and not self.terminated

    @property
    def key(self) -> str:
        """See `message_key`."""
        return message_key(self.message)


def drawn_of(replies: Sequence[Message], *, first_greedy: bool | None) -> tuple[Drawn, ...]:
    """The different candidates of some draws; empty where the draws tell nothing.

    Args:
        first_greedy: whether the first one was drawn at temperature 0; None if unknown.
    """
    if len(replies) < 2 and not first_greedy:
        return ()
    counts = Counter(replies)
    greedy = {replies[0]: True} if first_greedy else {}
    other = False if first_greedy else None
    return tuple(Drawn(reply, n, greedy.get(reply, other)) for reply, n in counts.items())


def text_reply(text: str) -> Message:
    """A reply that calls no tool."""
    return Message("assistant", text)


def observation_message(observation: str) -> Message:
    """An observation as a chat message."""
    return Message("user", observation)


def observation_text(observed: Sequence[Message]) -> str:
    """All that was observed after a reply, as one text."""
    return "\n".join(message.text for message in observed)


def path_history(first_observation: str, steps: Sequence[Step]) -> History:
    """The chat after these steps."""
    messages = [observation_message(first_observation)]
    for step in steps:
        messages += step_messages(step)
    return tuple(messages)


def step_messages(step: Step) -> History:
    """The reply and the observation of one step."""
    if step.observed is None:
        return step.message, observation_message(step.observation)
    return step.message, *step.observed


def parse_action(reply: str) -> str:
    """The bare action of a ReAct reply: the rest of the line after the last "Action:".

    A reply without the marker gives "", which no environment understands.
    """
    _, marker, rest = reply.rpartition(ACTION_PREFIX)
    return rest.strip().split("\n", 1)[0].strip() if marker else ""


def react_reply(thought: str, action: str) -> str:
    """The ReAct reply "Thought: … Action: …" that `parse_action` reads back."""
    return f"Thought: {thought}\n{ACTION_PREFIX} {action}"


def reply_key(reply: Message) -> str:
    """The part of a reply by which siblings are told apart; see `message_key`.

    Unlike that it reads one line behind "Action:", as the environments here do.
    """
    return message_key(reply) if reply.tool_calls else action_key(reply.content)


def action_key(reply: str) -> str:
    """The part by which siblings are told apart, of a reply that calls no tool.

    Siblings that differ in their thoughts alone lead to the same state, so a Q model would learn
    nothing from them.
    """
    return parse_action(reply) or message_key(text_reply(reply))


Action = str | ToolCall
"""Input of an environment: a bare action, or one tool call."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The form of an environment's episodes as chats.

    Attributes:
        parse_action: extracts the bare action from a whole reply.
        tools: what replies may call, in OpenAI's shape; empty if the actions are text. Policies get
            them with every request.
        examples: few-shot turns, which policies get between the system message and the first
            observation. Rows do not hold them, and Q models do not read them.
    """

    system: str | None = None
    parse_action: Callable[[str], str] = parse_action
    tools: tuple[Tool, ...] = field(default=(), hash=False)
    examples: History = ()

    def actions_of(self, reply: Message) -> tuple[Action, ...]:
        """The tool calls of a reply, in order, or its bare action if it calls none."""
        if self.tools and reply.tool_calls:
            return reply.tool_calls
        return (self.parse_action(reply.content),)

    def history(self, first_observation: str, steps: Sequence[Step]) -> History:
        """The chat after these steps, the system message included."""
        before = () if self.system is None else (Message("system", self.system),)
        return (*before, *path_history(first_observation, steps))


REACT = ChatFormat()
"""Replies in ReAct's form, and no system message."""
