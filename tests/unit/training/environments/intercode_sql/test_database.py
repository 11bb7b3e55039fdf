"""SQLite answers what agents of the benchmark write for MySQL, and nothing changes it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.training.environments.intercode_sql import database as module
from qguide.training.environments.intercode_sql.database import Database, open_file, open_script

SCRIPT = """
CREATE TABLE shop.item (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, sold TEXT);
CREATE TABLE shop.till (id INT);
INSERT INTO shop.item VALUES (1, 'rope', '2019-05-01'), (2, 'lamp', '2021-01-31');
"""


@pytest.fixture
def shop() -> Iterator[Database]:
    """Two tables."""
    database = open_script(SCRIPT, "shop")
    yield database
    database.close()


@pytest.mark.parametrize("statement", ["SHOW TABLES", " show tables; ", "show full tables from shop"])
def test_tables_are_listed(shop: Database, statement: str) -> None:
    assert shop.execute(statement).records == [("item",), ("till",)]


@pytest.mark.parametrize("statement", ["DESCRIBE item", "desc shop.item;", "SHOW COLUMNS FROM `item`", "explain ITEM"])
def test_columns_are_described_as_mysql_does(shop: Database, statement: str) -> None:
    assert shop.execute(statement).records == [
        ("id", "integer", "NO", "PRI", None, ""),
        ("name", "varchar(20)", "NO", "", None, ""),
        ("sold", "text", "YES", "", None, ""),
    ]


def test_an_unknown_table_is_an_error(shop: Database) -> None:
    assert shop.execute("DESC door").text == ("Error executing query: Table 'shop.door' doesn't exist")
    assert shop.execute("SELECT * FROM door").records is None


def test_a_statement_may_have_many_lines(shop: Database) -> None:
    assert shop.execute("SELECT name\nFROM item\n-- all\nORDER BY name").text == ("[('lamp',), ('rope',)]")


def test_tables_may_be_named_with_their_database(shop: Database) -> None:
    assert shop.execute("SELECT count(*) FROM shop.item").records == [(2,)]


def test_functions_of_mysql_are_known(shop: Database) -> None:
    query = "SELECT concat(name, '!'), year(sold), concat(name, NULL) FROM item WHERE id = 1"
    assert shop.execute(query).records == [("rope!", 2019, None)]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO till VALUES (1)",
        "DELETE FROM item",
        "CREATE TABLE mine (id)",
        "CREATE TEMP TABLE mine (id)",
        "DROP TABLE item",
        "ATTACH 'other.sqlite' AS other",
        "PRAGMA query_only = 0",
        "BEGIN",
        "SELECT 1; DELETE FROM item",
    ],
)
def test_nothing_but_reading_is_allowed(shop: Database, statement: str) -> None:
    assert shop.execute(statement).records is None
    assert shop.execute("SHOW TABLES").records == [("item",), ("till",)]
    assert shop.execute("SELECT count(*) FROM item").records == [(2,)]


def test_a_query_without_end_is_stopped(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OPERATIONS", 1_000_000)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    assert "was stopped after 1,000,000 operations" in shop.execute(endless).text
    assert shop.execute("SELECT 1").records == [(1,)]


def test_a_result_has_a_limit(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 3)
    assert shop.execute("SELECT * FROM item, item AS other").error == ("the result has more than 3 records")


def test_a_missing_file_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unpacked"):
        open_file(tmp_path / "none.sqlite", "none")


def test_a_file_that_is_no_database_fails(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no database at all, only text " * 20)
    with pytest.raises(EnvironmentFailureError, match="unpack"):
        open_file(tmp_path / "text.sqlite", "text").execute("SHOW TABLES")
