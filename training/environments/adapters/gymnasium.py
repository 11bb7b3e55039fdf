"""Gymnasium text environments: `reset() -> obs, info` and `step(str) -> 5-tuple`.

Nothing of Gymnasium is imported for a factory; `gymnasium:ID` needs the extra `gymnasium`. Facts of
its interface (https://gymnasium.farama.org/api/env): `reset(*, seed, options)`; `step` returns
observation, reward, terminated, truncated, info; rewards are on the way.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.packages import import_operator_module, install
from qguide.training.environment import flag_of, reward_of
from qguide.training.environments.adapters.config import SEED
from qguide.training.environments.adapters.episode import AdapterAnswer

_TEXT_FIELDS = ("text", "observation", "obs")


def registered(environment_id: str) -> Callable[[], Any]:
    """A factory of an environment that is registered with Gymnasium."""
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(f"gymnasium:{environment_id} needs Gymnasium; {install('gymnasium')}") from error
    module, _, name = environment_id.rpartition(":")
    try:
        if module:
            import_operator_module(module)
    except ImportError as error:
        raise ConfigError(f"gymnasium:{environment_id}: {error}; install the module, or start in its folder") from error
    if not any(known == name or known.startswith(f"{name}-v") for known in gymnasium.registry):
        raise ConfigError(
            f"gymnasium:{environment_id}: Gymnasium knows no environment {name!r}; correct it, or "
            "name the module that registers it, gymnasium:MODULE:ID"
        )
    return lambda: gymnasium.make(name)


class GymnasiumSide:
    """One episode; see `qguide.training.environments.adapters.episode.OtherSide`.

    Args:
        given: the task: `seed` and, from a file of tasks, what `reset` gets as `options`.
    """

    def __init__(self, factory: Callable[[], Any], given: Mapping[str, Any]) -> None:
        self._environment = factory()
        self._given = given

    def reset(self) -> AdapterAnswer:
        """Start the episode; `reset` gets the arguments that it takes."""
        options = {name: value for name, value in self._given.items() if name != SEED}
        wanted = {"seed": self._given.get(SEED), "options": options or None}
        takes = inspect.signature(self._environment.reset).parameters
        everything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
        said = self._environment.reset(**{name: value for name, value in wanted.items() if everything or name in takes})
        if not isinstance(said, tuple) or len(said) != 2:
            raise EnvironmentFailureError(f"reset returned {type(said).__name__}; return the observation and an info")
        return AdapterAnswer(text_of(said[0]))

    def step(self, action: str) -> AdapterAnswer:
        """Take one action; `info["valid"]` says that it was not understood."""
        said = self._environment.step(action)
        if not isinstance(said, tuple) or len(said) != 5:
            raise EnvironmentFailureError(
                f"step returned {type(said).__name__}; return observation, reward, terminated, truncated and info"
            )
        observation, reward, terminated, truncated, info = said
        return AdapterAnswer(
            text_of(observation),
            reward_of(reward),
            flag_of(terminated, "terminated"),
            flag_of(truncated, "truncated"),
            valid=flag_of(info.get("valid", True), 'info["valid"]'),
        )

    def snapshot(self) -> object:
        """The environment's own snapshot."""
        return self._own("snapshot")()

    def restore(self, snapshot: object) -> None:
        """Go on from the environment's own snapshot."""
        self._own("restore")(snapshot)

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        close = getattr(self._environment, "close", None)
        if close is not None:
            close()

    def _own(self, name: str) -> Callable[..., object]:
        inner = getattr(self._environment, "unwrapped", self._environment)
        method: Callable[..., object] = getattr(inner, name)
        return method


def text_of(observation: object) -> str:
    """An observation as text."""
    if isinstance(observation, Mapping):
        observation = next((observation[n] for n in _TEXT_FIELDS if n in observation), observation)
    if not isinstance(observation, str):
        raise EnvironmentFailureError(
            f"an observation is of type {type(observation).__name__}; return a text, or a mapping "
            f"with one of {', '.join(_TEXT_FIELDS)}"
        )
    return observation
