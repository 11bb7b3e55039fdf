"""MariaDB, which the benchmark's queries were written for: a private server that holds its dump."""

import shutil
import threading
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.support.extras import install
from qguide.training.environments.intercode_sql.database import OpenDatabase
from qguide.training.environments.intercode_sql.mariadb_connection import MariaDatabase
from qguide.training.environments.intercode_sql.mariadb_process import MariaDbProcess

SERVER: Final = "mariadbd"
INSTALLER: Final = "mariadb-install-db"


def find_server() -> tuple[str, str]:
    """The programs that install and run a server."""
    found = [_program(name) for name in (INSTALLER, SERVER)]
    if not all(found):
        raise ConfigError(
            f"engine is 'mariadb', and there is no {SERVER}; install it (Debian: apt-get install "
            "--no-install-recommends mariadb-server) or set engine to 'sqlite'"
        )
    if find_spec("pymysql") is None:
        raise ConfigError(
            f"engine is 'mariadb', which needs the package PyMySQL; {install('mariadb')}"
        )
    installer, server = found
    return str(installer), str(server)


def _program(name: str) -> str | None:
    # Debian installs servers where the PATH of an ordinary user does not look.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


class MariaDbServer:
    """A server for one suite's episodes.

    It starts when the first database is opened. One that died fails the episodes that had it open;
    the next open starts another, also if it is the one that notices.
    """

    def __init__(self, dump: Path, databases: Sequence[str]) -> None:
        """Check that it could start."""
        self._installer, self._server = find_server()
        if not dump.is_file():
            raise ConfigError(f"databases = {dump}: no file; name the benchmark's MySQL dump")
        self._dump, self._databases = dump, sorted(set(databases))
        self._lock = threading.Lock()
        self._process: MariaDbProcess | None = None

    def opener(self, database: str) -> OpenDatabase:
        """Opens fresh connections to one database, which read it and nothing else."""
        return partial(self._open, database)

    def close(self) -> None:
        """End the server and remove its data; safe to call twice."""
        with self._lock:
            self._stop()

    def _open(self, database: str) -> MariaDatabase:
        process = self._running()
        try:
            return MariaDatabase(process, database)
        except EnvironmentFailureError:
            if not process.is_lost:
                raise
        return MariaDatabase(self._running(), database)

    def _running(self) -> MariaDbProcess:
        with self._lock:
            if self._process is not None and self._process.is_lost:
                self._stop()
            if self._process is None:
                self._process = self._start()
            return self._process

    def _start(self) -> MariaDbProcess:
        process = MariaDbProcess(self._installer, self._server)
        try:
            process.start()
            process.fill(self._dump, self._databases)
        except BaseException:
            process.end()
            raise
        return process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()
