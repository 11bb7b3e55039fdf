"""MariaDB starts, is replaced when it died, and ends with its suite."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.training.environments.intercode_sql import mariadb_connection as module
from qguide.training.environments.intercode_sql import mariadb_process as process_module
from qguide.training.environments.intercode_sql.mariadb import MariaDbServer, find_server
from qguide.training.environments.intercode_sql.mariadb_connection import MariaDatabase
from qguide.training.environments.intercode_sql.mariadb_process import MariaDbProcess
from tests.support.mariadb_dump import DUMP, only

ANSWERED_WITHIN_S = 60


@pytest.mark.parametrize("noticed_by", ["execute", "open"])
def test_a_dead_server_fails_its_episodes_and_is_replaced(
    mariadb_installed: None, tmp_path: Path, noticed_by: str
) -> None:
    dump = tmp_path / "dump.sql"
    dump.write_text(DUMP)
    with contextlib.closing(MariaDbServer(dump, ["shop"])) as server:
        opened = server.opener("shop")()
        (socket,) = only(opened.execute("SELECT @@socket"))
        _kill(_process_at(str(socket)))
        reason = "MariaDB is gone: .*; its last lines:\n(.*\n)*.*ready for connections"
        if noticed_by == "execute":
            with pytest.raises(EnvironmentFailureError, match=reason):
                opened.execute("SELECT 1")
        fresh = server.opener("shop")()
        assert fresh.execute("SELECT count(*) FROM item").records == [(2,)]
        with pytest.raises(EnvironmentFailureError):
            opened.execute("SELECT 1")
        opened.close()
        assert fresh.execute("SELECT 1").records == [(1,)]
        fresh.close()
        assert not Path(str(socket)).parent.exists()


def test_a_lost_server_is_not_asked_to_remove_a_user(
    mariadb_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 1)
    dump = tmp_path / "dump.sql"
    dump.write_text(DUMP)
    process = MariaDbProcess(*find_server())
    silent = socket.socket(socket.AF_UNIX)

    class DiesAfterItsUserIsMade(MariaDatabase):
        def _connect(self, user: str) -> Any:
            _kill(_process_at(str(process._socket)))
            process._socket.unlink()
            silent.bind(str(process._socket))
            silent.listen()
            silent.setblocking(False)
            monkeypatch.setattr(process_module, "_ROOT_S", 1)
            return super()._connect(user)

    with silent, contextlib.ExitStack() as stack:
        stack.callback(process.end)
        process.start()
        process.fill(dump, ["shop"])
        with pytest.raises(EnvironmentFailureError, match="MariaDB is gone"):
            DiesAfterItsUserIsMade(process, "shop")
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_job_without_file_descriptors_does_not_lose_its_server(server: MariaDbServer) -> None:
    opened = server.opener("shop")()
    number = only(opened.execute("SELECT connection_id()"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(EnvironmentFailureError, match="refuses a connection: 24: Too many"):
            server.opener("shop")()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    server.opener("shop")().close()
    assert only(opened.execute("SELECT connection_id()")) == number
    opened.close()


def _kill(victim: psutil.Process) -> None:
    """Kill a process, and wait until it is dead; some shells reap their children at once."""
    victim.kill()
    deadline = time.monotonic() + ANSWERED_WITHIN_S
    with contextlib.suppress(psutil.NoSuchProcess):
        while victim.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _process_at(socket: str) -> psutil.Process:
    """The server that listens at a socket."""
    (found,) = (
        child
        for child in psutil.Process().children(recursive=True)
        if child.name() == "mariadbd" and f"--socket={socket}" in child.cmdline()
    )
    return found


def test_a_dump_without_a_database_says_which(mariadb_installed: None, tmp_path: Path) -> None:
    dump = tmp_path / "dump.sql"
    with pytest.raises(ConfigError, match="name the benchmark's MySQL dump"):
        MariaDbServer(dump, ["shop"])
    dump.write_text("CREATE DATABASE shop;")
    server = MariaDbServer(dump, ["Shop", "till"])
    with pytest.raises(ConfigError, match="1 of 2 databases are missing, the first is till"):
        server.opener("shop")()
    dump.write_text("CREATE nothing")
    with pytest.raises(ConfigError, match="name the benchmark's MySQL dump"):
        server.opener("shop")()
    server.close()


def test_the_server_does_not_outlive_a_killed_job(server: MariaDbServer, tmp_path: Path) -> None:
    dump = tmp_path / "dump.sql"
    dump.write_text(DUMP)
    job = f"""
import sys, time
from pathlib import Path
from qguide.training.environments.intercode_sql.mariadb import MariaDbServer
server = MariaDbServer(Path({str(dump)!r}), ["shop"])
print(server.opener("shop")().execute("SELECT @@socket").records[0][0], flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline()).parent
        assert folder.is_dir()
        started = psutil.Process(process.pid).children(recursive=True)
        assert any(child.name() == "mariadbd" for child in started)
        process.kill()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    assert not folder.exists()


def test_a_job_killed_while_the_server_is_installed_leaves_no_data(
    mariadb_installed: None,
) -> None:
    job = """
from qguide.training.environments.intercode_sql.mariadb import find_server
from qguide.training.environments.intercode_sql.mariadb_process import MariaDbProcess
process = MariaDbProcess(*find_server())
print(process._folder, flush=True)
process.start()
"""
    command = [sys.executable, "-c", job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        deadline = time.monotonic() + ANSWERED_WITHIN_S
        while not (folder / "data").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    _, alive = psutil.wait_procs(started, timeout=ANSWERED_WITHIN_S)
    assert alive == []
    assert not folder.exists()


def test_an_installation_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_START_S", 1)
    endless = tmp_path / "install"
    endless.write_text("#!/bin/sh\nsleep 60\nexit 3\n")
    endless.chmod(0o755)
    process = MariaDbProcess(str(endless), "false")
    with pytest.raises(EnvironmentFailureError, match="does not start: it does not answer"):
        process.start()
    process.end()


def test_an_installation_that_fails_says_so() -> None:
    process = MariaDbProcess("false", "false")
    with pytest.raises(EnvironmentFailureError, match="Aborting: the installation ended with 1"):
        process.start()
    process.end()
