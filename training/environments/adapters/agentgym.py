"""AgentGym's environment servers over HTTP: `agentgym:http://HOST:PORT`.

Facts of the interface, from AgentGym's clients and servers (github.com/WooooDyy/AgentGym): POST
/create, /reset and /step, GET /observation. There are two families. One (TextCraft, SciWorld,
BabyAI) answers /create by `{"id": n}`, takes `id` and `data_idx`, and answers a step by
`observation`, `reward` and `done`. The other (SQLGym, WebShop) answers /create by a number, takes
`env_idx` and `item_id` (WebShop: `session_id`), and answers by `state`, `reward` and `done`, and a
reset by a list. An error is `{"error": text}` with status 200; a busy server answers 503. Some
servers have POST /close.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import stamina

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.training.environment import flag_of, reward_of
from qguide.training.environments.adapters.bounded_http import BoundedHttp
from qguide.training.environments.adapters.config import AGENTGYM, SEED, AdaptedConfig
from qguide.training.environments.adapters.episode import AdapterAnswer

_BUSY: Final = 503
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class _Family:
    """Names of the fields: the episode's number, the task's, and the text of a step's answer."""

    episode: str
    task: str
    text: str


_BY_ID: Final = _Family("id", "data_idx", "observation")
_BY_INDEX: Final = _Family("env_idx", "item_id", "state")


class _BusyError(EnvironmentFailureError):
    """The server is busy; the request may be sent again."""


def address_of(name: str) -> str:
    """The base address in a name such as "agentgym:http://127.0.0.1:36001"."""
    url = name.removeprefix(AGENTGYM)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"environment {name!r} is no address; write agentgym:http://HOST:PORT")
    return url.rstrip("/")


class AgentGymSide:
    """One episode; see `qguide.training.environments.adapters.episode.OtherSide`.

    Args:
        given: the task; its number is `seed`, or the field `index_field`.
    """

    def __init__(self, config: AdaptedConfig, given: Mapping[str, Any]) -> None:
        self._given, self._fields = given, config.reset_fields
        self._index_field = config.index_field
        self._http = BoundedHttp(address_of(config.name), timeout_s=config.timeout_s)
        self._family = _BY_ID
        self._number: int | None = None

    def reset(self) -> AdapterAnswer:
        """Make an episode on the server, and start it with the task."""
        if self._number is None:
            made = self._post("/create", {})
            if isinstance(made, Mapping):
                self._number = int(made["id"])
            else:
                self._family, self._number = _BY_INDEX, int(made)
        index = self._index_field or self._family.task
        task = {index if name == SEED else name: value for name, value in self._given.items()}
        said = self._post("/reset", {**self._fields, **task})
        return AdapterAnswer(self._text(said[0] if isinstance(said, list) and said else said))

    def step(self, action: str) -> AdapterAnswer:
        """Take one action."""
        said = self._post("/step", {"action": action})
        if not isinstance(said, Mapping):
            raise EnvironmentFailureError(
                f"/step of {self._http.url} is answered by {reprlib.repr(said)}, not by an object"
            )
        reward = said.get("reward")
        earned = None if reward is None else reward_of(reward)
        return AdapterAnswer(self._text(said), earned, terminated=flag_of(said.get("done"), "done"))

    def close(self) -> None:
        """Close the episode, where the server can, and the connections."""
        try:
            if self._number is not None:
                self._http.request("POST", "/close", json={self._family.episode: self._number})
        finally:
            self._http.close()

    def _text(self, said: Any) -> str:
        """The text of an answer; the server is asked for it where an answer has none."""
        if isinstance(said, Mapping):
            said = said.get(self._family.text, said.get("observation"))
        if isinstance(said, str):
            return said
        number = {self._family.episode: str(self._number)}
        shown = self._http.request("GET", "/observation", params=number)
        text: object = shown.raise_for_status().json()
        return text if isinstance(text, str) else str(text)

    @stamina.retry(on=_BusyError, attempts=_ATTEMPTS, wait_initial=0.1, wait_max=2.0)
    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        if self._number is not None:
            body = {self._family.episode: self._number, **body}
        try:
            response = self._http.request("POST", path, json=dict(body))
        except httpx.HTTPError as error:
            raise EnvironmentFailureError(
                f"no AgentGym server answers at {self._http.url} ({error}); start it, or name another"
            ) from error
        if response.status_code == _BUSY:
            raise _BusyError(f"{self._http.url} is busy")
        said = response.json() if response.is_success else {"error": response.text}
        if isinstance(said, Mapping) and "error" in said:
            raise EnvironmentFailureError(f"{path} of {self._http.url}: {said['error']}")
        return said
