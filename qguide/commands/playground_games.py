"""Games of an environment for the playground's race; here server and training meet."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from qguide.server.own_bodies.schemas import ChatMessage
from qguide.server.routes.pages import GameAnswer, Games

if TYPE_CHECKING:
    from qguide.server.settings.settings import Settings
    from qguide.training.environments.registry import SelectedSuite

HELD_OUT: Final[Mapping[str, Mapping[str, Any]]] = {"alfworld": {"first_seed": 900_000}}
"""Generated games that no training of the embedded models has played, by environment."""


def games_of(settings: "Settings") -> Games | None:
    """The games of the settings; without any those that the embedded policy knows, if it serves."""
    from qguide.server.settings.settings import EMBEDDED

    if not settings.playground:
        return None
    known = {"name": "alfworld"} if settings.policy == EMBEDDED else {}
    return build_games(settings.playground_games or known)


def build_games(table: Mapping[str, Any]) -> Games | None:
    """The games of an `[environment]` table; None for an empty one."""
    if not table:
        return None
    from qguide.qnet.errors import ConfigError
    from qguide.training.environments.registry import build_selected_suite, environment_config

    own = "games" in table or "first_seed" in table
    values = dict(table) if own else {**HELD_OUT.get(str(table.get("name")), {}), **table}
    suite = build_selected_suite(environment_config(values))
    if suite.environment.chat.tools:
        suite.close()
        raise ConfigError(
            f"the actions of {suite.environment.name} are tool calls, which the race does not "
            "make; set QGUIDE_PLAYGROUND_GAMES to an environment whose actions are text"
        )
    return SuiteGames(suite)


class SuiteGames:
    """The tasks of a suite as games; see `qguide.server.routes.pages.Games`."""

    def __init__(self, suite: "SelectedSuite") -> None:
        self._suite = suite
        self.name = suite.environment.name
        self.count = len(suite.tasks)

    def play(self, game: int, replies: Sequence[str]) -> GameAnswer:
        """Play a game from its start."""
        bundle = self._suite.environment
        observation, reward, terminated, ended = "", 0.0, False, False
        with closing(self._suite.make(self._suite.tasks[game])) as environment:
            first = environment.reset()
            for reply in replies:
                result = environment.step(bundle.chat.parse_action(reply))
                observation, reward = result.observation, result.reward
                terminated, ended = result.terminated, result.ended
                if ended:
                    break
        return GameAnswer(
            opening=[ChatMessage.of(message) for message in bundle.chat.history(first, ())],
            observation=observation,
            reward=reward,
            ended=ended,
            won=ended and bundle.is_success(reward, terminated),
        )
