"""Worker process of the TextWorld engine.

`textworld.EnginePool` runs it; it is never imported. The planner library rewrites `sys.argv`, may
call `sys.exit` on a bad game and leaks memory, so the pool replaces the process from time to time.
Requests and replies are JSON lines on stdin and stdout. End of input ends the process, also when
its parent has died.

    {"op": "reset", "session": 1, "game": "…/game.tw-pddl"}  -> {"observation", "won"}
    {"op": "step", "session": 1, "action": "look"}    -> {"observation", "won", "valid"}
    {"op": "admissible", "session": 1}                       -> {"actions"}
    {"op": "close", "session": 1}                            -> {}

The engine is TextWorld's own `PddlEnv` under alfworld's own names, without its repeated work: a
game's translation (TextWorld makes four before the first step), parsed grammar texts and the
wording of each command are cached, and data that never changes is shared instead of copied. A
planner library is never unloaded, because unloading sometimes crashes the process; the next game is
loaded into it.
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
"""Loaded copies of the planner library that no engine uses; each runs one game at a time."""


class _MemoisedParser:
    """A grammar parser that parses each text once; nobody changes its results."""

    def __init__(self, parser: Any) -> None:
        self.parse = cache(parser.parse)


def _copy_context(context: dict[str, Any]) -> dict[str, Any]:
    """Copy a context without its entities, which TextWorld copies for every symbol, unchanged."""
    shallow = {name: dict(context[name]) for name in ("variables", "mapping")}
    return {**context, **shallow}


def remember_repeated_work() -> None:
    """Cache this process's translations and parsed texts, and share its contexts.

    The second translation of `PddlState` is for plan search alone, which is not used here, so it
    may be the first one again.
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
    """One PddlEnv with a library of its own, loaded with one game."""

    def __init__(self, game: str) -> None:
        """Load the game; `reset` begins an episode."""
        self.game = game
        self._pddl = PddlEnv(EnvInfos(won=True, admissible_commands=True))
        self._env = AlfredDemangler(self._pddl)
        self._env.load(game)
        self._remember_commands()

    def _remember_commands(self) -> None:
        """Cache the words of each command, which depend on its arguments, never on the state."""
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
        """Begin an episode."""
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
        """Leave the library to another game."""
        _FREE_LIBRARIES.append(self._pddl.downward_lib)


class Sessions:
    """Running episodes by number, and idle engines that keep their game loaded."""

    def __init__(self) -> None:
        """Begin without any."""
        self._running: dict[int, Engine] = {}
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
        """End an episode and keep its engine for the next one of the game."""
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
    """Answer requests until the input ends; an engine's failure is answered, too."""
    sessions = Sessions()
    while line := read():
        try:
            reply = sessions.answer(json.loads(line))
        except (Exception, SystemExit) as error:  # the planner exits on games it dislikes
            reply = {"error": f"{type(error).__name__}: {error}"}
        write(json.dumps(reply) + "\n")


def main() -> None:
    """Serve on stdin and stdout, without anything that the planner prints."""
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    remember_repeated_work()
    serve(sys.stdin.readline, replies.write)


if __name__ == "__main__":
    main()
