"""`[environment]` table of an environment with another interface, and its tasks.

environment = "my_package.shop:make"          # a factory of the operator's own code
environment = "gymnasium:MyText-v0"           # registered with Gymnasium
environment = "openenv:ws://127.0.0.1:8000"   # a server
environment = "agentgym:http://127.0.0.1:36001"
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, FiniteFloat, JsonValue, model_validator

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import MessageRow, messages_of
from qguide.training.environment import Branching, NumberedConfig, Task
from qguide.training.trajectory import ChatFormat, Tool, parse_action

OPENENV: Final = "openenv:"
AGENTGYM: Final = "agentgym:"
GYMNASIUM: Final = "gymnasium:"
SEED: Final = "seed"
"""Field of a task without a file: its number."""

_CALLS_AT_ONCE: Final = 16


class AdaptedConfig(NumberedConfig):
    """The `[environment]` table of an environment with another interface.

    Attributes:
        tasks: JSON lines, one task each; its fields are the arguments of `reset`. `id` and `kind`
            name the task and its goal type. Without it, tasks are numbered by `seed`.
        system: system message; "" uses the factory's attribute `system`, if it has one.
        examples: few-shot turns; policies get them, rows do not hold them.
        reply: the bare action is the text after "Action:" ("react") or the whole reply ("text").
        outcome: the outcome is the "sum" of all rewards so far, or the "last" one; None is the
            interface's own: the last for AgentGym, the sum for the others.
        reward_range: outcomes that become 0 and 1; others in proportion, within these limits.
        success_reward: outcome, in [0, 1], from which an episode is a success.
        invalid: beginnings of observations by which the environment says that it did not
            understand an action. Gymnasium environments may set `info["valid"]` instead.
        actions: those from which the policy "random" draws; none are the numbered choices of the
            last observation that has any.
        harmless: an action that is valid at the start and changes nothing, for the checks.
        probes: actions of the self-check; none are `harmless` and one that means nothing.
        branching: "auto" plays the probes twice to find out; see `Branching`.
        action_field: OpenEnv: field of the action that holds the text.
        observation_field: OpenEnv: field of the observation that is shown; "" shows the only text
            field, or the whole observation as JSON.
        index_field: AgentGym: field of /reset that holds the task's number; "" is the usual one.
        reset_fields: further fields of each reset.
        timeout_s: longest wait for the whole answer of a server.
    """

    tasks: Path | None = None
    system: str = ""
    examples: tuple[MessageRow, ...] = ()
    reply: Literal["react", "text"] = "react"
    outcome: Literal["sum", "last"] | None = None
    reward_range: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    success_reward: float = Field(default=1.0, gt=0, le=1)
    invalid: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    harmless: str = ""
    probes: tuple[str, ...] = ()
    branching: Branching | Literal["auto"] = "auto"
    action_field: str = "message"
    observation_field: str = ""
    index_field: str = ""
    reset_fields: dict[str, JsonValue] = Field(default_factory=dict)
    timeout_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        low, high = self.reward_range
        if low >= high:
            raise ValueError(f"reward_range is [{low}, {high}]; name the lower limit first")
        return self

    @property
    def threads(self) -> int:
        """Environment calls in parallel: servers wait on a network, a factory's code does not."""
        return _CALLS_AT_ONCE if self.name.startswith((OPENENV, AGENTGYM)) else 0

    @property
    def sums_rewards(self) -> bool:
        """True if the outcome is the sum of the rewards."""
        default = "last" if self.name.startswith(AGENTGYM) else "sum"
        return (self.outcome or default) == "sum"

    def chat(self, *, system: str | None, tools: Sequence[Tool] = ()) -> ChatFormat:
        """The chat format."""
        parse = parse_action if self.reply == "react" and not tools else str.strip
        return ChatFormat(self.system or system, parse, tuple(tools), messages_of(self.examples))


def read_tasks(config: AdaptedConfig) -> list[tuple[Task, Mapping[str, Any]]]:
    """Every task with the arguments of its reset."""
    if config.tasks is None:
        seeds = range(config.first_seed, config.first_seed + config.count)
        return [(Task(f"task:{n}", "task", str(n)), {SEED: n}) for n in seeds]
    try:
        lines = config.tasks.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"tasks = {config.tasks}: {error.strerror}; name a file") from error
    return [_task(config.tasks, number, line) for number, line in enumerate(lines) if line.strip()]


def _task(path: Path, number: int, line: str) -> tuple[Task, Mapping[str, Any]]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"tasks = {path}: line {number + 1}: {error}; write JSON") from error
    if not isinstance(row, dict):
        raise ConfigError(f"tasks = {path}: line {number + 1} is no JSON object; write one per task")
    name = str(row.get("id", f"{path.stem}:{number}"))
    given = {field: value for field, value in row.items() if field not in ("id", "kind")}
    return Task(name, str(row.get("kind", "task")), str(number)), given
