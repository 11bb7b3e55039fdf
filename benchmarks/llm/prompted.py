"""A language model in place of an environment's mock: its prompt, and its actions as lines.

The model is told the tools, and shown a few episodes that succeeded in another world, where things are elsewhere: they
tell the form of an action and none of the facts. It reads and writes an action as one line of text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, Final

from qguide.qnet.types import BatchPolicy, Candidate, History, Message, SampleRequest, Sampling, ToolCall
from qguide.training.environments.registry import SelectedSuite
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import first_reply, play_episode, seeded
from qguide.training.trajectory import ChatFormat, Tool, arguments_of, parse_action, tool_name

_SHOWN: Final = 4
_TRIES: Final = 16
_TEMPERATURE: Final = 0.7
"""Of the model where the measurement asks for 1: at 1 a small one often says what means nothing."""
_MOST_TOKENS: Final = 24
_ONE_LINE: Final = "Reply with one action on one line, as in the examples."


class PromptedLlm:
    """A causal language model as the policy of one environment; see `qguide.qnet.types.BatchPolicy`.

    Args:
        folder: the model, as Hugging Face stores it.
        suite: tasks of another world.
        mock: plays them for the examples.
        max_steps: of an example.

    Attributes:
        beginning: the turns before every task.
    """

    def __init__(self, folder: Path, suite: SelectedSuite, mock: BatchPolicy, *, max_steps: int) -> None:
        self.name = folder.name
        self._lines = ActionLines(suite.environment.chat)
        self.beginning = self._lines.beginning(islice(_successes(suite, mock, max_steps=max_steps), _SHOWN))
        self._model, self._lock = _loaded(folder)

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates."""
        return self.sample_batch([SampleRequest(history, n, sampling)])[0]

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Draw the candidates of each request."""
        with self._lock:  # a server of mocks asks from several threads
            drawn = self._model.sample_batch([self._asked(one) for one in requests])
        return [[replace(one, message=self._lines.reply(one.message.content)) for one in each] for each in drawn]

    def _asked(self, request: SampleRequest) -> SampleRequest:
        temperature = request.sampling.temperature
        scaled = _TEMPERATURE * (1.0 if temperature is None else temperature)
        return replace(
            request,
            history=(*self.beginning, *self._lines.turns(request.history)),
            sampling=replace(request.sampling, temperature=scaled, max_tokens=_MOST_TOKENS),
        )


class ActionLines:
    """Actions as lines: `verb value, value` for a tool, and what a text environment reads as it is."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._arguments = {tool_name(tool): tuple(_properties(tool)) for tool in chat.tools}

    def beginning(self, episodes: Iterator[History]) -> History:
        """Turns that the model is told before the task: the system message, the tools, and episodes."""
        said = [self._chat.system or "", *map(_described, self._chat.tools), _ONE_LINE]
        shown = [turn for episode in episodes for turn in self.turns(episode[:-1])]
        return (Message("system", "\n".join(filter(None, said))), *shown)

    def turns(self, history: History) -> History:
        """A history in lines."""
        task, *others = (turn for turn in history if turn.role != "system")
        return (
            Message("user", f"New task: {task.content}"),
            *(
                Message("assistant", self.line(turn)) if turn.role == "assistant" else Message("user", turn.content)
                for turn in others
            ),
        )

    def line(self, reply: Message) -> str:
        """The line of a reply."""
        if not reply.tool_calls:
            action = self._chat.parse_action is parse_action and parse_action(reply.content)
            return f"Action: {action}" if action else reply.content
        call = reply.tool_calls[0]
        return f"{call.name} {', '.join(map(str, (arguments_of(call) or {}).values()))}".strip()

    def reply(self, text: str) -> Message:
        """The reply that a line stands for; a line that calls nothing is a reply in words."""
        line = text.strip().partition("\n")[0].strip()
        verb, _, rest = line.partition(" ")
        if verb not in self._arguments:
            return Message("assistant", line)
        names = self._arguments[verb]
        values = rest.split(", ", max(0, len(names) - 1)) if rest else ()
        return Message("assistant", "", (ToolCall(verb, json.dumps(dict(zip(names, values, strict=False)))),))


def _properties(tool: Tool) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = tool["function"]["parameters"].get("properties", {})
    return properties


def _described(tool: Tool) -> str:
    """A tool on one line: its name, and its arguments with their values."""
    arguments = ["/".join(map(str, schema.get("enum", [name.upper()]))) for name, schema in _properties(tool).items()]
    return f"- {tool_name(tool)} {', '.join(arguments)}".strip()


def _successes(suite: SelectedSuite, mock: BatchPolicy, *, max_steps: int) -> Iterator[History]:
    """Episodes of the mock that succeeded, each of another task, and the shortest of some tries."""
    environment, tasks = suite.environment, list(suite.tasks)
    Random("shown").shuffle(tasks)
    for task in tasks:
        tries = [
            play_episode(
                partial(suite.make, task),
                first_reply(seeded(Sampling(temperature=1.0), "shown", task.id, number)),
                max_steps=max_steps,
                chat=environment.chat,
            )
            for number in range(_TRIES)
        ]
        played = run_together(tries, policy=mock)
        won = [episode.messages for episode in played if environment.is_success(episode.reward, episode.terminated)]
        if won:
            yield min(won, key=len)


@lru_cache(maxsize=1)
def _loaded(folder: Path) -> tuple[BatchPolicy, Lock]:
    from qguide.qnet.device.local_policy import LocalPolicy
    from qguide.qnet.models.checkpoint import load_policy

    return LocalPolicy(load_policy(folder)), Lock()
