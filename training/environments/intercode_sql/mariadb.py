"""MariaDB, which the benchmark's queries were written for: sessions of a server with its dump.

The server is the operator's, and so is the account, which may read and nothing else. Every episode
has a session of it, and any account may change its password and end its sessions; so statements
that are no reads are not sent. A session limits the time of a statement, and its records unless it
has a LIMIT; so what is read of an answer is bounded here as well, and above it a new session takes
the place of the old one: a result cannot be left before its end.
"""

import os
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import pymysql
from pymysql import MySQLError
from pymysql.constants import CR
from pymysql.cursors import SSCursor

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.training.environments.intercode_sql.database import MOST_RECORDS, QueryResult, Records, too_many_records

PASSWORD: Final = "MYSQL_PWD"
"""Variable of the account's password, as MySQL's own client reads it; run folders keep the DSN."""

MOST_SECONDS: Final = 10
"""Time of a query; MariaDB counts no operations."""
ANSWER_S: Final = 30
"""Time of an answer: a statement that its own limit does not stop is killed from outside."""
MOST_BYTES: Final = 16 * 1024**2
"""Bytes of an answer, as they arrive; a statement can make one record of any length."""

_BLANK: Final = r"(?:\s|--.*\n|#.*\n|/\*(?:[^*]|\*(?!/))*\*/)"
_READ: Final = re.compile(rf"(?:{_BLANK}|\()*(?:select|with|values|show|desc|describe|explain)\b", re.I)
"""The statements that SQLite's engine answers, too."""
_EXECUTABLE_COMMENT: Final = re.compile(r"/\*M?!", re.I)
_NO_READ: Final = (
    "the statement is refused: it must begin with SELECT, WITH, VALUES, SHOW, DESCRIBE or EXPLAIN, "
    "and have no executable comment"
)

_HARMLESS: Final = r"(?:USAGE|SHOW VIEW|SHOW DATABASES|SELECT(?: \((?:`(?:[^`]|``)+`(?:, )?)+\))?)"
_HARMLESS_GRANT: Final = re.compile(rf"GRANT {_HARMLESS}(?:, {_HARMLESS})* ON (?!.* GRANT OPTION)")


class _Connection(pymysql.Connection):
    """A connection that counts the bytes of an answer."""

    answer_bytes = 0

    def _read_bytes(self, num_bytes: int) -> Any:
        # Before they are read: one packet can be larger than the memory.
        self.answer_bytes += num_bytes
        if self.answer_bytes > MOST_BYTES:
            raise ValueError(f"the result has more than {MOST_BYTES:,} bytes")
        return super()._read_bytes(num_bytes)  # type: ignore[misc]


def _connect(dsn: str, database: str | None = None) -> _Connection:
    place = urlsplit(dsn)
    return _Connection(
        user=place.username,
        password=os.environ.get(PASSWORD, ""),
        host=place.hostname or "localhost",
        port=place.port or 3306,
        unix_socket=place.path or None,
        database=database,
        read_timeout=ANSWER_S,
        charset="utf8mb4",
        ssl_disabled=bool(place.path),  # a TLS context costs 0.1 s, and a socket needs none
        sql_mode="",  # as the benchmark's server has it
    )


