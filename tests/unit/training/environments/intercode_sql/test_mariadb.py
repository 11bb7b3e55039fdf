"""MariaDB answers in the benchmark's dialect, and nothing changes it."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.training.environments.intercode_sql.bundle import InterCodeSqlConfig, build_suite
from qguide.training.environments.intercode_sql.database import QueryResult, ReadOnlyDatabase
from tests.support.mariadb_dump import connect_root
from tests.support.recorded_sql import share_of_equal_rewards

module = pytest.importorskip("qguide.training.environments.intercode_sql.mariadb")


def _open(server: str) -> ReadOnlyDatabase:
    opened: ReadOnlyDatabase = module.MariaDatabase(f"mysql://reader@{server}", "shop")
    return opened


REFUSED = "the statement is refused"
MANY = "seq_1_to_60000"
LIMIT = "LIMIT 60000"  # the statement's own, in place of the session's
ANSWERED_WITHIN_S = 60


@pytest.fixture
def shop(server: str) -> Iterator[ReadOnlyDatabase]:
    """A session in one of them."""
    database = _open(server)
    yield database
    database.close()
    database.close()


def test_records_are_pythons(shop: ReadOnlyDatabase) -> None:
    assert shop.execute("SHOW TABLES").text == "[('item',)]"
    answer = shop.execute("SELECT price,\n  concat(name, '!')\nFROM item -- all\nWHERE id = 1;")
    assert answer.text == "[(Decimal('2.50'), 'rope!')]"
    assert shop.execute("DESCRIBE item").records == [
        ("id", "int(11)", "NO", "PRI", None, ""),
        ("name", "varchar(20)", "NO", "", None, ""),
        ("price", "decimal(5,2)", "YES", "", None, ""),
    ]


def test_errors_are_answers(shop: ReadOnlyDatabase) -> None:
    assert shop.execute("SELECT * FROM door").text == ("Error executing query: 1146: Table 'shop.door' doesn't exist")
    assert shop.execute("  ").error == "the statement is empty"
    assert shop.execute("SELECT 1 INTO @a").error == "the statement has no result"


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO item VALUES (3, 'till', 1)",
        "DELETE FROM item",
        "CREATE TABLE mine (id INT)",
        "CREATE TEMPORARY TABLE mine (id INT)",
        "DROP DATABASE shop",
        "DROP USER admin",
        "SET GLOBAL max_connections = 1",
        "SELECT 1; DELETE FROM item",
        "SELECT * FROM vault.gold",
        "SELECT * FROM item INTO OUTFILE '/tmp/qguide-outfile'",
        "SELECT * FROM mysql.user",
        "LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE item",
    ],
)
def test_nothing_but_reading_one_database_is_allowed(shop: ReadOnlyDatabase, statement: str) -> None:
    assert shop.execute(statement).records is None
    assert shop.execute("SELECT count(*) FROM item").records == [(2,)]


@pytest.mark.parametrize(
    "statement",
    [
        "SET PASSWORD = PASSWORD('x')",
        "ALTER USER reader@localhost IDENTIFIED BY 'x'",
        "KILL 1",
        "COMMIT",
        "SET SESSION TRANSACTION READ WRITE",
        "SET STATEMENT max_statement_time=0 FOR SELECT 1",
        "BEGIN NOT ATOMIC SET PASSWORD = PASSWORD('x'); END",
        "EXECUTE IMMEDIATE 'KILL 1'",
        "/* SELECT */ COMMIT",
        "-- SELECT\nCOMMIT",
        "/*!COMMIT*/",
        "/*M!100000 COMMIT*/",
        "/*! SET STATEMENT max_statement_time=0 FOR */ SELECT 1",
        "/* a */ /*m! SET STATEMENT max_statement_time=0 FOR */ SELECT 1",
        "selection",
        "/**/" * 1_000 + "COMMIT",
    ],
)
def test_a_statement_that_is_no_read_is_not_sent(shop: ReadOnlyDatabase, statement: str) -> None:
    assert shop.execute(statement).error.startswith(REFUSED)


@pytest.mark.parametrize("second", ["COMMIT", "SET PASSWORD = PASSWORD('x')"])
def test_a_second_statement_is_an_error_of_syntax(shop: ReadOnlyDatabase, second: str) -> None:
    assert shop.execute(f"SELECT 1; {second}").error.startswith("1064")


@pytest.mark.parametrize(
    "statement",
    [
        "(SELECT 1)",
        "/* one */ -- two\n# three\n select 1;",
        "WITH n AS (SELECT 1) SELECT * FROM n",
        "VALUES (1)",
        "EXPLAIN SELECT * FROM item",
        "DESC item",
        "SHOW COLUMNS FROM item",
    ],
)
def test_reads_are_answered(shop: ReadOnlyDatabase, statement: str) -> None:
    assert shop.execute(statement).records


def test_no_file_is_read(shop: ReadOnlyDatabase) -> None:
    assert shop.execute("SELECT load_file('/etc/hostname')").records == [(None,)]


def test_episodes_do_not_see_each_other(server: str) -> None:
    first, second = _open(server), _open(server)
    first.execute("SELECT 5 INTO @mine")
    assert first.execute("SELECT @mine").records == [(5,)]
    assert second.execute("SELECT @mine").records == [(None,)]
    first.close()
    assert second.execute("SELECT 1").records == [(1,)]
    second.close()


def test_a_query_without_end_is_stopped(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 1)
    shop = _open(server)
    endless = "SELECT sum(a.seq * b.seq) FROM seq_1_to_1000000 a, seq_1_to_1000000 b"
    assert "max_statement_time" in shop.execute(endless).error
    assert shop.execute("SELECT 1").records == [(1,)]
    shop.close()


def test_a_query_that_its_own_limit_does_not_stop_is_killed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 900)
    monkeypatch.setattr(module, "ANSWER_S", 3)
    greedy, other = _open(server), _open(server)
    assert greedy.execute("SELECT sleep(600)").error
    listed = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%sleep(600)'"
    deadline = time.monotonic() + ANSWERED_WITHIN_S
    while other.execute(listed).records != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert greedy.execute("SELECT count(*) FROM item").records == [(2,)]
    greedy.close()
    other.close()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (f"SELECT seq FROM {MANY} {LIMIT}", "the result has more than 50,000 records"),
        (f"SELECT seq FROM {MANY}", "the result has more than 50,000 records"),
        (f"SELECT repeat('x', 1000000) FROM {MANY} {LIMIT}", "the result has more than 16,777,216 bytes"),
    ],
)
def test_a_result_above_the_limits_is_not_read_to_its_end(shop: ReadOnlyDatabase, statement: str, error: str) -> None:
    assert shop.execute(statement) == QueryResult(None, error)
    assert shop.execute("SELECT count(*) FROM item").records == [(2,)]


def test_a_result_that_takes_its_time_is_not_read_to_its_end(
    shop: ReadOnlyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 3)
    # Each record is long enough to be sent alone, so that the connection is never silent.
    slow = f"SELECT seq, sleep(0.1), repeat('x', 50000) FROM {MANY}"
    assert shop.execute(slow).error == "the result takes more than 3 s"
    assert shop.execute("SELECT count(*) FROM item").records == [(2,)]


def test_a_record_above_the_bound_is_not_read(shop: ReadOnlyDatabase) -> None:
    columns = ", ".join(["repeat('x', 10000000)"] * 9)
    assert shop.execute(f"SELECT {columns}").error == "the result has more than 16,777,216 bytes"
    assert shop.execute("SELECT count(*) FROM item").records == [(2,)]


def test_what_cannot_be_encoded_is_an_answer(shop: ReadOnlyDatabase) -> None:
    assert "utf-8" in shop.execute("SELECT '\ud800'").error
    assert shop.execute("SELECT 'é'").records == [("é",)]


@pytest.mark.parametrize(
    ("account", "more"),
    [
        ("writer", "(GRANT SELECT, INSERT ON `shop`.* TO `writer`@`localhost`)"),
        ("player", "(GRANT `boss` TO `player`@`localhost`; GRANT ALL PRIVILEGES ON `shop`.* TO"),
        ("pricer", "(GRANT SELECT, UPDATE (`price`) ON `shop`.`item` TO"),
        ("caller", "(GRANT EXECUTE ON FUNCTION `shop`.`one` TO"),
        ("giver", "(GRANT SELECT ON *.* TO `giver`@`localhost` WITH GRANT OPTION)"),
    ],
)
def test_an_account_that_may_do_more_than_read_is_refused(
    server: str, account: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.PASSWORD, "x" if account == "giver" else "")
    with pytest.raises(ConfigError, match=re.escape(f"read {more}")):
        module.require_reader(f"mysql://{account}@{server}", ["shop"])


def test_what_everybody_may_do_counts(server: str) -> None:
    public = "INSERT ON shop.* {} PUBLIC"
    with connect_root(Path(server.removeprefix("localhost"))) as root, root.cursor() as cursor:
        cursor.execute(f"GRANT {public.format('TO')}")
        try:
            with pytest.raises(ConfigError, match=r"\(GRANT INSERT ON `shop`.\* TO PUBLIC\)"):
                module.require_reader(f"mysql://reader@{server}", ["shop"])
        finally:
            cursor.execute(f"REVOKE {public.format('FROM')}")


def test_an_account_that_reads_is_taken_if_its_databases_are_there(server: str) -> None:
    module.require_reader(f"mysql://half@{server}", ["shop"])
    with pytest.raises(ConfigError, match=r"^1 databases .*vault"):
        module.require_reader(f"mysql://reader@{server}", ["Shop", "vault"])


def test_a_server_that_is_not_there_is_named(server: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1.*start"):
        module.require_reader("mysql://reader@127.0.0.1:1", ["shop"])
    with pytest.raises(EnvironmentFailureError, match="Access denied"):
        module.MariaDatabase(f"mysql://nobody@{server}", "shop")


@pytest.mark.parametrize("dsn", ["mysql://reader:secret@localhost", "http://reader@localhost"])
def test_an_address_has_an_account_and_no_password(dsn: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        InterCodeSqlConfig(tasks=tmp_path, dsn=dsn)


def test_recorded_submissions_earn_what_they_earned_in_mysql(
    intercode_sql_dsn: str, intercode_sql_data: tuple[Path, Path], recorded_sql_episodes: Path
) -> None:
    """Every fourth one that ran, as the test of SQLite has it."""
    config = InterCodeSqlConfig(tasks=intercode_sql_data[0], dsn=intercode_sql_dsn, turns=1_000)
    suite = build_suite(config)
    share = share_of_equal_rewards(suite, recorded_sql_episodes)
    suite.close()
    assert share >= 0.95
