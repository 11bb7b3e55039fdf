"""Limits of containers, read from folders like those of Linux."""

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from qguide.qnet import memory_limits
from qguide.qnet.memory_limits import available_bytes, total_bytes
from qguide.server.settings.settings import SCRIPTED, Settings

GIB = 1024**3
UNLIMITED_V1 = 9223372036854771712
V1 = "9:name=systemd:/\n5:cpu,cpuacct:/docker/a1\n4:memory:/docker/a1\n"


def write_groups(folder: Path, own: str, files: Mapping[str, object]) -> None:
    """Files of cgroups, and the list of a process's own."""
    (folder / "own").write_text(own)
    for name, content in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of 64 GiB, 40 of which are free, with its cgroups in a folder."""
    monkeypatch.setattr(memory_limits, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory_limits, "_OWN", tmp_path / "own")
    memory = psutil.virtual_memory()._replace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"memory.max": 4 * GIB, "memory.current": 3 * GIB, "memory.stat": f"anon 1\ninactive_file {GIB}"}),
        (
            V1,
            {
                "memory/memory.limit_in_bytes": 4 * GIB,
                "memory/memory.usage_in_bytes": 3 * GIB,
                "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
            },
        ),
    ],
    ids=["v2", "v1"],
)
def test_a_containers_limit_is_its_memory_and_files_that_it_has_read_are_free(
    tmp_path: Path, own: str, files: Mapping[str, object]
) -> None:
    write_groups(tmp_path, own, files)
    assert (total_bytes(), available_bytes()) == (4 * GIB, 2 * GIB)


def test_the_smallest_limit_of_a_group_and_those_above_holds(tmp_path: Path) -> None:
    files = {
        "memory.max": "max",
        "system.slice/memory.max": 8 * GIB,
        "system.slice/memory.current": 7 * GIB,
        "system.slice/qguide.service/memory.max": 16 * GIB,
        "system.slice/qguide.service/memory.current": GIB,
        "user.slice/memory.max": GIB,
    }
    write_groups(tmp_path, "0::/system.slice/qguide.service\n", files)
    assert (total_bytes(), available_bytes()) == (8 * GIB, GIB)


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"memory.max": "max", "memory.current": 3 * GIB}),
        (V1, {"memory/memory.limit_in_bytes": UNLIMITED_V1, "memory/memory.usage_in_bytes": 3 * GIB}),
        ("0::/\n", {}),
        ("", {"memory.max": GIB}),
    ],
    ids=["v2", "v1", "no files", "no groups"],
)
def test_without_a_limit_it_is_the_machines(tmp_path: Path, own: str, files: Mapping[str, object]) -> None:
    write_groups(tmp_path, own, files)
    assert (total_bytes(), available_bytes()) == (64 * GIB, 40 * GIB)


def test_more_in_use_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    write_groups(tmp_path, "0::/\n", {"memory.max": GIB, "memory.current": 2 * GIB})
    assert (total_bytes(), available_bytes()) == (GIB, 0)


def test_caches_of_a_small_container_are_small(tmp_path: Path) -> None:
    assert Settings(policy=SCRIPTED).most_cache_bytes == GIB // 2
    write_groups(tmp_path, "0::/\n", {"memory.max": GIB})
    assert Settings(policy=SCRIPTED).most_cache_bytes == GIB // 8
    assert Settings(policy=SCRIPTED, cache_bytes=7).most_cache_bytes == 7
