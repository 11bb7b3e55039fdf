"""State of an episode and the requests that follow from it, shared by both kinds of `Episode`."""

import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

from qguide_client import calls
from qguide_client.calls import Call
from qguide_client.errors import EpisodeError
from qguide_client.types import ActOptions, Candidate, Decision, Messages, Outcome, OutcomeOptions, ScoreOptions, Scores

Observation = str | Messages
"""Result of an action: the text of a user's turn, or whole turns (results of tool calls)."""
C = TypeVar("C", bound=Candidate)


class Trajectory:
    """Alternating observations and replies.

    Turns are added when the answer has arrived, so a step that failed can be repeated.

    Args:
        system: the system message, if there is one.
        options: defaults for every step; without `episode_id` a random one is taken.
    """

    def __init__(self, system: str | None, options: ActOptions) -> None:
        self.episode_id = options.get("episode_id") or uuid.uuid4().hex
        self.messages: list[dict[str, Any]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.last: Decision | Scores | None = None
        self.ended = False
        self._options = options

    def act(self, observation: Observation, options: ActOptions) -> Call[Decision]:
        """The request for the server's choice."""
        chosen: ActOptions = {**self._options, **options, "episode_id": self.episode_id}
        return calls.act(self._after(observation), chosen)

    def score(self, observation: Observation, candidates: Sequence[Candidate], options: ScoreOptions) -> Call[Scores]:
        """The request for a choice among the caller's own candidates."""
        chosen: ScoreOptions = {**_of_scoring(self._options), **options}
        chosen["episode_id"] = self.episode_id
        return calls.score(self._after(observation), candidates, chosen)

    def outcome(self, reward: float, options: OutcomeOptions) -> Call[Outcome]:
        """The request that reports the outcome."""
        self._require_open()
        return calls.outcome(self.episode_id, reward, options)

    def add(self, observation: Observation, reply: C, answer: Decision | Scores) -> C:
        """Add a step that was taken; return its reply."""
        turn = {"role": "assistant", "content": reply} if isinstance(reply, str) else dict(reply)
        self.messages = [*self._after(observation), turn]
        self.last = answer
        return reply

    def as_attempt(self, observation: Observation | None) -> dict[str, Any]:
        """The episode as one of several attempts.

        Args:
            observation: what its last action was answered; None if that is not known.
        """
        if self.ended:
            return {"episode_id": self.episode_id, "running": False}
        messages = self.messages if observation is None else self._after(observation)
        return {"episode_id": self.episode_id, "messages": messages}

    def end(self) -> None:
        """End the episode."""
        self.ended = True

    def _after(self, observation: Observation) -> list[dict[str, Any]]:
        self._require_open()
        if isinstance(observation, str):
            return [*self.messages, {"role": "user", "content": observation}]
        return [*self.messages, *map(dict, observation)]

    def _require_open(self) -> None:
        if self.ended:
            raise EpisodeError(f"episode {self.episode_id} has ended; begin another one")


def _of_scoring(options: ActOptions) -> ScoreOptions:
    """The options that a request which only scores has, too."""
    scoring: ScoreOptions = {}
    if "q_model" in options:
        scoring["q_model"] = options["q_model"]
    if "deadline_s" in options:
        scoring["deadline_s"] = options["deadline_s"]
    if options.get("long_history") == "window":
        scoring["long_history"] = "window"
    return scoring
