"""Lengths of packed trees in a file of the run: a start after a kill reads them, and packs no tree for them."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from qguide.training.q_training.packed_rows import PackedEpoch, PackedRows

LENGTHS: Final = "lengths.npz"
"""Its name in the run folder."""


def keep_lengths(folder: Path, rows: PackedRows, sources: Sequence[bytes]) -> None:
    """Write the lengths of all epochs, unless they are there.

    Args:
        sources: marks of the rows that the trees come from: their places, and a hash of what they say.
    """
    path, partial = folder / LENGTHS, folder / f"{LENGTHS}.partial"
    if path.exists() and kept_lengths(folder, sources):
        return
    arrays: dict[str, NDArray[np.generic]] = {"sources": _hash(sources)}
    for number, epoch in enumerate(rows.epochs):
        arrays |= {f"{name}-{number}": array for name, array in epoch._asdict().items()}
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    partial.replace(path)


def kept_lengths(folder: Path, sources: Sequence[bytes]) -> list[PackedEpoch]:
    """The lengths of all epochs, as an earlier start found them; none where it found none, or among other rows."""
    try:
        with np.load(folder / LENGTHS, allow_pickle=False) as kept:
            if not np.array_equal(kept["sources"], _hash(sources)):
                return []
            epochs = sum(name.startswith("lengths-") for name in kept.files)
            return [
                PackedEpoch(*(kept[f"{name}-{number}"] for name in PackedEpoch._fields)) for number in range(epochs)
            ]
    except (BadZipFile, KeyError, OSError, ValueError):
        return []


def _hash(sources: Sequence[bytes]) -> NDArray[np.uint8]:
    digest = sha256()
    for source in sources:
        digest.update(len(source).to_bytes(8, "little") + source)
    return np.frombuffer(digest.digest(), np.uint8)
