"""Classes in the manner of TRL: `reset(**row)`, public methods as tools, `get_reward()`.

Facts of the interface (TRL 1.16, `environment_factory` of GRPOTrainer): every public method except
`reset` and `get_reward` is a tool, described by its type hints and docstring; `reset` gets the row
of the data set and returns None or a text that is appended to the prompt; a reply without a call
ends the episode; an exception of a tool is its result. TRL asks `get_reward` once, at the end; here
it is asked after every call, because an episode may be cut off there, so it must change nothing.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import install
from qguide.qnet.types import ToolCall
from qguide.training.environment import reward_of
from qguide.training.environments.adapters.episode import AdapterAnswer
from qguide.training.trajectory import Tool, arguments_of

_NO_TOOLS = ("reset", "get_reward", "close", "snapshot", "restore")
ENDED = "The episode is over."


def tools_of(kind: type) -> list[Tool]:
    """The public methods of a class as tools."""
    try:
        from transformers.utils.chat_template_utils import get_json_schema
    except ImportError as error:
        raise ConfigError(f"tools are described by transformers; {install('models')}") from error

    methods = {
        name: method
        for name, method in inspect.getmembers(kind, predicate=inspect.isfunction)
        if not name.startswith("_") and name not in _NO_TOOLS
    }
    if not methods:
        raise ConfigError(f"{kind.__name__} has no public methods; a method is a tool")
    tools: list[Tool] = []
    for name, method in methods.items():
        if inspect.iscoroutinefunction(method):
            raise ConfigError(f"{kind.__name__}.{name} is async; make it a plain method")
        try:
            tools.append(get_json_schema(method))
        except Exception as error:  # the library has an exception of its own for each fault
            raise ConfigError(
                f"{kind.__name__}.{name} cannot be described as a tool ({error}); give each "
                "argument a type and a line below `Args:` in the docstring"
            ) from error
    return tools


class TrlSide:
    """One episode; see `qguide.training.environments.adapters.episode.OtherSide`.

    Args:
        given: the row of the task, which `reset` gets; its `prompt` is shown first.
        names: of the tools. The bundle has described them once, which takes milliseconds each.
    """

    def __init__(self, factory: Callable[[], Any], given: Mapping[str, Any], names: frozenset[str]) -> None:
        self._environment = factory()
        self._given = given
        self._names = names

    def reset(self) -> AdapterAnswer:
        """Start the episode; the first observation is the prompt and what `reset` returns."""
        said = self._environment.reset(**self._given)
        return AdapterAnswer(prompt_text(self._given.get("prompt")) + prompt_text(said))

    def step(self, action: str) -> AdapterAnswer:
        """End the episode: a reply without a call is the agent's last."""
        return AdapterAnswer(ENDED, terminated=True, earned=self._reward())

    def call(self, call: ToolCall) -> AdapterAnswer:
        """Call a method; whatever it raises is the result, and the episode goes on."""
        arguments = arguments_of(call)
        if call.name not in self._names or arguments is None:
            names = ", ".join(sorted(self._names))
            return AdapterAnswer(f"Call one of {names}.", valid=False, earned=self._reward())
        try:
            result, valid = str(getattr(self._environment, call.name)(**arguments)), True
        except Exception as error:  # the agent reads it, as it does in TRL
            result, valid = str({"error": str(error)}), False
        over = getattr(self._environment, "done", False) is True
        return AdapterAnswer(result, terminated=over, valid=valid, earned=self._reward())

    def snapshot(self) -> object:
        """The environment's own snapshot."""
        return self._environment.snapshot()

    def restore(self, snapshot: object) -> None:
        """Go on from the environment's own snapshot."""
        self._environment.restore(snapshot)

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        close = getattr(self._environment, "close", None)
        if close is not None:
            close()

    def _reward(self) -> float:
        get_reward = getattr(self._environment, "get_reward", None)
        return 0.0 if get_reward is None else reward_of(get_reward())


def prompt_text(prompt: str | Sequence[Mapping[str, Any]] | None) -> str:
    """A prompt as text: a text, content parts, or messages without the system's."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    texts = [prompt_text(part.get("content", part.get("text"))) for part in prompt if part.get("role") != "system"]
    return "\n".join(text for text in texts if text)
