"""Recorder of finished episodes to JSONL files.

<folder>/trees-<time>-<id>.jsonl     the input of `qguide label`
<folder>/offers-<time>-<id>.jsonl    the candidates of each step and their Q
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from qguide.qnet.records import OfferRow, TreeRow
from qguide.server.episodes.records import (
    NotRecordableError,
    offer_rows,
    texts_of,
    took_actions,
    tree_row,
)
from qguide.server.episodes.redaction import RedactionError, Redactor
from qguide.server.episodes.rotated_file import RotatedFile, Undo
from qguide.server.episodes.state import Episode, Outcome
from qguide.server.episodes.transcript import Transcript, read_transcript

TREES = "trees"
OFFERS = "offers"

_log = structlog.get_logger(__name__)


class EpisodeRecorder:
    """Redacts and writes finished episodes.

    Args:
        redactor: redacts every text before it is written.
    """

    def __init__(
        self, folder: Path, *, max_file_bytes: int, max_files: int, redactor: Redactor
    ) -> None:
        self._redactor = redactor
        # One at a time: a thread that converts an episode takes turns with the event loop.
        self._converting = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._trees, self._offers = (
            RotatedFile(folder, kind, max_bytes=max_file_bytes, max_files=max_files)
            for kind in (TREES, OFFERS)
        )

    async def write(self, episode: Episode, records: Sequence[bytes]) -> str:
        """Record a closed episode; returns "" or the reason why it was not recorded.

        Args:
            records: of its steps, in order.
        """
        try:
            tree, offers = await self._rows(episode, records)
            async with self._writing:
                await asyncio.to_thread(self._write, tree, offers)
        except (NotRecordableError, RedactionError) as error:
            return str(error)
        except OSError as error:
            _log.error("episode_not_written", reason=error.strerror or type(error).__name__)
            return "the file could not be written; the server's log has the reason"
        return ""

    async def close(self) -> None:
        """Abort redactions; an episode that is being written is still completed."""
        await self._redactor.close()

    async def _rows(
        self, episode: Episode, records: Sequence[bytes]
    ) -> tuple[TreeRow | None, list[OfferRow]]:
        outcome = episode.outcome
        assert outcome is not None
        if episode.broken:
            raise NotRecordableError(episode.broken)
        async with self._converting:
            transcript, texts = await asyncio.to_thread(_read, records, outcome)
        redacted = dict(zip(texts, await self._redactor.redact(texts), strict=True))
        async with self._converting:
            return await asyncio.to_thread(
                _rows_of, transcript, outcome, redacted, recorded_as=episode.uid
            )

    def _write(self, tree: TreeRow | None, offers: Sequence[OfferRow]) -> None:
        undo: Undo = bool if tree is None else self._trees.append([tree])
        try:
            self._offers.append(offers)
        except OSError:
            undo()  # otherwise a retry of the outcome would write the tree twice
            raise
        # Only after both are written: a full disk must not cost an episode already recorded.
        self._trees.remove_oldest()
        self._offers.remove_oldest()


def _read(records: Sequence[bytes], outcome: Outcome) -> tuple[Transcript, list[str]]:
    """The transcript, and every text of it that is to be redacted."""
    transcript = read_transcript(records)
    return transcript, texts_of(transcript, outcome)


def _rows_of(
    transcript: Transcript, outcome: Outcome, redacted: Mapping[str, str], *, recorded_as: str
) -> tuple[TreeRow | None, list[OfferRow]]:
    redact = redacted.__getitem__
    acted = took_actions(transcript, outcome)
    tree = tree_row(transcript, outcome, redact, recorded_as=recorded_as) if acted else None
    return tree, list(offer_rows(transcript, outcome, redact, recorded_as=recorded_as))
