"""MySQL's statements about tables and columns, answered from SQLite's catalogue."""

import re
import sqlite3
from typing import Final

_SHOW_TABLES: Final = re.compile(r"show\s+(?:full\s+)?tables(?:\s+(?:from|in)\s+\S+)?", re.I)
_DESCRIBE: Final = re.compile(
    r"(?:desc|describe|explain|show\s+(?:full\s+)?(?:columns|fields)\s+(?:from|in))\s+([\w.`\"]+)",
    re.I,
)
_PRIMARY: Final = "PRI"

Records = list[tuple[object, ...]]


def answer_schema_statement(
    connection: sqlite3.Connection, database: str, statement: str
) -> Records | None:
    """Records of a SHOW or DESCRIBE statement; None for any other statement.

    Raises:
        sqlite3.OperationalError: the table does not exist.
    """
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
    return [
        name
        for name, schema in listed.fetchall()
        if schema == database and not name.startswith("sqlite_")
    ]


def _columns(connection: sqlite3.Connection, database: str, table: str) -> Records:
    """Field, type, NULL allowed, key, default and extra of each column, as MySQL tells them."""
    found = connection.execute(
        'SELECT name, type, "notnull", pk, dflt_value FROM pragma_table_info(?, ?) ORDER BY cid',
        (table, database),
    )
    return [
        (
            name,
            kind.lower(),
            "NO" if not_null or key else "YES",
            _PRIMARY if key else "",
            default,
            "",
        )
        for name, kind, not_null, key, default in found.fetchall()
    ]
