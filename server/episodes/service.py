"""Operations on episodes: steps and the outcome."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import structlog

from qguide.qnet.errors import EpisodeClosedError, EpisodeFullError, InvalidRequestError, UnknownEpisodeError
from qguide.qnet.types import History, Message
from qguide.server.episodes.recorder import NOT_WRITTEN, EpisodeRecorder, warn_of_old_trees
from qguide.server.episodes.redaction import RedactionProcesses, require_redaction
from qguide.server.episodes.state import EpisodeChange, Offer, Outcome, ServedEpisode
from qguide.server.episodes.store import EpisodeStore, MemoryEpisodeStore
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import scoped_episode_id
from qguide.server.q_models.served import plain_name
from qguide.server.redis.client import RedisLink
from qguide.server.settings.outcome_rules import ruled_outcome
from qguide.server.settings.settings import Settings

OUTCOME_HEADER: Final = "X-QGuide-Outcome"
"""Header of a step that ends its episode: 0 to 1, true or false."""
EARNED_HEADER: Final = "X-QGuide-Earned"
"""Header of a step: the outcome of its episode if it had ended before it."""
_MOST_UNWRITTEN: Final = 10_000  # episodes that are written once there is room; of more, those that came first
SETTLE_S: Final = 1.0
"""Time at shutdown for episodes still to be recorded, after the requests in flight have ended."""
_log = structlog.get_logger(__name__)

Result = TypeVar("Result")
Ended = Callable[[str, ServedEpisode, str], Awaitable[None]]
"""Is told of each closed episode, which the caller's key scopes, and of why it cannot be recorded; "" if it can.

More than once if it has to be.
"""

Heard = Callable[[str, ServedEpisode], None]
"""Is told of an episode, which the caller's key scopes, as it is after a step or at its end."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed episode."""

    episode: ServedEpisode
    not_recorded: str  # why it was not recorded, or ""


