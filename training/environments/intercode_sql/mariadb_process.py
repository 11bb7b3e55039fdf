"""The process of a private MariaDB server, and what its root user does there.

The server listens on a socket in a folder of its own, has no network, and ends with this process.
Its data are in memory where the system has a file system for that, and are gone afterwards.
"""

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from qguide.qnet.errors import ConfigError, EnvironmentFailureError

if TYPE_CHECKING:
    from pymysql import MySQLError
    from pymysql.connections import Connection

_START_S: Final = 240.0
_DUMP_S: Final = 600
_ROOT_S: Final = 60
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
_ABORTED: Final = "[ERROR] Aborting"
"""Text by which the log says that the server, or its installation, has ended."""
_KILLED_WITH_INPUT: Final = "({}) </dev/null & read -r _; kill -9 0"
"""Shell script of a process group that ends when its input is closed, as a parent's death does."""
_REMOVED_AFTER_INPUT: Final = 'read -r _; rm -rf -- "$1"'
"""Shell script that removes a folder when nobody holds the other end of its input any more."""


class MariaDbProcess:
    """One run of the server.

    Attributes:
        is_lost: it was found dead or silent, and no connection to it is of use any more.
    """

    def __init__(self, installer: str, server: str) -> None:
        """Make its folder."""
        self._installer, self._server = installer, server
        self._folder = Path(mkdtemp(prefix="qguide-mariadb-", dir=_memory()))
        self._process: subprocess.Popen[bytes] | None = None
        self._remover: subprocess.Popen[bytes] | None = None
        self.is_lost = False

    def start(self) -> None:
        """Install and run the server."""
        data = ["--no-defaults", f"--datadir={self._folder / 'data'}", *_as_root()]
        install = [self._installer, *data, "--auth-root-authentication-method=normal"]
        install += ["--skip-test-db", *_UNSAFE_BUT_FAST]
        serve = [self._server, *data, f"--socket={self._socket}", *_SERVER_OPTIONS]
        both = (
            f"{shlex.join(install)} && exec {shlex.join(serve)}; "
            f"echo {shlex.quote(f'{_ABORTED}: the installation ended with')} $?"
        )
        # Sessions of their own: an interrupt from the keyboard is the job's to handle.
        self._remover = subprocess.Popen(
            ["sh", "-c", _REMOVED_AFTER_INPUT, "sh", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._remover.stdin is not None
        with self._remover.stdin as held, self._log.open("wb") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", _KILLED_WITH_INPUT.format(both)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[held.fileno()],  # to every process of the group, until its end
                start_new_session=True,
            )
        self._wait_for_answers()

    def fill(self, dump: Path, databases: Sequence[str]) -> None:
        """Run the dump's statements; nobody but root writes afterwards, or locks a record."""
        from pymysql import MySQLError
        from pymysql.constants import CLIENT

        # The statements go to the server as one text: MariaDB's own client has commands that run
        # programs, and a file may hold them.
        try:
            connection = self.connect("root", answer_s=_DUMP_S, client_flag=CLIENT.MULTI_STATEMENTS)
        except MySQLError as error:
            raise self.failure(error) from error
        with connection, connection.cursor() as cursor:
            try:
                cursor.execute(dump.read_text(encoding="utf-8"))
                while cursor.nextset():
                    pass
                cursor.execute("SET GLOBAL read_only = 1")
                cursor.execute("SHOW DATABASES")
                there = {str(name) for (name,) in cursor.fetchall()}
            except (MySQLError, UnicodeDecodeError) as error:
                if isinstance(error, MySQLError) and is_of_connection(error):
                    raise self.failure(error) from error
                raise ConfigError(
                    f"databases = {dump}: {error}; name the benchmark's MySQL dump"
                ) from error
            if missing := [name for name in databases if name.lower() not in there]:
                raise ConfigError(
                    f"databases = {dump}: {len(missing)} of {len(databases)} databases "
                    f"are missing, the first is {missing[0]}; name the dump that creates them"
                )

    def connect(
        self,
        user: str,
        *,
        answer_s: float,
        database: str | None = None,
        client_flag: int = 0,
        on_received: Callable[[int], None] | None = None,
    ) -> "Connection[Any]":
        """A connection.

        Args:
            answer_s: longest wait for a part of an answer.
            on_received: called with the number of bytes each time some arrive.
        """
        import pymysql
        from pymysql.constants import CR

        connection = pymysql.Connection(
            user=user,
            database=database,
            read_timeout=answer_s,
            client_flag=client_flag,
            charset="utf8mb4",
            ssl_disabled=True,  # nothing but the socket; a TLS context costs 0.1 s per connection
            defer_connect=True,
        )
        try:
            channel = _Socket(on_received)
        except OSError as error:  # no file descriptor is left; the server is still there
            raise pymysql.OperationalError(error.errno, error.strerror) from error
        # PyMySQL does not close the socket of a connection that is refused.
        try:
            channel.settimeout(answer_s)
            channel.connect(str(self._socket))
            connection.connect(channel)
        except OSError as error:
            channel.close()
            raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, error.strerror) from error
        except BaseException:
            channel.close()
            raise
        return connection

    def add_reader(self, database: str) -> str:
        """Create a user who may read one database, and return the name.

        One for each episode: a user may kill each connection of its own, and set its password.
        """
        user = f"reader_{token_hex(8)}"
        # In the name of a database, GRANT takes these two for wildcards, and PyMySQL % for its own.
        quoted = database.replace("`", "``").replace("_", "\\_").replace("%", "\\%%")
        with self._root() as root, root.cursor() as cursor:
            cursor.execute("CREATE USER %s@localhost", (user,))
            cursor.execute(f"GRANT SELECT, SHOW VIEW ON `{quoted}`.* TO %s@localhost", (user,))
        return user

    def remove_reader(self, user: str) -> None:
        """Drop a user; a server that is gone has none."""
        from pymysql import MySQLError

        if self.is_lost:
            return
        with (
            contextlib.suppress(MySQLError),
            self._root() as root,
            root.cursor() as cursor,
        ):
            cursor.execute("DROP USER IF EXISTS %s@localhost", (user,))

    def kill(self, number: int) -> None:
        """End a connection whose statement goes on, if it is still there."""
        from pymysql import OperationalError
        from pymysql.constants import ER

        with self._root() as root, root.cursor() as cursor:
            try:
                cursor.execute("KILL HARD %s", (number,))
            except OperationalError as error:
                if error.args[0] != ER.NO_SUCH_THREAD:
                    raise

    def failure(self, error: "MySQLError") -> EnvironmentFailureError:
        """The failure of an episode whose connection cannot be had.

        One that is no answer of the server's means that it is gone.
        """
        self.is_lost = self.is_lost or is_of_connection(error)
        what = "MariaDB is gone" if self.is_lost else "MariaDB refuses a connection"
        return self._failure(f"{what}: {': '.join(map(str, error.args))}")

    def end(self) -> None:
        """End the server and remove its data; safe to call twice."""
        self.is_lost = True
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        remover, self._remover = self._remover, None
        if remover is not None:
            remover.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _root(self) -> "Connection[Any]":
        return self.connect("root", answer_s=_ROOT_S)

    def _wait_for_answers(self) -> None:
        deadline = monotonic() + _START_S
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(str(self._socket))
                return
            except OSError as error:
                aborted = _ABORTED.encode() in self._log.read_bytes()
                if aborted or monotonic() > deadline:
                    raise self._failure(
                        f"MariaDB does not start: it does not answer ({error.strerror})"
                    ) from error
            sleep(0.1)

    @property
    def _socket(self) -> Path:
        return self._folder / "socket"

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _failure(self, what: str) -> EnvironmentFailureError:
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:  # removed by `end`
            return EnvironmentFailureError(what)
        last = "\n".join(lines[-_SHOWN_LINES:])
        return EnvironmentFailureError(f"{what}; its last lines:\n{last}")


class _Socket(socket.socket):
    """A local socket that tells how many bytes arrive."""

    def __init__(self, on_received: Callable[[int], None] | None) -> None:
        super().__init__(socket.AF_UNIX)
        self._on_received = on_received

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        received = super().recv_into(buffer, nbytes, flags)
        if self._on_received is not None:
            self._on_received(received)
        return received


def is_of_connection(error: "MySQLError") -> bool:
    """True if an error is the client's own: the connection was closed, lost or never there."""
    from pymysql import InterfaceError
    from pymysql.constants import CR

    if isinstance(error, InterfaceError):  # closed on this side
        return True
    return bool(error.args) and CR.CR_ERROR_FIRST <= error.args[0] <= CR.CR_ERROR_LAST


def _memory() -> Path | None:
    """A file system in memory with enough room; None for the usual temporary folder."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
            return _MEMORY
    return None


def _as_root() -> list[str]:
    """MariaDB runs as root only if it is told to."""
    return ["--user=root"] if os.geteuid() == 0 else []
