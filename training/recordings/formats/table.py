"""The table of formats."""

from collections.abc import Mapping
from typing import Final

from training.recordings.formats.layout import Layout
from training.recordings.served import read_tree_record
from training.recordings.sharegpt import read_sharegpt_record

FORMATS: Final[Mapping[str, Layout]] = {
    "served": Layout(marks=("nodes",), read=read_tree_record),
    "messages": Layout(marks=("messages",)),
    "sharegpt": Layout(
        marks=("conversations",),
        read=lambda record, fields: [read_sharegpt_record(record, fields)],
    ),
    "otel": Layout(marks=("resourceSpans", "resourceLogs")),
}
