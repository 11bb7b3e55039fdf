"""Worker process of the TextWorld engine.

`textworld.EnginePool` runs it; it is never imported. The planner library rewrites `sys.argv`, may
call `sys.exit` on a bad game, and leaks memory, so the pool replaces the process from time to time.
Requests and replies are JSON lines on stdin and stdout. The process ends when its input ends, and
so also when its parent dies.

    {"op": "reset", "session": 1, "game": "…/game.tw-pddl"}  -> {"observation", "won"}
    {"op": "step", "session": 1, "action": "look"}    -> {"observation", "won", "valid"}
    {"op": "admissible", "session": 1}                       -> {"actions"}
    {"op": "close", "session": 1}                            -> {}

The engine is TextWorld's own `PddlEnv` with alfworld's own names, but without repeated work: each
game's translation (of which TextWorld makes four before the first step), parsed grammar texts and
the wording of each command are cached, and data that never changes is shared instead of copied. A
planner library is never unloaded, because that sometimes crashes the process; the next game uses it
again.
"""

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import fast_downward
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos, logic
from textworld.envs.pddl import PddlEnv, textgen

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
        """Load the game; `reset` starts an episode."""
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

    def reset(self) -> dict[str, Any]:
        """Start an episode."""
        self._state = self._env.reset()
        return {"observation": self._state.feedback, "won": bool(self._state["won"])}

    def step(self, action: str) -> dict[str, Any]:
        """Take one action."""
        self._state, _, _ = self._env.step(action)
        return {
            "observation": self._state.feedback,
            "won": bool(self._state["won"]),
            "valid": self._pddl._last_action is not None,
        }

    def admissible(self) -> dict[str, Any]:
        """Every action that has an effect now."""
        return {"actions": self._state["admissible_commands"]}

    def close(self) -> None:
        """Give the planner library back for another game."""
        _FREE_LIBRARIES.append(self._pddl.downward_lib)


class Sessions:
    """Running episodes by number, and idle engines that keep their game loaded."""

    def __init__(self) -> None:
        """Start without any."""
        self._running: dict[int, Engine] = {}
        # Not an `LRUCache`: an engine that is dropped must be closed.
        self._idle: OrderedDict[int, Engine] = OrderedDict()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request; see the module's docstring."""
        session = request["session"]
        match request["op"]:
            case "reset":
                self.close(session)
                engine = self._idle_with(request["game"]) or Engine(request["game"])
                self._running[session] = engine
                return engine.reset()
            case "step":
                return self._running[session].step(request["action"])
            case "admissible":
                return self._running[session].admissible()
            case "close":
                self.close(session)
                return {}
        raise ValueError(f"unknown op {request['op']!r}")

    def close(self, session: int) -> None:
        """End an episode, and keep its engine for the next episode of the game."""
        engine = self._running.pop(session, None)
        if engine is None:
            return
        self._idle[id(engine)] = engine
        if len(self._idle) > IDLE_ENGINES:
            self._idle.popitem(last=False)[1].close()

    def _idle_with(self, game: str) -> Engine | None:
        for key, engine in self._idle.items():
            if engine.game == game:
                return self._idle.pop(key)
        return None


def serve(read: Callable[[], str], write: Callable[[str], object]) -> None:
    """Answer requests until the input ends; a failure of an engine is answered as an error."""
    sessions = Sessions()
    while line := read():
        try:
            reply = sessions.answer(json.loads(line))
        except (Exception, SystemExit) as error:  # the planner exits on a bad game
            reply = {"error": f"{type(error).__name__}: {error}"}
        write(json.dumps(reply) + "\n")


def main() -> None:
    """Serve on stdin and stdout; whatever the planner prints is discarded."""
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    remember_repeated_work()
    serve(sys.stdin.readline, replies.write)


if __name__ == "__main__":
    main()
