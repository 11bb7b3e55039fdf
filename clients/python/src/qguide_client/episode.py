"""One episode of an agent: it carries the history, so that a step is one call."""

from collections.abc import Sequence
from copy import deepcopy
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

from qguide_client.calls import Call, T
from qguide_client.trajectory import C, Observation, Trajectory
from qguide_client.types import ActOptions, Decision, ModelOptions, Outcome, OutcomeOptions, Scores


class _Asks(Protocol):
    def ask(self, call: Call[T]) -> T: ...


class _AsksAsync(Protocol):
    async def ask(self, call: Call[T]) -> T: ...


class _Episode:
    def __init__(self, *, system: str | None, options: ActOptions) -> None:
        self._trajectory = Trajectory(system, options)

    @property
    def episode_id(self) -> str:
        """What ties the steps together, at the server too."""
        return self._trajectory.episode_id

    @property
    def messages(self) -> Sequence[dict[str, Any]]:
        """The history so far."""
        return tuple(deepcopy(self._trajectory.messages))

    @property
    def last(self) -> Decision | Scores | None:
        """All that the server said of the last step."""
        return self._trajectory.last


class Episode(_Episode):
    """Steps of one episode, in a `with` block; after it, or after `finish`, there are no more.

    A step that raised has changed nothing and can be taken again.
    """

    def __init__(self, client: _Asks, *, system: str | None, options: ActOptions) -> None:
        super().__init__(system=system, options=options)
        self._client = client

    def act(self, observation: Observation, **options: Unpack[ActOptions]) -> str:
        """What to do after this observation; the first one includes the task."""
        decision = self._client.ask(self._trajectory.act(observation, options))
        return self._trajectory.add(observation, decision.action, decision)

    def choose(
        self, observation: Observation, candidates: Sequence[C], **options: Unpack[ModelOptions]
    ) -> C:
        """The best of what your own agent might do after this observation.

        Args:
            observation: a text, or messages as they are, such as the results of tool calls.
            candidates: texts or assistant's messages.
        """
        scores = self._client.ask(self._trajectory.score(observation, candidates, options))
        return self._trajectory.add(observation, candidates[scores.chosen], scores)

    def finish(self, reward: float, **options: Unpack[OutcomeOptions]) -> Outcome:
        """Tell the server how it ended; there are no more steps.

        Raises:
            UnknownEpisodeError: there was no step.
        """
        closed = self._client.ask(self._trajectory.outcome(reward, options))
        self._trajectory.end()
        return closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._trajectory.end()


class AsyncEpisode(_Episode):
    """The same as `Episode`, for use with asyncio in an `async with` block."""

    def __init__(
        self,
        client: _AsksAsync,
        *,
        system: str | None,
        options: ActOptions,
    ) -> None:
        super().__init__(system=system, options=options)
        self._client = client

    async def act(self, observation: Observation, **options: Unpack[ActOptions]) -> str:
        """See `Episode.act`."""
        decision = await self._client.ask(self._trajectory.act(observation, options))
        return self._trajectory.add(observation, decision.action, decision)

    async def choose(
        self, observation: Observation, candidates: Sequence[C], **options: Unpack[ModelOptions]
    ) -> C:
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._trajectory.end()
