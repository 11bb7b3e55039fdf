"""An episode of an agent, which keeps the history, and attempts of which the best go on."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

from qguide_client import calls
from qguide_client.calls import Call, T
from qguide_client.trajectory import C, Observation, Trajectory
from qguide_client.types import (
    ActOptions,
    AttemptsOptions,
    Decision,
    Outcome,
    OutcomeOptions,
    ScoreOptions,
    Scores,
    Verdicts,
)


class _Asks(Protocol):
    def ask(self, call: Call[T]) -> T: ...


class _AsksAsync(Protocol):
    async def ask(self, call: Call[T]) -> T: ...


class _Episode:
    def __init__(self, *, system: str | None, options: ActOptions) -> None:
        self._trajectory = Trajectory(system, options)

    @property
    def episode_id(self) -> str:
        """Id of the episode, sent with every step."""
        return self._trajectory.episode_id

    @property
    def messages(self) -> Sequence[dict[str, Any]]:
        """The history so far."""
        return tuple(deepcopy(self._trajectory.messages))

    @property
    def last(self) -> Decision | Scores | None:
        """The server's whole answer to the last step; None before the first."""
        return self._trajectory.last


class Episode(_Episode):
    """One episode, as a context manager; no step can follow its end or `finish`.

    A step that raised an error has changed nothing and can be repeated.
    """

    def __init__(self, client: _Asks, *, system: str | None, options: ActOptions) -> None:
        super().__init__(system=system, options=options)
        self._client = client

    def act(self, observation: Observation, **options: Unpack[ActOptions]) -> str:
        """Choose an action after an observation; the first observation includes the task."""
        decision = self._client.ask(self._trajectory.act(observation, options))
        return self._trajectory.add(observation, decision.action, decision)

    def choose(self, observation: Observation, candidates: Sequence[C], **options: Unpack[ScoreOptions]) -> C:
        """Choose the best of your own agent's candidates after an observation.

        Args:
            observation: a text, or messages, such as the results of tool calls.
            candidates: texts or assistant messages.
        """
        scores = self._client.ask(self._trajectory.score(observation, candidates, options))
        return self._trajectory.add(observation, candidates[scores.chosen], scores)

    def finish(self, reward: float, **options: Unpack[OutcomeOptions]) -> Outcome:
        """Report the outcome and end the episode.

        Raises:
            UnknownEpisodeError: the episode has no step yet.
        """
        closed = self._client.ask(self._trajectory.outcome(reward, options))
        self._trajectory.end()
        return closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._trajectory.end()


class AsyncEpisode(_Episode):
    """`Episode` for asyncio, as an async context manager."""

    def __init__(self, client: _AsksAsync, *, system: str | None, options: ActOptions) -> None:
        super().__init__(system=system, options=options)
        self._client = client

    async def act(self, observation: Observation, **options: Unpack[ActOptions]) -> str:
        """See `Episode.act`."""
        decision = await self._client.ask(self._trajectory.act(observation, options))
        return self._trajectory.add(observation, decision.action, decision)

    async def choose(self, observation: Observation, candidates: Sequence[C], **options: Unpack[ScoreOptions]) -> C:
        """See `Episode.choose`."""
        scores = await self._client.ask(self._trajectory.score(observation, candidates, options))
        return self._trajectory.add(observation, candidates[scores.chosen], scores)

    async def finish(self, reward: float, **options: Unpack[OutcomeOptions]) -> Outcome:
        """See `Episode.finish`."""
        closed = await self._client.ask(self._trajectory.outcome(reward, options))
        self._trajectory.end()
        return closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._trajectory.end()


E = TypeVar("E", bound=_Episode)


class _Attempts(Generic[E]):
    def __init__(self, episodes: Sequence[E]) -> None:
        self.episodes = tuple(episodes)
        self.running = list(episodes)
        self.last: Verdicts | None = None

    def _asked(self, observations: Mapping[str, Observation] | None, options: AttemptsOptions) -> Call[Verdicts]:
        known = observations or {}
        attempts = [one._trajectory.as_attempt(known.get(one.episode_id)) for one in self.episodes]
        return calls.attempts(attempts, options)

    def _narrowed(self, verdicts: Verdicts) -> list[E]:
        """Keep the attempts that go on, the best first, and end the others."""
        of = {one.episode_id: one for one in self.episodes}
        self.running = [of[episode_id] for episode_id in verdicts.go_on]
        for episode_id in of.keys() - set(verdicts.go_on):
            of[episode_id]._trajectory.end()
        self.last = verdicts
        return list(self.running)


class Attempts(_Attempts[Episode]):
    """Attempts at one task, each an episode.

    Attributes:
        episodes: of all attempts.
        running: of those that were not stopped; after `narrow` the best first.
        last: the server's whole answer to the last `narrow`; None before the first.
    """

    def __init__(self, client: _Asks, episodes: Sequence[Episode]) -> None:
        super().__init__(episodes)
        self._client = client

    def narrow(
        self, observations: Mapping[str, Observation] | None = None, **options: Unpack[AttemptsOptions]
    ) -> list[Episode]:
        """Let the best attempts go on, and stop the others; returns those that go on.

        Attempts that have finished are not compared; their tokens count to the budget.

        Args:
            observations: what the latest actions were answered, by `episode_id`, if it is known.
        """
        return self._narrowed(self._client.ask(self._asked(observations, options)))


class AsyncAttempts(_Attempts[AsyncEpisode]):
    """`Attempts` for asyncio."""

    def __init__(self, client: _AsksAsync, episodes: Sequence[AsyncEpisode]) -> None:
        super().__init__(episodes)
        self._client = client

    async def narrow(
        self, observations: Mapping[str, Observation] | None = None, **options: Unpack[AttemptsOptions]
    ) -> list[AsyncEpisode]:
        """See `Attempts.narrow`."""
        return self._narrowed(await self._client.ask(self._asked(observations, options)))
