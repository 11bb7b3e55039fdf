"""Worker process of the TextWorld engine.

Only a worker imports it. The planner library rewrites `sys.argv`, may call `sys.exit` on a bad
game, and leaks memory, so `textworld.EnginePool` replaces the process from time to time.

The engine is TextWorld's own `PddlEnv` with alfworld's own names, but without repeated work: each
game's translation (of which TextWorld makes four before the first step), parsed grammar texts and
the wording of each command are cached, and data that never changes is shared instead of copied. A
planner library is never unloaded, because that sometimes crashes the process; the next game uses it
again.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import fast_downward
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos, logic
from textworld.envs.pddl import PddlEnv, textgen

from qguide.qnet.errors import EnvironmentFailureError

REMEMBERED_TRANSLATIONS = 256
IDLE_ENGINES = 8


_FREE_LIBRARIES: list[Any] = []
"""Loaded copies of the planner library that no engine is using; each runs one game at a time."""


class _MemoisedParser:
    """A grammar parser that parses each text once, which is safe because no one changes results."""

    def __init__(self, parser: Any) -> None:
        self.parse = cache(parser.parse)


def _copy_context(context: dict[str, Any]) -> dict[str, Any]:
    """Copy a context, but share its entities, which never change."""
    shallow = {name: dict(context[name]) for name in ("variables", "mapping")}
    return {**context, **shallow}


def remember_repeated_work() -> None:
    """Patch the libraries to cache translations and parsed texts, and to share contexts.

    `PddlState` translates a game twice. The second translation is for plan search, which is not
    used here, so the first one can serve as the second too.
    """
    translate = lru_cache(REMEMBERED_TRANSLATIONS)(fast_downward.pddl2sas)

    def pddl2sas(domain: str, problem: str, **_: bool) -> Any:
        return translate(domain, problem)

    fast_downward.pddl2sas = pddl2sas
    load: Callable[[], Any] = fast_downward.load_lib
    fast_downward.load_lib = lambda: _FREE_LIBRARIES.pop() if _FREE_LIBRARIES else load()
    textgen.copy_context = _copy_context
    textgen._PARSER = _MemoisedParser(textgen._PARSER)
    logic._PARSER = _MemoisedParser(logic._PARSER)


class Engine:
    """One `PddlEnv` with its own planner library, loaded with one game."""

    def __init__(self, game: str) -> None:
        self.game = game
        self._pddl = PddlEnv(EnvInfos(won=True, admissible_commands=True))
        self._env = AlfredDemangler(self._pddl)
        self._env.load(game)
        self._remember_commands()

    def _remember_commands(self) -> None:
        """Cache the wording of each command, which depends only on its arguments."""
        grammar = self._pddl._logic.grammar
        templates = {action.template for action in self._pddl._logic.actions.values()}
        derive: Callable[..., str] = grammar.derive
        known: dict[tuple[str, ...], str] = {}

        def remembered(start: str, context: dict[str, Any]) -> str:
            if start not in templates:
                return derive(start, context)
            key = (start, *(variable.name for variable in context["mapping"].values()))
            if key not in known:
                known[key] = derive(start, context)
            return known[key]

        grammar.derive = remembered

    def reset(self) -> tuple[str, bool]:
        """Start an episode: what is seen, and whether it is won."""
        self._state = self._env.reset()
        return self._state.feedback, bool(self._state["won"])

    def step(self, action: str) -> tuple[str, bool, bool]:
        """Take one action: what is seen, whether the game is won, and whether it was understood."""
        self._state, _, _ = self._env.step(action)
        valid = self._pddl._last_action is not None
        return self._state.feedback, bool(self._state["won"]), valid

    def admissible(self) -> list[str]:
        """Every action that has an effect now."""
        actions: list[str] = self._state["admissible_commands"]
        return actions

    def close(self) -> None:
        """Give the planner library back for another game."""
        _FREE_LIBRARIES.append(self._pddl.downward_lib)


class Sessions:
    """Running episodes by number, and idle engines that keep their game loaded."""

    def __init__(self) -> None:
        self._running: dict[int, Engine] = {}
        # Not an `LRUCache`: an engine that is dropped must be closed.
        self._idle: OrderedDict[int, Engine] = OrderedDict()

    def ready(self) -> None:
        """The libraries are imported."""

    def reset(self, session: int, game: str) -> tuple[str, bool]:
        """Start an episode of a game."""
        self.close(session)
        with _told("reset"):
            engine = self._running[session] = self._idle_with(game) or Engine(game)
            return engine.reset()

    def step(self, session: int, action: str) -> tuple[str, bool, bool]:
        """Take one action."""
        with _told("step"):
            return self._running[session].step(action)

    def admissible(self, session: int) -> list[str]:
        """Every action that has an effect now."""
        with _told("admissible"):
            return self._running[session].admissible()

    def close(self, session: int) -> None:
        """End an episode, and keep its engine for the next episode of the game."""
        engine = self._running.pop(session, None)
        if engine is None:
            return
        self._idle[id(engine)] = engine
        if len(self._idle) > IDLE_ENGINES:
            self._idle.popitem(last=False)[1].close()

    def close_all(self) -> None:
        """Do nothing: the engines end with the process."""

    def _idle_with(self, game: str) -> Engine | None:
        for key, engine in self._idle.items():
            if engine.game == game:
                return self._idle.pop(key)
        return None


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Tell a failure of the engine as one of the episode."""
    try:
        yield
    except (Exception, SystemExit) as error:  # the planner exits on a bad game
        raise EnvironmentFailureError(f"{what} failed in TextWorld: {type(error).__name__}: {error}") from error


def open_sessions() -> Sessions:
    """The sessions of this process; whatever the planner prints is discarded."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    remember_repeated_work()
    return Sessions()
