"""An episode's turns so far, and what its next question is: what both kinds of `Episode` share."""

import uuid
from collections.abc import Sequence

from qguide_client import calls
from qguide_client.calls import Call
from qguide_client.errors import EpisodeError
from qguide_client.types import ActOptions, Decision, ModelOptions, Outcome, OutcomeOptions, Scores


class Trajectory:
    """Observations and replies in turn.

    A turn is added when its answer has come, so a step that failed can be taken again.

    Args:
        system: the system message, if there is one.
        options: of every step that does not say otherwise; without an `episode_id` one is made up.
    """

    def __init__(self, system: str | None, options: ActOptions) -> None:
        self.episode_id = options.get("episode_id") or uuid.uuid4().hex
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.last: Decision | Scores | None = None
        self.ended = False
        self._options = options

    def act(self, observation: str, options: ActOptions) -> Call[Decision]:
        """What to ask for the server's choice."""
        chosen: ActOptions = {**self._options, **options, "episode_id": self.episode_id}
        return calls.act(self._after(observation), chosen)

    def score(
        self, observation: str, candidates: Sequence[str], options: ModelOptions
    ) -> Call[Scores]:
        """What to ask for a choice among the caller's own candidates."""
        chosen: ModelOptions = {"episode_id": self.episode_id}
        q_model = options.get("q_model", self._options.get("q_model"))
        if q_model is not None:
            chosen["q_model"] = q_model
        return calls.score(self._after(observation), candidates, chosen)

    def outcome(self, reward: float, options: OutcomeOptions) -> Call[Outcome]:
        """What to say of its end."""
        self._require_open()
        return calls.outcome(self.episode_id, reward, options)

    def add(self, observation: str, reply: str, answer: Decision | Scores) -> str:
        """The step was taken; returns the reply."""
        self.messages = [*self._after(observation), {"role": "assistant", "content": reply}]
        self.last = answer
        return reply

    def end(self) -> None:
        """No step comes after this."""
        self.ended = True

    def _after(self, observation: str) -> list[dict[str, str]]:
        self._require_open()
        return [*self.messages, {"role": "user", "content": observation}]

    def _require_open(self) -> None:
        if self.ended:
            raise EpisodeError(f"episode {self.episode_id} has ended; begin another")
