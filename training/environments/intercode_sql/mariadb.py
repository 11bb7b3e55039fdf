"""MariaDB, which the benchmark's queries were written for: a private server that holds its dump.

The server listens on a socket in a folder of its own, has no network, and ends with this process.
Its data are in memory where the system has a file system for that, and are gone afterwards.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from qnet.errors import ConfigError, EnvironmentFailureError
from training.environments.intercode_sql.database import (
    MOST_RECORDS,
    OpenDatabase,
    QueryResult,
    too_many_records,
)

if TYPE_CHECKING:
    from pymysql.connections import Connection

SERVER: Final = "mariadbd"
INSTALLER: Final = "mariadb-install-db"
MOST_SECONDS: Final = 10
"""Time of a query; MariaDB counts no operations."""
_START_S: Final = 120.0
_ANSWER_S: Final = 30
"""A statement can lift its own limit; what does not answer until then is killed from outside."""
_DUMP_S: Final = 600
_MEMORY: Final = Path("/dev/shm")
_MEMORY_BYTES: Final = 256 * 1024**2
_SHOWN_LINES: Final = 8
_UNSAFE_BUT_FAST: Final = (
    # Nothing has to outlive a crash: the data come from the dump.
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-log-file-size=4M",
)
_SERVER_OPTIONS: Final = (
    *_UNSAFE_BUT_FAST,
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=32M",
    "--skip-log-bin",
    "--skip-networking",
    "--local-infile=0",
    "--max-connections=4096",
    # As the benchmark's server was set up.
    "--lower-case-table-names=1",
    "--sql-mode=",
)
_KILLED_WITH_INPUT: Final = '"$@" </dev/null & read -r _; kill -9 $!; wait'
"""Shell script that runs its arguments until its own input is closed, as a parent's death does."""


def find_server() -> tuple[str, str]:
    """The programs that install and run a server.

    Raises:
        ConfigError: one of them, or the client library, is missing.
    """
    found = [_program(name) for name in (INSTALLER, SERVER)]
    if not all(found):
        raise ConfigError(
            f"engine is 'mariadb', and there is no {SERVER}; install it (Debian: apt-get install "
            "--no-install-recommends mariadb-server) or set engine to 'sqlite'"
        )
    if find_spec("pymysql") is None:
        raise ConfigError(
            "engine is 'mariadb', which needs the package PyMySQL; install it: "
            "pip install 'qguide[mariadb]'"
        )
    installer, server = found
    return str(installer), str(server)


def _program(name: str) -> str | None:
    # Debian installs servers where the PATH of an ordinary user does not look.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


