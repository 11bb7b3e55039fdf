"""Bundles of environments with another interface, by an address or by what a factory makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from qguide.qnet.errors import ConfigError
from qguide.training.environment import Environment, EnvironmentBundle, Task
from qguide.training.environments.adapters import agentgym, openenv
from qguide.training.environments.adapters.config import AGENTGYM, GYMNASIUM, OPENENV, AdaptedConfig, read_tasks
from qguide.training.environments.adapters.episode import (
    AdaptedEpisode,
    AdaptedToolEpisode,
    OtherSide,
    SnapshotEpisode,
    SnapshotToolEpisode,
)
from qguide.training.environments.adapters.gymnasium import GymnasiumSide, registered
from qguide.training.environments.adapters.trl import TrlSide, tools_of
from qguide.training.trajectory import Action, ChatFormat, Tool, read_call, tool_name

MakeSide = Callable[[AdaptedConfig, Mapping[str, Any]], OtherSide]
_TOLERANCE = 1e-6
"""An outcome may miss that of a success by this, as the sum of 0.9 and 0.1 in float32 does."""

_EPISODES = {
    (False, False): AdaptedEpisode,
    (False, True): SnapshotEpisode,
    (True, False): AdaptedToolEpisode,
    (True, True): SnapshotToolEpisode,
}


class AdaptedSuite:
    """See `qguide.training.environment.Suite`."""

    def __init__(self, config: AdaptedConfig, make: Callable[[Mapping[str, Any]], Environment]):
        self.name = config.name
        tasks = read_tasks(config)
        self.tasks: Sequence[Task] = [task for task, _ in tasks]
        self._given = {task.id: given for task, given in tasks}
        self._make = make

    def make(self, task: Task) -> Environment:
        """A fresh, single-use episode of `task`."""
        return self._make(self._given[task.id])

    def close(self) -> None:
        """Do nothing: an episode owns its resources."""


def is_address(name: str) -> bool:
    """True if a name means a server, or an environment that is registered with Gymnasium."""
    return name.startswith((OPENENV, AGENTGYM, GYMNASIUM))


def bundle_of_address(name: str) -> EnvironmentBundle[AdaptedConfig]:
    """The bundle of a server or a registered environment; nothing is connected yet."""
    if name.startswith(OPENENV):
        openenv.address_of(name)
        return _bundle(name, openenv.OpenEnvSide)
    if name.startswith(AGENTGYM):
        agentgym.address_of(name)
        return _bundle(name, agentgym.AgentGymSide)
    return bundle_of_factory(name, registered(name.removeprefix(GYMNASIUM)))


def bundle_of_factory(name: str, factory: Callable[[], Any]) -> EnvironmentBundle[AdaptedConfig]:
    """The bundle of a factory, by the methods of what it makes.

    `step` means Gymnasium's interface; `reset` without `step` means TRL's.
    """
    made = factory if isinstance(factory, type) else factory()
    kind = made if isinstance(made, type) else type(made)
    snapshots = all(callable(getattr(made, each, None)) for each in ("snapshot", "restore"))
    if not snapshots and not isinstance(made, type):
        inner = getattr(made, "unwrapped", made)
        snapshots = all(callable(getattr(inner, each, None)) for each in ("snapshot", "restore"))
    system = getattr(factory, "system", getattr(kind, "system", None))
    if callable(getattr(made, "step", None)):
        side: MakeSide = lambda _, given: GymnasiumSide(factory, given)  # noqa: E731
        return _bundle(name, side, system=system, snapshots=snapshots)
    if callable(getattr(made, "reset", None)):
        tools = tools_of(kind)
        names = frozenset(map(tool_name, tools))
        return _bundle(
            name, lambda _, given: TrlSide(factory, given, names), system=system, snapshots=snapshots, tools=tools
        )
    raise ConfigError(
        f"environment {name!r} makes a {kind.__name__}, which has neither step nor reset; name an "
        "EnvironmentBundle, a Gymnasium environment or a class with reset(**row) and tools"
    )


def _bundle(
    name: str, side: MakeSide, *, system: str | None = None, tools: Sequence[Tool] = (), snapshots: bool = False
) -> EnvironmentBundle[AdaptedConfig]:
    episode = _EPISODES[bool(tools), snapshots]

    def build_suite(config: AdaptedConfig) -> AdaptedSuite:
        make = partial(_make, episode, side, config)
        return AdaptedSuite(config, make)

    plain = EnvironmentBundle(
        name=name,
        config=AdaptedConfig,
        build_suite=build_suite,
        chat=ChatFormat(system, tools=tuple(tools)),
        is_success=lambda reward, terminated: reward >= 1.0 - _TOLERANCE,
        branching="auto",
    )

    def configure(config: AdaptedConfig) -> EnvironmentBundle[AdaptedConfig]:
        def action_of(text: str) -> Action:
            return read_call(text) if tools else text

        actions = tuple(map(action_of, config.actions))
        return replace(
            plain,
            actions=(lambda history: actions) if actions else None,
            chat=config.chat(system=system, tools=tools),
            is_success=lambda reward, terminated: reward >= config.success_reward - _TOLERANCE,
            harmless=action_of(config.harmless) if config.harmless else None,
            branching=config.branching,
            probes=tuple(map(action_of, config.probes)),
        )

    return replace(plain, configure=configure)


def _make(
    episode: type[AdaptedEpisode], side: MakeSide, config: AdaptedConfig, given: Mapping[str, Any]
) -> Environment:
    return episode(side(config, given), config)
