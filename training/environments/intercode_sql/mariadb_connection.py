"""One episode's connection to MariaDB: it reads one database, within limits."""

from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.intercode_sql.database import (
    MOST_RECORDS,
    QueryResult,
    Records,
    too_many_records,
)
from qguide.training.environments.intercode_sql.mariadb_process import (
    MariaDbProcess,
    is_of_connection,
)

if TYPE_CHECKING:
    from pymysql.connections import Connection

MOST_SECONDS: Final = 10
"""Time of a query; MariaDB counts no operations."""
ANSWER_S: Final = 30
"""Time of an answer: a statement can lift its own limit, and is then killed from outside."""
MOST_BYTES: Final = 16 * 1024**2
"""Bytes of an answer, as they arrive; a statement can make one record of any length."""


class MariaDatabase:
    """One connection in a read-only transaction; see `database.ReadOnlyDatabase`.

    Its user is its own and may read one database and nothing else, and the server is read-only: a
    statement that ends the transaction can neither write nor lock a record. The names of locks
    (GET_LOCK) and of XA transactions are the server's, so one episode may find a name taken by
    another. The session's limits hold until a statement lifts them; so what is read of an answer is
    bounded here as well, and above it the connection makes room for a new one: a result cannot be
    left before its end.
    """

    def __init__(self, process: MariaDbProcess, database: str) -> None:
        """Open it."""
        from pymysql import MySQLError

        self._process, self._database = process, database
        self._user: str | None = None
        self._connection: Connection[Any] | None = None
        self._answer_bytes = 0
        try:
            self._user = process.add_reader(database)
            self._connection = self._connect(self._user)
        except MySQLError as error:
            failure = process.failure(error)  # before `close`, which does not ask a lost server
            self.close()
            raise failure from error

    def execute(self, statement: str) -> QueryResult:
        """Run one statement."""
        from pymysql import MySQLError
        from pymysql.cursors import SSCursor

        if not statement.strip():
            return QueryResult(None, "the statement is empty")
        if self._connection is None:
            raise EnvironmentFailureError("the connection to MariaDB is closed; open another")
        cursor: Any = self._connection.cursor(SSCursor)
        self._answer_bytes = 0
        try:
            cursor.execute(statement)
            if cursor.description is None:
                return QueryResult(None, "the statement has no result")
            result, is_whole = _read(cursor)
        except (MySQLError, ValueError) as error:  # a ValueError: the character set, or `_count`
            result = QueryResult(None, ": ".join(map(str, error.args)))
            is_whole = isinstance(error, MySQLError) and not is_of_connection(error)
        if not is_whole:
            _forget_rest(cursor)
            self._renew()
        return result

    def close(self) -> None:
        """Close the connection and remove its user; safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        user, self._user = self._user, None
        if user is not None:
            self._process.remove_reader(user)

    def _connect(self, user: str) -> "Connection[Any]":
        self._answer_bytes = 0
        connection = self._process.connect(
            user, answer_s=ANSWER_S, database=self._database, on_received=self._count
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT connection_id()")
                self._number = int(cursor.fetchone()[0])
                cursor.execute(f"SET SESSION max_statement_time = {MOST_SECONDS}")
                cursor.execute(f"SET SESSION sql_select_limit = {MOST_RECORDS + 1}")
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        except BaseException:
            connection.close()
            raise
        return connection

    def _count(self, received: int) -> None:
        self._answer_bytes += received
        if self._answer_bytes > MOST_BYTES:
            raise ValueError(f"the result has more than {MOST_BYTES:,} bytes")

    def _renew(self) -> None:
        """Begin a new session, and end the old one with its statement."""
        from pymysql import MySQLError

        assert self._connection is not None
        assert self._user is not None
        old, self._connection = self._connection, None
        old.close()
        try:
            self._process.kill(self._number)
            self._connection = self._connect(self._user)
        except MySQLError as error:
            raise self._process.failure(error) from error


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
    if cursor.nextset():
        return QueryResult(None, "the statement has more than one result"), False
    return QueryResult(records), True


def _forget_rest(cursor: Any) -> None:
    """Let PyMySQL forget a cursor without reading its result to the end, as it does otherwise."""
    if cursor._result is not None:
        cursor._result.unbuffered_active = False
    cursor.connection = None
