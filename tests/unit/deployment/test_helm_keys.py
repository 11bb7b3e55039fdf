"""The keys of the Helm chart's pods: read from a Secret that changes, or waited for."""

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from qguide.server.http.keys import KeyFile, create_key, revoke_key
from tests.support.helm_chart import CASES, KEYS, environment, needs_helm, pods, rendered, server_of

WAIT_S = 60

pytestmark = needs_helm


def test_a_key_in_a_mounted_secret_counts_as_soon_as_the_secret_changes(tmp_path: Path) -> None:
    """The kubelet swaps a link to the folder; nobody writes here."""
    spec = pods(rendered(KEYS))["qguide"]["spec"]
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "keys")
    assert mount["readOnly"] is True
    assert "subPath" not in mount  # such a file never changes
    keys = []
    for name in ("first", "second"):
        keys.append(create_key(tmp_path / name / "keys.json", name))
        (tmp_path / name / "keys.json").chmod(0o440)
        (tmp_path / name).chmod(0o550)
    data, file = tmp_path / "..data", tmp_path / "keys.json"
    data.symlink_to("first")
    file.symlink_to("..data/keys.json")
    found = KeyFile(file)
    assert found.find(keys[0])
    (tmp_path / "..data_tmp").symlink_to("second")
    (tmp_path / "..data_tmp").rename(data)
    assert found.find(keys[0]) is None
    assert found.find(keys[1])


def until_it_sleeps(pid: int) -> None:
    """Return once the shell runs a command of its loop, behind its `trap`."""
    deadline = time.monotonic() + WAIT_S
    while not psutil.Process(pid).children():
        assert time.monotonic() < deadline, "the loop did not start"
        time.sleep(0.01)


def until_it_looks_again(process: "subprocess.Popen[bytes]") -> None:
    """Return once its loop has read the file as it is now, and goes on.

    The first new sleep may follow a look at the file of before; the third cannot be the last one,
    which follows a key.
    """
    deadline = time.monotonic() + WAIT_S
    before, seen = sleeps(process.pid), set[int]()
    while len(seen) < 3:
        assert process.poll() is None, "it found a key"
        assert time.monotonic() < deadline, "the loop does not go on"
        seen |= sleeps(process.pid) - before
        time.sleep(0.01)


def sleeps(pid: int) -> set[int]:
    found = set()
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == "sleep":
                found.add(child.pid)
    return found


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh on PATH")
def test_the_first_pod_waits_for_a_key_and_goes_when_told(tmp_path: Path) -> None:
    (container,) = pods(rendered(*CASES["volume"]))["qguide"]["spec"]["initContainers"]
    file = tmp_path / "keys.json"
    assert environment(container) == {"QGUIDE_KEYS_FILE": "/data/keys.json"}
    assert server_of(rendered(*CASES["volume"]))["volumeMounts"][0] == container["volumeMounts"][0]
    create_key(file, "revoked")
    revoke_key(file, "revoked")
    left_over = file.read_text()
    file.unlink()
    program = re.sub(r"sleep \d", "sleep 0.1", container["args"][0])
    command = [*container["command"], program]
    given = os.environ | {"QGUIDE_KEYS_FILE": str(file)}
    with (
        subprocess.Popen(command, env=given, stderr=subprocess.PIPE) as told,
        subprocess.Popen(command, env=given) as waits,
    ):
        until_it_sleeps(told.pid)  # only then is it ready for a signal
        until_it_sleeps(waits.pid)
        file.write_text(left_over)
        until_it_looks_again(told)
        until_it_looks_again(waits)
        assert (told.poll(), waits.poll()) == (None, None)
        told.terminate()
        assert told.communicate(timeout=WAIT_S)[1] == b""
        assert told.returncode == 143
        assert waits.poll() is None
        create_key(file, "me")
        assert waits.wait(WAIT_S) == 0