class MariaDbServer:
    """A server for one suite's episodes. It starts when its first database is opened."""

    def __init__(self, dump: Path, databases: Sequence[str]) -> None:
        """Check that it could start.

        Args:
            dump: statements that create the databases, as mysqldump writes them.
            databases: that tasks ask about.

        Raises:
            ConfigError: the server is not installed, or the dump is missing.
        """
        self._installer, self._server = find_server()
        if not dump.is_file():
            raise ConfigError(f"databases = {dump}: no file; name the benchmark's MySQL dump")
        self._dump, self._databases = dump, sorted(set(databases))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def opener(self, database: str) -> OpenDatabase:
        """Opens fresh connections to one database, which read it and nothing else."""
        return partial(self._open, database)

    def close(self) -> None:
        """End the server and remove its data; safe to call twice."""
        with self._lock:
            self._stop()

    def _open(self, database: str) -> "MariaDatabase":
        with self._lock:
            if self._process is None:
                try:
                    self._start()
                except BaseException:
                    self._stop()
                    raise
        connection = self._connect(user=_reader(database), database=database)
        return MariaDatabase(connection, kill=self._kill)

    def _kill(self, thread_id: int) -> None:
        """End a connection whose statement goes on."""
        with self._connect(user="root") as root, root.cursor() as cursor:
            cursor.execute("KILL HARD %s", (thread_id,))

    def _start(self) -> None:
        """Install, run and fill a server.

        Raises:
            EnvironmentFailureError: it does not start.
            ConfigError: the dump is none, or lacks a database.
        """
        self._folder = folder = Path(mkdtemp(prefix="qguide-mariadb-", dir=_memory()))
        data = ["--no-defaults", f"--datadir={folder / 'data'}", *_as_root()]
        install = [self._installer, *data, "--auth-root-authentication-method=normal"]
        install += ["--skip-test-db", *_UNSAFE_BUT_FAST]
        log = folder / "log"
        with log.open("wb") as output:
            ended = subprocess.run(
                install, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
            if ended.returncode:
                raise self._failure(f"its installation ended with {ended.returncode}")
            command = [self._server, *data, f"--socket={self._socket}", *_SERVER_OPTIONS]
            self._process = subprocess.Popen(
                ["sh", "-c", _KILLED_WITH_INPUT, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # an interrupt from the keyboard is the job's to handle
            )
        self._wait_for_answers()
        self._fill(self._connect(user="root", multi_statements=True))

    def _wait_for_answers(self) -> None:
        deadline = monotonic() + _START_S
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(str(self._socket))
                return
            except OSError as error:
                aborted = b"[ERROR] Aborting" in (self._folder_path / "log").read_bytes()
                if aborted or monotonic() > deadline:
                    raise self._failure(f"it does not answer ({error.strerror})") from error
            sleep(0.1)

    def _fill(self, root: "Connection[Any]") -> None:
        from pymysql import MySQLError

        # The statements go to the server as one text: MariaDB's own client has commands that run
        # programs, and a file may hold them.
        with root, root.cursor() as cursor:
            try:
                cursor.execute(self._dump.read_text(encoding="utf-8"))
                while cursor.nextset():
                    pass
                cursor.execute("SHOW DATABASES")
                there = {str(name) for (name,) in cursor.fetchall()}
            except (MySQLError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"databases = {self._dump}: {error}; name the benchmark's MySQL dump"
                ) from error
            if missing := [name for name in self._databases if name.lower() not in there]:
                raise ConfigError(
                    f"databases = {self._dump}: {len(missing)} of {len(self._databases)} databases "
                    f"are missing, the first is {missing[0]}; name the dump that creates them"
                )
            for name in self._databases:
                cursor.execute("CREATE USER %s@localhost", (_reader(name),))
                quoted = name.replace("`", "``")
                cursor.execute(
                    f"GRANT SELECT, SHOW VIEW ON `{quoted}`.* TO %s@localhost", (_reader(name),)
                )

    def _connect(
        self, *, user: str, database: str | None = None, multi_statements: bool = False
    ) -> "Connection[Any]":
        import pymysql
        from pymysql.constants import CLIENT

        return pymysql.connect(
            unix_socket=str(self._socket),
            user=user,
            database=database,
            read_timeout=_DUMP_S if multi_statements else _ANSWER_S,
            client_flag=CLIENT.MULTI_STATEMENTS if multi_statements else 0,
            charset="utf8mb4",
            ssl_disabled=True,  # nothing but the socket; a TLS context costs 0.1 s per connection
        )

    @property
    def _folder_path(self) -> Path:
        assert self._folder is not None
        return self._folder

    @property
    def _socket(self) -> Path:
        return self._folder_path / "socket"

    def _failure(self, what: str) -> EnvironmentFailureError:
        lines = (self._folder_path / "log").read_text(errors="replace").splitlines()
        last = "\n".join(lines[-_SHOWN_LINES:])
        return EnvironmentFailureError(f"MariaDB does not start: {what}; its last lines:\n{last}")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _reader(database: str) -> str:
    """Name of the user who may read one database."""
    return f"reader_{database}"


def _memory() -> Path | None:
    """A file system in memory with enough room; None for the usual temporary folder."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
            return _MEMORY
    return None


def _as_root() -> list[str]:
    """MariaDB runs as root only if it is told to."""
    return ["--user=root"] if os.geteuid() == 0 else []


class MariaDatabase:
    """One connection in a read-only transaction; see `database.ReadOnlyDatabase`.

    Its user may read one database and nothing else, so that a statement that ends the transaction
    gains nothing.
    """

    def __init__(self, connection: "Connection[Any]", *, kill: Callable[[int], None]) -> None:
        """Begin the transaction.

        Args:
            connection: of the reader.
            kill: ends the connection with that number at the server.
        """
        self._connection, self._kill = connection, kill
        with connection.cursor() as cursor:
            cursor.execute("SELECT connection_id()")
            self._number = int(cursor.fetchone()[0])
            cursor.execute(f"SET SESSION max_statement_time = {MOST_SECONDS}")
            cursor.execute(f"SET SESSION sql_select_limit = {MOST_RECORDS + 1}")
            cursor.execute("SET SESSION TRANSACTION READ ONLY")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def execute(self, statement: str) -> QueryResult:
        """Run one statement."""
        from pymysql import MySQLError
        from pymysql.constants import CR

        if not statement.strip():
            return QueryResult(None, "the statement is empty")
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement)
                if cursor.description is None:
                    return QueryResult(None, "the statement has no result")
                records = list(cursor.fetchall())
        except MySQLError as error:
            if error.args[0] == CR.CR_SERVER_LOST:
                self._kill(self._number)
            return QueryResult(None, ": ".join(map(str, error.args)))
        return too_many_records(records) or QueryResult(records)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        if self._connection.open:
            self._connection.close()
