"""What the routes do with episodes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from qnet.errors import UnknownEpisodeError
from qnet.types import History
from server.context.request_context import scoped_episode_id
from server.episodes.recorder import EpisodeRecorder, load_redaction, unredacted
from server.episodes.redis_store import RedisEpisodeStore
from server.episodes.state import Episode, Offer, Outcome
from server.episodes.store import EpisodeStore, MemoryEpisodeStore
from server.observability.metrics import Metrics
from server.redis.client import RedisLink
from server.settings.settings import Settings

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Closed:
    """An episode that has its outcome.

    Attributes:
        not_recorded: why it stands in no file, or "".
    """

    episode: Episode
    not_recorded: str


class Episodes:
    """Ties the steps of an episode together; a request without an episode's id costs nothing.

    Args:
        recorder: writes what has ended; None keeps no texts at all.
        metrics: counts what has ended, and its reward.
    """

    def __init__(
        self, store: EpisodeStore, recorder: EpisodeRecorder | None, metrics: Metrics
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._recorder = recorder
        self._closing = asyncio.Lock()
        self._ending: set[asyncio.Task[Closed]] = set()

    async def begin_step(self, episode_id: str | None) -> Episode | None:
        """What is known of the episode before this step.

        Raises:
            EpisodeClosedError: it has ended.
        """
        episode = (
            await self._store.get(scoped_episode_id(episode_id)) if episode_id is not None else None
        )
        if episode is not None:
            episode.require_open()
        return episode

    async def end_step(
        self,
        episode_id: str | None,
        history: History,
        *,
        q_values: Mapping[str, float | None],
        chosen: str,
        q_model: str,
        policy: str = "",
        completion_tokens: int = 0,
        unreadable: str = "",
    ) -> None:
        """Remember what was offered and chosen; see `Offer`.

        Args:
            unreadable: why no Q model reads this history; the episode is no record then.

        Raises:
            EpisodeClosedError: it has ended meanwhile.
        """
        if episode_id is None:
            return
        offer = Offer(
            at=len(history),
            q_values=q_values,
            chosen=chosen,
            q_model=q_model,
            policy=policy,
            completion_tokens=completion_tokens,
        )
        keep = self._recorder is not None
        await self._store.update(
            scoped_episode_id(episode_id),
            lambda known: (known or Episode(id=episode_id)).after(
                history, offer, keep=keep, unreadable=unreadable
            ),
        )

    async def close(self, episode_id: str, outcome: Outcome) -> Closed:
        """Give an episode its outcome and record it; the same outcome again is the same answer.

        Raises:
            EpisodeClosedError: it has ended with another reward.
            UnknownEpisodeError: no step of it is remembered.
        """
        closing = asyncio.create_task(
            self._close(scoped_episode_id(episode_id), episode_id, outcome)
        )
        self._ending.add(closing)
        closing.add_done_callback(self._ending.discard)
        # A caller who goes leaves no thread behind that writes while the next one does.
        return await asyncio.shield(closing)

    async def settled(self) -> None:
        """Wait for the episodes that are being closed, whoever has gone meanwhile."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _close(self, place: str, episode_id: str, outcome: Outcome) -> Closed:
        async with self._closing:
            ends = False

            def close(known: Episode | None) -> Episode:
                nonlocal ends  # the last call is the one that counted
                ends = known is not None and known.outcome is None
                return _closed(episode_id, outcome, known)

            episode = await self._store.update(place, close)
            if ends and episode.last is not None:
                self._metrics.count_episode(episode.last.q_model, outcome.reward)
            if episode.recorded:
                return Closed(episode, "")
            closed = await self._record(place, episode)
            _log.info(
                "episode_closed",
                steps=episode.steps,
                reward=outcome.reward,
                q_model=episode.last.q_model if episode.last else None,
                recorded=closed.episode.recorded,
            )
            return closed

    async def _record(self, place: str, episode: Episode) -> Closed:
        if self._recorder is None:
            return Closed(
                episode, "episodes are not recorded here; the operator may set QGUIDE_EPISODES_DIR"
            )
        async with self._store.claimed(place) as mine:
            if not mine:
                return Closed(episode, "another server is writing it now; tell it again to know")
            episode = await self._store.get(place) or episode
            why_not = "" if episode.recorded else await self._recorder.write(episode)
            if not why_not:
                episode = await self._store.update(place, partial(_written, episode))
            return Closed(episode, why_not)


def build_recorder(settings: Settings) -> EpisodeRecorder | None:
    """What writes the episodes; None where the operator named no folder.

    Raises:
        ConfigError: the redaction hook cannot be imported.
    """
    if settings.episodes_dir is None:
        return None
    redaction = settings.episodes_redact
    return EpisodeRecorder(
        settings.episodes_dir,
        max_file_bytes=settings.episodes_file_bytes,
        max_files=settings.episodes_max_files,
        redact=load_redaction(redaction) if redaction else unredacted,
    )


def build_store(settings: Settings, link: RedisLink | None) -> EpisodeStore:
    """Where episodes are kept: in Redis where there is one, and in this process."""
    own = MemoryEpisodeStore(
        max_bytes=settings.episodes_memory_bytes, ttl_s=settings.episodes_ttl_s
    )
    return RedisEpisodeStore(link, own, ttl_s=settings.episodes_ttl_s) if link else own


def _closed(episode_id: str, outcome: Outcome, known: Episode | None) -> Episode:
    if known is None:
        raise UnknownEpisodeError(
            f"there is no episode {episode_id!r}; it had no step here with this episode_id, or was "
            "forgotten (QGUIDE_EPISODES_TTL_S, QGUIDE_EPISODES_MEMORY_BYTES)"
        )
    return known.closed(outcome)


def _written(closed: Episode, known: Episode | None) -> Episode:
    return (known or closed).written()