@dataclass(slots=True)
class Episodes:
    """Keeps the state of episodes between requests."""

    store: EpisodeStore
    recorder: EpisodeRecorder | None  # records closed episodes; None keeps no texts
    metrics: Metrics
    _: KW_ONLY
    settings: Settings = field(default_factory=Settings)
    ended: Ended | None = None
    heard: Heard | None = None
    # One lock per episode being closed, so that a slow redaction delays no other episode.
    _closing: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _ending: set[asyncio.Task[Any]] = field(default_factory=set)
    _unwritten: dict[str, ServedEpisode] = field(default_factory=dict)
    _late: asyncio.Task[None] | None = None

    async def current(self, session: str) -> str:
        """Id of the episode that the next step of an agent's session belongs to.

        Nobody chose the session's name to be an episode's, so each outcome begins another episode.
        """
        latest, episode = await self._latest(session)
        if episode is None or episode.outcome is None:
            return latest
        return _following(session, episode)

    async def _latest(self, named: str) -> tuple[str, ServedEpisode | None]:
        """The latest episode of an agent's session; of an id that an agent chose, there is one."""
        episode_id, episode = named, await self.store.get(scoped_episode_id(named))
        while episode is not None and episode.outcome is not None:
            next_id = _following(named, episode)
            following = await self.store.get(scoped_episode_id(next_id))
            if following is None:
                break
            episode_id, episode = next_id, following
        return episode_id, episode

    async def begin_step(
        self, episode_id: str, *, outcome: float | None = None, earned: float | None = None, strict: bool = True
    ) -> ServedEpisode | None:
        """The episode before this step; None if it is new.

        Args:
            earned: the outcome that it would have had if it had ended before this step.
            strict: refuse a step of an episode that has ended or is full; otherwise it is served, and the episode is
                not recorded.
        """
        if outcome is not None:
            self._require_reward(outcome)
        if earned is not None:
            self._require_reward(earned, name="earned")
        episode = await self.find(episode_id)
        if episode is not None and strict:
            self._require_open(episode, outcome)
        return episode

    async def find(self, episode_id: str) -> ServedEpisode | None:
        """The episode of that id, whether it has ended or not; None: there is none."""
        return await self.store.get(scoped_episode_id(episode_id))

    async def end_step(
        self,
        episode_id: str,
        history: History,
        offer: Offer,
        *,
        candidates: Iterable[Message] = (),
        tools: bool = False,
        unreadable: str = "",
        outcome: float | None = None,
        final: bool = False,
        strict: bool = True,
    ) -> None:
        """Store the candidates of a step and the chosen one, and end the episode if that is due.

        Args:
            tools: the agent may call tools in it.
            unreadable: why Q models cannot read this history; the episode is not recorded then.
            final: the agent is at its end, see `OutcomeRule`.
        """
        keep = self.recorder is not None
        if keep:
            calling = {c.text: replace(c, wire=None) for c in candidates if c.tool_calls}
            offer = offer.model_copy(update={"calling": calling})

        def step(known: ServedEpisode | None) -> EpisodeChange:
            episode = known or ServedEpisode(id=episode_id)
            if strict:
                self._require_open(episode, outcome)
            begun = None if episode.outcome else episode.with_tools(history, tools=tools)
            if begun is None or begun.steps < episode.steps:
                return EpisodeChange(begun or episode)
            flaw = unreadable or self._fullness(begun)
            return begun.after(history, offer, keep=keep, unreadable=flaw)

        place = scoped_episode_id(episode_id)
        episode = await self.store.update(place, step)
        if not episode.steps:  # what was asked before its first step with tools has just been dropped
            episode = await self.store.update(place, step)
        self._hear(place, episode)
        if outcome is not None:
            await self.close(episode_id, Outcome(reward=outcome, by="header"))
        elif (
            episode.outcome is None
            and (ruled := ruled_outcome(self.settings.outcome_rules, history, final=final)) is not None
        ):
            with suppress(EpisodeClosedError):  # by another step of it, meanwhile
                await self.close(episode_id, Outcome(reward=ruled, by="rule"))

    def _require_open(self, episode: ServedEpisode, outcome: float | None) -> None:
        episode.require_open(outcome)
        if full := self._fullness(episode):
            raise EpisodeFullError(full)

    def _fullness(self, episode: ServedEpisode) -> str:
        return episode.fullness(max_bytes=self.settings.episode_max_bytes, max_steps=self.settings.episode_max_steps)

    def _require_reward(self, reward: float, *, name: str = "reward") -> None:
        lowest, highest = self.settings.min_reward, self.settings.max_reward
        if not lowest <= reward <= highest:
            raise InvalidRequestError(
                f"{name} is {reward:g}; this server takes {lowest:g} to {highest:g}; scale your rewards, or ask the "
                "operator to set QGUIDE_MIN_REWARD and QGUIDE_MAX_REWARD"
            )

    async def close(self, episode_id: str, outcome: Outcome) -> Closed:
        """Set the outcome of an episode and record it; idempotent for the same reward."""
        self._require_reward(outcome.reward)
        episode_id, _ = await self._latest(episode_id)
        closing = self._begin(self._close(scoped_episode_id(episode_id), episode_id, outcome))
        # Shielded, so that a client that disconnects does not leave a write running outside the episode's lock.
        return await asyncio.shield(closing)

    def _begin(self, closing: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Close an episode on a task of its own, for which `settle` waits."""
        task = asyncio.create_task(closing)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def settle(self, *, timeout_s: float = SETTLE_S) -> None:
        """Wait for episodes that are being closed, even if their clients have disconnected.

        An episode that is not redacted in time is dropped; its client was never told that it is recorded.
        """
        self._unwritten.clear()  # nothing begins any more
        if self._ending:
            _, late = await asyncio.wait(self._ending, timeout=timeout_s)
            if late:
                _log.error("episodes_given_up", episodes=len(late), timeout_s=timeout_s)
            for closing in late:
                closing.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self.recorder is not None:
            await self.recorder.close()

    def go_on(self, episodes: Iterable[tuple[str, ServedEpisode]]) -> None:
        """Watch the episodes that an earlier process has left, and record those that it could not."""
        for place, episode in episodes:
            self._hear(place, episode)
            if episode.outcome is not None and not (episode.recorded or episode.broken):
                self._unwritten[place] = episode
        self._begin_late()

    async def _close(self, place: str, episode_id: str, outcome: Outcome) -> Closed:
        async with self._closing.setdefault(place, asyncio.Lock()):
            ends = False

            def close(known: ServedEpisode | None) -> EpisodeChange:
                nonlocal ends  # `update` may call this several times; the last call counts
                ends = known is not None and known.outcome is None
                return EpisodeChange(_closed(episode_id, outcome, known))

            episode = await self.store.update(place, close)
            self._hear(place, episode)
            if ends and episode.last is not None:
                learned = episode.arm is not None and episode.arm.guided  # as one: they come and go
                q_model = episode.last.q_model
                self.metrics.count_episode(plain_name(q_model) if learned else q_model, outcome.reward)
            if episode.recorded:
                await self._tell(place, episode, "")
                return Closed(episode, "")
            closed = await self._record(place, episode)
            _log.info(
                "episode_closed",
                episode_id=episode_id,
                recorded_as=episode.uid,
                steps=episode.steps,
                reward=outcome.reward,
                by=outcome.by,
                q_model=episode.last.q_model if episode.last else None,
                recorded=closed.episode.recorded,
                reason=closed.not_recorded or None,
            )
            return closed

    async def _record(self, place: str, episode: ServedEpisode) -> Closed:
        if self.recorder is None:
            return Closed(episode, "this server records no episodes; the operator can set QGUIDE_EPISODES_DIR")
        async with self.store.claimed(place) as mine:
            if not mine:
                return Closed(episode, "another replica is recording it now; send the outcome again to check")
            episode = await self.store.get(place) or episode
            why_not = ""
            if not episode.recorded:
                why_not = await self.recorder.write(episode, await self.store.records(place))
            # Told first: if the process is killed between these, the episode is told again.
            try:
                await self._tell(place, episode if why_not else episode.written(), why_not)
            finally:
                if not why_not:
                    closed = episode
                    episode = await self.store.update(place, lambda known: EpisodeChange((known or closed).written()))
        if why_not:
            self.metrics.count_unrecorded(disk=why_not == NOT_WRITTEN)
        if why_not == NOT_WRITTEN and len(self._unwritten) < _MOST_UNWRITTEN:
            self._unwritten[place] = episode
        elif not why_not:  # there is room again
            self._begin_late()
        return Closed(episode, why_not)

    def _begin_late(self) -> None:
        if self._unwritten and (self._late is None or self._late.done()):
            self._late = self._begin(self._write_late())

    async def _write_late(self) -> None:
        while self._unwritten:
            place, episode = self._unwritten.popitem()
            assert episode.outcome is not None
            with suppress(UnknownEpisodeError):  # it has expired
                if (await self._close(place, episode.id, episode.outcome)).not_recorded == NOT_WRITTEN:
                    return

    def _hear(self, place: str, episode: ServedEpisode) -> None:
        if self.heard is not None:
            self.heard(place, episode)

    async def _tell(self, place: str, episode: ServedEpisode, why_not: str) -> None:
        if self.ended is not None:
            await self.ended(place, episode, "" if why_not == NOT_WRITTEN else why_not)  # that one is written later


def _following(session: str, closed: ServedEpisode) -> str:
    """Id of the episode that follows a closed one; every replica can tell it."""
    return f"{session}~{closed.uid}"


def build_recorder(settings: Settings) -> EpisodeRecorder | None:
    """Build the recorder of finished episodes; None if no folder is configured."""
    if (folder := settings.episodes_folder) is None:
        return None
    warn_of_old_trees(folder)
    redactor = None
    if name := settings.episodes_redact:
        timeout_s = settings.episodes_redact_timeout_s
        require_redaction(name, timeout_s=timeout_s)
        redactor = RedactionProcesses(name, timeout_s=timeout_s)
    return EpisodeRecorder(
        folder, max_file_bytes=settings.episodes_file_bytes, max_files=settings.episodes_max_files, redactor=redactor
    )


def build_store(settings: Settings, link: RedisLink | None) -> EpisodeStore:
    """Build the store of episodes: in memory, and in Redis if configured."""
    max_bytes, ttl_s = settings.episodes_memory_bytes, settings.episodes_ttl_s
    own = MemoryEpisodeStore(max_bytes=max_bytes, ttl_s=ttl_s)
    if link is None:
        return own
    from qguide.server.episodes.redis_store import RedisEpisodeStore  # with Redis' library

    return RedisEpisodeStore(link, own, max_bytes=max_bytes, ttl_s=ttl_s)


@asynccontextmanager
async def outlasting(episodes: Episodes, store: EpisodeStore, settings: Settings) -> AsyncIterator[None]:
    """Go on with the open episodes that an earlier process has left, and keep those of the block on the disk.

    Not with Redis, which has them. With a redactor, which has not seen their texts, none are kept on the disk, and what
    was there of before is not left there.
    """
    folder = settings.episodes_folder
    if folder is None or not isinstance(store, MemoryEpisodeStore):
        yield
        return
    try:
        episodes.go_on(store.take_up(folder, keeps=not settings.episodes_redact))
    except (OSError, sqlite3.Error) as error:
        _log.error("open_episodes_not_saved", reason=str(error))
    with closing(store):
        yield


def _closed(episode_id: str, outcome: Outcome, known: ServedEpisode | None) -> ServedEpisode:
    if known is None:
        raise UnknownEpisodeError(
            f"there is no episode {episode_id!r}; either no step was sent with this episode_id, or it has expired "
            "(QGUIDE_EPISODES_TTL_S, QGUIDE_EPISODES_MEMORY_BYTES)"
        )
    return known.closed(outcome)
