"""The errands of the tutorial, played in this process: rules and mock of its example, not copies.

    qguide environment check benchmarks.strangers.errands:ERRANDS

World 0 is the tutorial's house. In others, things and people are elsewhere.
"""

import runpy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Literal

from pydantic import Field

from benchmarks.strangers.worlds import world_and_number
from qguide.qnet.chat_messages import FunctionCall, plain_message
from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import Candidate, History, Message, SampleRequest, Sampling, ToolCall
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig, StepResult, Task
from qguide.training.trajectory import ChatFormat, arguments_of, tool_name

EXAMPLE = Path(__file__).parents[2] / "clients" / "python" / "examples" / "errands"
NAME = "benchmarks.strangers.errands:ERRANDS"


@lru_cache(maxsize=64)
def agent(world: int = 0) -> Mapping[str, Any]:
    """The names of the example's `agent.py`, in the house of a world."""
    names = runpy.run_path(str(EXAMPLE / "agent.py"))
    chance = Random(f"house {world}")
    for facts in (names["THINGS"], names["PEOPLE"]) if world else ():
        places = list(facts.values())
        chance.shuffle(places)
        facts.update(zip(facts, places, strict=True))
    return names


class Errand:
    """One errand; see `qguide.training.environment.ToolEnvironment`."""

    def __init__(self, seed: int) -> None:
        world, number = world_and_number(seed)
        names = agent(world)
        errands = names["errands"]()
        self._house = errands[number % len(errands)]
        self._most_calls: int = names["MOST_CALLS"]
        self._values = {tool_name(tool): _argument(tool) for tool in names["TOOLS"]}
        self._running = False

    def reset(self) -> str:
        """State the errand."""
        self._running = True
        task: str = self._house.task
        return task

    def step(self, action: str) -> StepResult:
        """Answer a reply without a call, which changes nothing.

        Raises:
            EnvironmentFailureError: no episode is running.
        """
        self._require_running(action)
        return StepResult("Use the tools.", 0.0, terminated=False, valid=False)

    def call(self, call: ToolCall) -> StepResult:
        """Call one tool.

        Raises:
            EnvironmentFailureError: no episode is running.
        """
        self._require_running(call.name)
        argument, values = self._values.get(call.name, ("", ()))
        value = (arguments_of(call) or {}).get(argument)
        valid = value in values
        said = self._house.call(call.name if valid else "", value)
        won = self._house.reward > 0
        self._running = not self._house.done
        return StepResult(said, self._house.reward, won, valid, truncated=self._house.done and not won)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _require_running(self, action: str) -> None:
        if not self._running:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")


def _argument(tool: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """A tool's argument and the values that it may have."""
    ((argument, schema),) = tool["function"]["parameters"]["properties"].items()
    return argument, schema["enum"]


class Errands:
    """The errands of consecutive numbers; see `qguide.training.environment.Suite`."""

    name = "errands"

    def __init__(self, first_seed: int, count: int) -> None:
        seeds = range(first_seed, first_seed + count)
        self.tasks: Sequence[Task] = [Task(f"errand:{n}", "errand", str(n)) for n in seeds]

    def make(self, task: Task) -> Errand:
        """A fresh, single-use episode of `task`."""
        return Errand(int(task.source))

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


class ErrandsConfig(EnvironmentConfig):
    """The `[environment]` table of errands.

    Attributes:
        first_seed: number of the first errand.
        count: number of errands.
    """

    name: Literal["benchmarks.strangers.errands:ERRANDS"] = "benchmarks.strangers.errands:ERRANDS"
    first_seed: int = Field(default=0, ge=0)
    count: int = Field(default=64, ge=1)


class ErrandsMock:
    """The example's `model.py` in this process; see `qguide.qnet.types.BatchPolicy`."""

    name = "errands-mock"

    def __init__(self) -> None:
        self._next_call = runpy.run_path(str(EXAMPLE / "model.py"))["next_call"]
        self._tools = agent()["TOOLS"]

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` calls."""
        return self._draw(history, n, sampling)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Draw the calls of each request."""
        return [self._draw(each.history, each.n, each.sampling) for each in requests]

    def _draw(self, history: History, n: int, sampling: Sampling) -> list[Candidate]:
        body = {"messages": [plain_message(m) for m in history], "tools": self._tools}
        # All values are equally likely: the likeliest call is any that a state always gives.
        greedy = sampling.temperature == 0
        drawn = []
        chance = Random(sampling.seed)
        for _ in range(n):
            chance = Random(str(body["messages"])) if greedy else chance
            call = FunctionCall.model_validate(self._next_call(body, chance)).to_call()
            drawn.append(Candidate(Message("assistant", "", (call,)), completion_tokens=8))
        return drawn


def policy(world: int = 0) -> ErrandsMock:
    """The mock that runs errands, which knows no house."""
    return ErrandsMock()


def _system_and_tools() -> ChatFormat:
    names = agent()
    return ChatFormat(names["SYSTEM"], tools=tuple(names["TOOLS"]))


ERRANDS = EnvironmentBundle(
    name=NAME,
    config=ErrandsConfig,
    build_suite=lambda config: Errands(config.first_seed, config.count),
    chat=_system_and_tools(),
    harmless=ToolCall("take", '{"thing": "atlas"}'),
)
