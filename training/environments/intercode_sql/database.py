"""SQLite in the place of MySQL: a read-only database that answers queries as tuples or errors.

Agents of the benchmark write MySQL. Almost all of their queries mean the same in SQLite; the
statements that list tables and columns do not exist there and are answered from its
catalogue.
"""

import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from qguide.qnet.errors import ConfigError, EnvironmentFailureError

Records = list[tuple[object, ...]]

ERROR: Final = "Error executing query: "
MOST_OPERATIONS: Final = 50_000_000
"""Virtual-machine operations of a query; a count, unlike a time, ends every run alike."""
_CHECK_EVERY: Final = 100_000
MOST_RECORDS: Final = 50_000

_ALLOWED: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
"""Everything else is refused: writing, but also ATTACH, which could open any file."""

_SHOW_TABLES: Final = re.compile(r"show\s+(?:full\s+)?tables(?:\s+(?:from|in)\s+\S+)?", re.I)
_DESCRIBE: Final = re.compile(
    r"(?:desc|describe|explain|show\s+(?:full\s+)?(?:columns|fields)\s+(?:from|in))\s+([\w.`\"]+)", re.I
)
_PRIMARY: Final = "PRI"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Answer to one statement: records, or the error that it raised.

    Attributes:
        records: None where there was an error.
        error: "" where there was none.
    """

    records: Records | None
    error: str = ""

    @property
    def text(self) -> str:
        """The answer as the benchmark shows it to an agent."""
        return ERROR + self.error if self.records is None else str(self.records)


class ReadOnlyDatabase(Protocol):
    """A connection to one task's database, by which nothing can be changed."""

    def execute(self, statement: str) -> QueryResult:
        """Run one statement."""
        ...

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        ...


def too_many_records(records: Records) -> QueryResult | None:
    """The error of a result above the limit; None for any other."""
    if len(records) <= MOST_RECORDS:
        return None
    return QueryResult(None, f"the result has more than {MOST_RECORDS:,} records")


class Database:
    """One SQLite connection, which nothing that it executes can change."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._operations = 0
        connection.create_function("concat", -1, _concat, deterministic=True)
        connection.create_function("year", 1, _year, deterministic=True)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(self._count_operations, _CHECK_EVERY)

    def execute(self, statement: str) -> QueryResult:
        """Run one statement."""
        self._operations = 0
        try:
            records = self._schema_records(statement)
            if records is None:
                cursor = self._connection.execute(statement)
                records = cursor.fetchmany(MOST_RECORDS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            return QueryResult(None, self._message(error))
        return too_many_records(records) or QueryResult(records)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._connection.close()

    def _schema_records(self, statement: str) -> Records | None:
        # The catalogue is read by PRAGMA, which agents may not use.
        self._connection.set_authorizer(None)
        try:
            return answer_schema_statement(self._connection, self._name, statement)
        finally:
            self._connection.set_authorizer(_authorize)

    def _count_operations(self) -> int:
        self._operations += _CHECK_EVERY
        return int(self._operations > MOST_OPERATIONS)

    def _message(self, error: Exception) -> str:
        if self._operations > MOST_OPERATIONS:
            return f"the query was stopped after {MOST_OPERATIONS:,} operations"
        return str(error)


def open_file(path: Path, name: str) -> Database:
    """A database file as the schema `name`, so that `name.table` is understood too."""
    if not path.is_file():
        raise ConfigError(f"{path} is missing; name the folder of unpacked SQLite files")
    connection = _memory()
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        connection.execute(f"ATTACH ? AS {quoted(name)}", (uri,))
    except sqlite3.Error as error:
        raise EnvironmentFailureError(f"{path}: {error}; unpack the databases again") from error
    return Database(connection, name)


def open_script(script: str, name: str) -> Database:
    """A database that a script of statements fills."""
    connection = _memory()
    connection.execute(f"ATTACH ':memory:' AS {quoted(name)}")
    connection.executescript(script)
    return Database(connection, name)


def _memory() -> sqlite3.Connection:
    return sqlite3.connect("file::memory:", uri=True, check_same_thread=False)


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _concat(*values: object) -> str | None:
    """MySQL's CONCAT, which SQLite has only as an operator: NULL if any part is NULL."""
    return None if None in values else "".join(map(str, values))


def _year(value: object) -> int | None:
    """MySQL's YEAR of a date that begins with it."""
    found = re.match(r"\d{4}", str(value))
    return int(found.group()) if found else None


OpenDatabase = Callable[[], ReadOnlyDatabase]
"""Opens a fresh connection to one task's database."""


def answer_schema_statement(connection: sqlite3.Connection, database: str, statement: str) -> Records | None:
    """Records of a SHOW or DESCRIBE statement; None for any other statement."""
    statement = statement.strip().rstrip(";").rstrip()
    if _SHOW_TABLES.fullmatch(statement):
        return [(name,) for name in _tables(connection, database)]
    described = _DESCRIBE.fullmatch(statement)
    if described is None:
        return None
    wanted = described.group(1).replace("`", "").replace('"', "").rpartition(".")[2]
    for name in _tables(connection, database):
        if name.lower() == wanted.lower():
            return _columns(connection, database, name)
    raise sqlite3.OperationalError(f"Table '{database}.{wanted}' doesn't exist")


def _tables(connection: sqlite3.Connection, database: str) -> list[str]:
    listed = connection.execute("SELECT name, schema FROM pragma_table_list ORDER BY name")
    return [name for name, schema in listed.fetchall() if schema == database and not name.startswith("sqlite_")]


def _columns(connection: sqlite3.Connection, database: str, table: str) -> Records:
    found = connection.execute(
        'SELECT name, type, "notnull", pk, dflt_value FROM pragma_table_info(?, ?) ORDER BY cid', (table, database)
    )
    return [
        (name, kind.lower(), "NO" if not_null or key else "YES", _PRIMARY if key else "", default, "")
        for name, kind, not_null, key, default in found.fetchall()
    ]
