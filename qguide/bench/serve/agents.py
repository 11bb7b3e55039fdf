"""What the clients of a load test say: episodes of a household game, each client its own."""

from random import Random
from typing import Any

_ROOM = ("cabinet", "countertop", "desk", "drawer", "fridge", "microwave", "shelf", "sinkbasin")
_THINGS = ("apple", "bowl", "egg", "knife", "mug", "pan", "plate", "tomato")
_MOST_STEPS = 8
_MOST_TOKENS = 32
_TEMPERATURE = 1.5
"""So that the candidates differ and there is something to score."""


class Agent:
    """A client that plays: every question continues the history of the last, until it begins anew.

    Args:
        candidates: M, of every step.
    """

    def __init__(self, *, candidates: int, seed: int) -> None:
        self._candidates = candidates
        self._rng = Random(seed)
        self._messages: list[dict[str, str]] = []
        self._offered: list[str] = []
        self._begin()

    def question(self, path: str) -> dict[str, Any]:
        """The body of its next request."""
        body: dict[str, Any] = {"messages": self._messages}
        if path == "/v1/score":
            self._offered = self._replies()
            return body | {"candidates": self._offered}
        return body | {
            "num_candidates": self._candidates,
            "temperature": _TEMPERATURE,
            "max_tokens": _MOST_TOKENS,
            "seed": self._rng.randrange(2**31),
        }

    def take(self, answer: dict[str, Any]) -> None:
        """Do what was chosen, and see what it brings."""
        if len(self._messages) > 2 * _MOST_STEPS:
            self._begin()
            return
        action = answer["action"] if "action" in answer else self._offered[answer["chosen"]]
        place, thing = self._place(), self._rng.choice(_THINGS)
        self._messages += [
            {"role": "assistant", "content": action},
            {
                "role": "user",
                "content": f"You arrive at {place}. On the {place}, you see a {thing} 1.",
            },
        ]

    def _begin(self) -> None:
        seen = ", ".join(f"a {self._place()}" for _ in range(6))
        thing, end = self._rng.choice(_THINGS), self._rng.choice(_ROOM)
        task = (
            f"You are in the middle of a room. Looking quickly around you, you see {seen}.\n\n"
            f"Your task is to: put some {thing} in {end}."
        )
        self._messages = [{"role": "user", "content": task}]

    def _replies(self) -> list[str]:
        """All different, which a request to score asks for."""
        places = [f"{self._place()}{k}" for k in range(self._candidates)]
        return [f"Thought: Not here. I look at {p}.\nAction: go to {p}" for p in places]

    def _place(self) -> str:
        return f"{self._rng.choice(_ROOM)} {self._rng.randrange(1, 10)}"