def require_reader(dsn: str, databases: Sequence[str]) -> None:
    """Refuse an account that may do more than read, and one to which databases are missing."""
    try:
        with closing(_connect(dsn)) as connection, connection.cursor() as cursor:
            # Of columns and routines, too, and those by roles and PUBLIC.
            cursor.execute("SHOW GRANTS")
            grants = [str(grant) for (grant,) in cursor.fetchall()]
            cursor.execute("SHOW DATABASES")
            there = {str(name).lower() for (name,) in cursor.fetchall()}
    except MySQLError as error:
        raise ConfigError(
            f"dsn = {dsn}: {_said(error)}; start the server, or correct the address or {PASSWORD}"
        ) from error
    if more := [grant for grant in grants if not _HARMLESS_GRANT.match(grant)]:
        told = re.sub(r" IDENTIFIED .*?(?= WITH |; |$)", "", "; ".join(more))  # a password's hash
        raise ConfigError(
            f"dsn = {dsn}: the account may do more than read ({told}); name one that was granted "
            "nothing but SELECT and SHOW VIEW, and no role"
        )
    if missing := [name for name in dict.fromkeys(databases) if name.lower() not in there]:
        raise ConfigError(
            f"dsn = {dsn}: {len(missing)} databases are missing, the first is {missing[0]}; load "
            "the benchmark's MySQL dump, or grant the account SELECT on them"
        )


class MariaDatabase:
    """One session, in a read-only transaction; see `database.ReadOnlyDatabase`."""

    def __init__(self, dsn: str, database: str) -> None:
        self._dsn, self._database = dsn, database
        self._connection: _Connection | None = None
        self._open()

    def execute(self, statement: str) -> QueryResult:
        """Run one statement that reads."""
        if not statement.strip():
            return QueryResult(None, "the statement is empty")
        if not _READ.match(statement) or _EXECUTABLE_COMMENT.search(statement):
            return QueryResult(None, _NO_READ)
        if self._connection is None:
            raise EnvironmentFailureError("the connection to MariaDB is closed; open another")
        cursor: Any = self._connection.cursor(SSCursor)
        self._connection.answer_bytes = 0
        try:
            cursor.execute(statement)
            if cursor.description is None:
                return QueryResult(None, "the statement has no result")
            result, is_whole = _read(cursor)
        except (MySQLError, ValueError) as error:  # a ValueError: the encoding, or the bytes
            result = QueryResult(None, _said(error))
            is_whole = isinstance(error, MySQLError) and not _is_of_connection(error)
        if not is_whole:
            _forget_rest(cursor)
            self._renew()
        return result

    def close(self) -> None:
        """End the session; safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _renew(self) -> None:
        """Begin a new session, and end the old one with its statement."""
        left = self._number
        self.close()
        self._open()
        assert self._connection is not None
        with suppress(pymysql.OperationalError), self._connection.cursor() as cursor:
            cursor.execute("KILL HARD %s", (left,))  # it is its own account's, or gone

    def _open(self) -> None:
        try:
            connection = self._connection = _connect(self._dsn, self._database)
            self._number = int(connection.thread_id())  # type: ignore[no-untyped-call]
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION max_statement_time = {MOST_SECONDS}")
                cursor.execute(f"SET SESSION sql_select_limit = {MOST_RECORDS + 1}")
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        except MySQLError as error:
            self.close()
            raise EnvironmentFailureError(f"MariaDB refuses a session: {_said(error)}") from error


def _read(cursor: Any) -> tuple[QueryResult, bool]:
    """The result of a statement, and whether it was read to its end."""
    deadline = monotonic() + ANSWER_S
    records: Records = []
    while (record := cursor.fetchone()) is not None:
        records.append(record)
        if too_many := too_many_records(records):
            return too_many, False
        if monotonic() > deadline:
            return QueryResult(None, f"the result takes more than {ANSWER_S} s"), False
    return QueryResult(records), True


def _forget_rest(cursor: Any) -> None:
    """Let PyMySQL forget a cursor without reading its result to the end, as it does otherwise."""
    if cursor._result is not None:
        cursor._result.unbuffered_active = False
    cursor.connection = None


def _said(error: Exception) -> str:
    return ": ".join(map(str, error.args))


def _is_of_connection(error: MySQLError) -> bool:
    """True if an error is the client's own: the connection was closed, lost or never there."""
    if isinstance(error, pymysql.InterfaceError):  # closed on this side
        return True
    return bool(error.args) and CR.CR_ERROR_FIRST <= error.args[0] <= CR.CR_ERROR_LAST
