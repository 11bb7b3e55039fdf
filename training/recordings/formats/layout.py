"""The layout of a format: the places of an episode's parts, or a translation to plain records."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qguide.training.recordings.episode import RecordedEpisode
from qguide.training.recordings.fields import OTHER_SHAPE, Fields, other_shape
from qguide.training.recordings.json_stream import Value
from qguide.training.recordings.json_window import OnBytes
from qguide.training.recordings.message_records import MESSAGES, PLAIN, Places, read_message_record
from qguide.training.recordings.otel_spans import Fragment

Record = Mapping[str, Any]
Translate = Callable[[Record], Iterable[Record]]
"""A record as plain ones: messages, reward, task_id, source, terminated, left_out."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One format.

    Attributes:
        marks: places by which a record shows the format; of "a b" it has both.
        places: where the parts of an episode lie, if there is no translation.
        translate: turns a record into plain ones; None where its places are enough.
        read: reads a record that is no list of messages at all.
        files: patterns of the files of a folder; none takes every file of JSON.
        within: see `read_values`; "" if a file's values are its records.
        keeping: see `read_values`.
        beside: file with the outcome, seen from the record's; its JSON is `@beside` of the record.
        values: reads a file, or files beside it, in another way.
        fragments: reads requests to models, of which those of one trace are an episode.
    """

    marks: tuple[str, ...] = ()
    places: Places = MESSAGES
    translate: Translate | None = None
    read: Callable[[Record, Fields], Iterable[RecordedEpisode]] | None = None
    files: tuple[str, ...] = ()
    within: str = ""
    keeping: tuple[str, ...] = ()
    beside: str = ""
    values: Callable[[Path, OnBytes], Iterator[Value]] | None = None
    fragments: Callable[[object], Iterator[Fragment]] | None = None

    def episodes(self, record: Record, fields: Fields) -> Iterator[RecordedEpisode]:
        """The episodes of a record."""
        if self.read:
            yield from self.read(record, fields)
        elif self.translate is None:
            yield read_message_record(record, fields, self.places)
        else:
            for plain in self._plain(self.translate, record):
                yield read_message_record(plain, fields, PLAIN, told=record)

    def _plain(self, translate: Translate, record: Record) -> list[Record]:
        """The plain records of one; a shape that the translation did not expect is no failure."""
        try:
            return list(translate(record))
        except OTHER_SHAPE as error:
            raise other_shape(error) from error
