"""Memory that this process may use: the machine's, or less where a container or a service has a limit.

Linux tells the machine's memory inside a container, too; the limit is in the files of its cgroup, and those of the
groups above hold as well.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


class _Names(NamedTuple):
    """Names of a group's files, and in `memory.stat` of what it has read from files and can give back."""

    limit: str
    used: str
    given_back: str


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def total_bytes() -> int:
    """Memory of the machine, or the smallest limit on this process."""
    limits = (_number(folder / names.limit) for folder, names in _groups(_CGROUPS, _OWN))
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])


def available_bytes() -> int:
    """Memory that is free, of the machine and below each limit on this process."""
    free = [psutil.virtual_memory().available]
    for folder, names in _groups(_CGROUPS, _OWN):
        limit, used = _number(folder / names.limit), _number(folder / names.used)
        if limit is not None and used is not None:
            free.append(max(0, limit - used + _given_back(folder, names)))
    return min(free)


def _groups(cgroups: Path, own: Path) -> Iterator[tuple[Path, _Names]]:
    """Folders that may have limits on this process: its group's and those above.

    Lines are `0::PATH` in version 2 and `NUMBER:CONTROLLERS:PATH` in version 1. In a container PATH may be the host's,
    which is not there, and the limit is that of the topmost folder.
    """
    for line in _text(own).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top, names = cgroups, _V2
        elif "memory" in controllers.split(","):
            top, names = cgroups / "memory", _V1
        else:
            continue
        folder = top / path.lstrip("/")
        yield from ((one, names) for one in (folder, *folder.parents) if one.is_relative_to(top))


def _number(file: Path) -> int | None:
    """The number in a file; None for `max` and without the file."""
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _given_back(group: Path, names: _Names) -> int:
    figures = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines())
    return int(figures.get(names.given_back, 0))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # another system than Linux, or a group that is not shown
        return ""
