"""OpenEnv servers over WebSocket: `openenv:ws://HOST:PORT`.

Facts of the protocol, from OpenEnv's client and server types (github.com/huggingface/OpenEnv,
`src/openenv/core`): one connection to `/ws` is a session, and each message has a `type` and `data`.

    sent        reset {seed, …}     step {the action's fields}     close
    received    observation {observation: {…}, reward: number or null, done}
                error {message, code}

The session outlives the errors VALIDATION_ERROR (the action does not fit the schema) and
EXECUTION_ERROR; CAPACITY_REACHED ends it.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final

from qguide.qnet.body_limits import AnswerTooLargeError, check_number_of_values
from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.packages import install
from qguide.training.environment import flag_of, reward_of
from qguide.training.environments.adapters.bounded_http import MOST_BYTES, MOST_VALUES
from qguide.training.environments.adapters.config import OPENENV, AdaptedConfig
from qguide.training.environments.adapters.episode import AdapterAnswer

_NOT_UNDERSTOOD: Final = "VALIDATION_ERROR"


def address_of(name: str) -> str:
    """The WebSocket's address in a name such as "openenv:ws://127.0.0.1:8000"."""
    url = name.removeprefix(OPENENV)
    scheme, separator, rest = url.partition("://")
    schemes = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
    if not separator or scheme not in schemes or not rest.strip("/"):
        raise ConfigError(f"environment {name!r} is no address; write openenv:ws://HOST:PORT")
    return f"{schemes[scheme]}://{rest.rstrip('/').removesuffix('/ws')}/ws"


class OpenEnvSide:
    """One session; see `qguide.training.environments.adapters.episode.OtherSide`."""

    def __init__(self, config: AdaptedConfig, given: Mapping[str, Any]) -> None:
        self._config = config
        self._given = {**config.reset_fields, **given}
        self._url = address_of(config.name)
        self._connection: Any = None
        self._open = ExitStack()

    def reset(self) -> AdapterAnswer:
        """Connect, and start an episode."""
        if self._connection is None:
            self._connection = self._connect()
        answer = self._ask({"type": "reset", "data": self._given})
        if not answer.valid:
            raise EnvironmentFailureError(
                f"{self._url} refused the reset with {self._given}: {answer.observation}; correct "
                "the tasks or reset_fields"
            )
        return answer

    def step(self, action: str) -> AdapterAnswer:
        """Take one action, as the text field of the environment's action."""
        return self._ask({"type": "step", "data": {self._config.action_field: action}})

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._send({"type": "close"})
        self._open.close()

    def _connect(self) -> Any:
        try:
            from websockets.sync.client import connect
        except ImportError as error:
            raise ConfigError(f"{self._url} needs websockets; {install('openenv')}") from error
        try:
            return self._open.enter_context(
                connect(self._url, open_timeout=self._config.timeout_s, max_size=MOST_BYTES)
            )
        except OSError as error:
            raise EnvironmentFailureError(
                f"no OpenEnv server answers at {self._url} ({error}); start it, or name another"
            ) from error

    def _send(self, message: Mapping[str, Any]) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):  # what the server said before it left can still be read
            self._connection.send(json.dumps(message))

    def _ask(self, message: Mapping[str, Any]) -> AdapterAnswer:
        self._send(message)
        said = self._receive()
        data = said.get("data") or {}
        if said.get("type") == "error":
            if data.get("code") == _NOT_UNDERSTOOD:
                return AdapterAnswer(str(data.get("message")), valid=False)
            raise EnvironmentFailureError(f"{self._url} failed: {data.get('message')} ({data.get('code')})")
        return AdapterAnswer(
            observation_text(data.get("observation") or {}, self._config.observation_field),
            None if (reward := data.get("reward")) is None else reward_of(reward),
            terminated=flag_of(data.get("done"), "done"),
        )

    def _receive(self) -> Any:
        try:
            text = self._connection.recv(timeout=self._config.timeout_s)
        except TimeoutError as error:
            raise EnvironmentFailureError(
                f"{self._url} has not answered to the end after {self._config.timeout_s:g} s; see "
                "what the server does, or raise timeout_s"
            ) from error
        content = text.encode() if isinstance(text, str) else text
        try:
            check_number_of_values(content, MOST_VALUES)
        except AnswerTooLargeError as error:
            raise EnvironmentFailureError(f"{self._url} {error}; correct the server") from error
        return json.loads(content)


def observation_text(observation: Mapping[str, Any], field: str) -> str:
    """The text of an observation: the named field, the only text, or all of it as JSON."""
    if field and field not in observation:
        raise EnvironmentFailureError(
            f"an observation has the fields {', '.join(observation)} and no {field!r}; set "
            "observation_field to one of them"
        )
    texts = [value for value in observation.values() if isinstance(value, str)]
    shown = observation[field] if field else texts[0] if len(texts) == 1 else observation
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
