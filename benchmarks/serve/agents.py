"""Simulated agents of a load test, which play episodes of a household game."""

from random import Random
from typing import Any

_ROOM = ("cabinet", "countertop", "desk", "drawer", "fridge", "microwave", "shelf", "sinkbasin")
_THINGS = ("apple", "bowl", "egg", "knife", "mug", "pan", "plate", "tomato")
_MOST_STEPS = 8
_MOST_TOKENS = 32
_TEMPERATURE = 1.5
"""High enough that the candidates differ and have to be scored."""


class Agent:
    """A client that plays episodes: each request continues the history of the one before.

    Args:
        candidates: M of every step.
    """

    def __init__(self, *, candidates: int, seed: int) -> None:
        self._candidates = candidates
        self._rng = Random(seed)
        self._messages: list[dict[str, str]] = []
        self._offered: list[str] = []
        self._begin()

    def question(self, path: str) -> dict[str, Any]:
        """Body of its next request."""
        body: dict[str, Any] = {"messages": self._messages}
        if path == "/v1/score":
            self._offered = self._replies()
            return body | {"candidates": self._offered}
        if path == "/v1/rerank":
            self._offered = self._replies()
            return body | {"documents": self._offered}
        return body | {
            "num_candidates": self._candidates,
            "temperature": _TEMPERATURE,
            "max_tokens": _MOST_TOKENS,
            "seed": self._rng.randrange(2**31),
        }

    def take(self, answer: dict[str, Any]) -> None:
        """Append the chosen action and its observation."""
        if len(self._messages) > 2 * _MOST_STEPS:
            self._begin()
            return
        place, thing = self._place(), self._rng.choice(_THINGS)
        self._messages += [
            {"role": "assistant", "content": self._chosen(answer)},
            {"role": "user", "content": f"You arrive at {place}. On the {place}, you see a {thing} 1."},
        ]

    def _chosen(self, answer: dict[str, Any]) -> str:
        if "action" in answer:
            action: str = answer["action"]
            return action
        best = answer["results"][0]["index"] if "results" in answer else answer["chosen"]
        return self._offered[int(best)]

    def _begin(self) -> None:
        seen = ", ".join(f"a {self._place()}" for _ in range(6))
        thing, end = self._rng.choice(_THINGS), self._rng.choice(_ROOM)
        task = (
            f"You are in the middle of a room. Looking quickly around you, you see {seen}.\n\n"
            f"Your task is to: put some {thing} in {end}."
        )
        self._messages = [{"role": "user", "content": task}]

    def _replies(self) -> list[str]:
        """Distinct candidates, as `/v1/score` requires."""
        places = [f"{self._place()}{k}" for k in range(self._candidates)]
        return [f"Thought: Not here. I look at {p}.\nAction: go to {p}" for p in places]

    def _place(self) -> str:
        return f"{self._rng.choice(_ROOM)} {self._rng.randrange(1, 10)}"
