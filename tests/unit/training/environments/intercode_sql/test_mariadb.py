"""MariaDB answers in the benchmark's dialect, nothing changes it, and it ends with its suite."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from qnet.errors import ConfigError
from tests.support.recorded_sql import share_of_equal_rewards
from training.environments.intercode_sql import mariadb as module
from training.environments.intercode_sql.bundle import InterCodeSqlConfig, build_suite
from training.environments.intercode_sql.database import ReadOnlyDatabase
from training.environments.intercode_sql.mariadb import MariaDbServer

DUMP = """
CREATE USER 'admin'@'%' IDENTIFIED BY 'admin'; GRANT ALL PRIVILEGES ON *.* TO 'admin'@'%';
CREATE DATABASE shop; USE shop;
CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, price DECIMAL(5, 2));
INSERT INTO item VALUES (1, 'rope', 2.5), (2, 'lamp', 10);
CREATE DATABASE vault; CREATE TABLE vault.gold (bars INT);
"""


@pytest.fixture(scope="module")
def server(
    mariadb_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDbServer]:
    """A server with two databases."""
    dump = tmp_path_factory.mktemp("dump") / "dump.sql"
    dump.write_text(DUMP)
    server = MariaDbServer(dump, ["shop", "vault"])
    yield server
    server.close()


@pytest.fixture
def shop(server: MariaDbServer) -> Iterator[ReadOnlyDatabase]:
    """A connection to one of them."""
    database = server.opener("shop")()
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
    assert shop.execute("SELECT * FROM door").text == (
        "Error executing query: 1146: Table 'shop.door' doesn't exist"
    )
    assert shop.execute("  ").error == "the statement is empty"
    assert shop.execute("SET @a = 1").error == "the statement has no result"


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
@pytest.mark.parametrize("transaction", [True, False])
def test_nothing_but_reading_one_database_is_allowed(
    shop: ReadOnlyDatabase, statement: str, transaction: bool
) -> None:
    if not transaction:
        shop.execute("COMMIT")
        shop.execute("SET SESSION TRANSACTION READ WRITE")
    assert shop.execute(statement).records is None
    assert shop.execute("SELECT count(*) FROM item").records == [(2,)]


def test_no_file_is_read(shop: ReadOnlyDatabase) -> None:
    assert shop.execute("SELECT load_file('/etc/hostname')").records == [(None,)]


def test_episodes_do_not_see_each_other(server: MariaDbServer) -> None:
    first, second = server.opener("shop")(), server.opener("shop")()
    first.execute("SET @mine = 5")
    assert second.execute("SELECT @mine").records == [(None,)]
    first.close()
    assert second.execute("SELECT 1").records == [(1,)]
    second.close()


def test_a_query_without_end_is_stopped(
    server: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 1)
    shop = server.opener("shop")()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    shop.execute("SET SESSION max_recursive_iterations = 4000000000")
    assert "max_statement_time" in shop.execute(endless).error
    assert shop.execute("SELECT 1").records == [(1,)]
    shop.close()


def test_a_query_that_lifts_its_own_limit_is_killed(
    server: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 2)
    greedy, other = server.opener("shop")(), server.opener("shop")()
    assert greedy.execute("SET STATEMENT max_statement_time=0 FOR SELECT sleep(600)").error
    listed = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%sleep(600)'"
    while other.execute(listed).records != [(0,)]:
        time.sleep(0.1)
    assert greedy.execute("SELECT 1").records is None
    greedy.close()
    other.close()


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
from training.environments.intercode_sql.mariadb import MariaDbServer
server = MariaDbServer(Path({str(dump)!r}), ["shop"])
print(server.opener("shop")().execute("SELECT 1").text, flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[(1,)]\n"
        started = psutil.Process(process.pid).children(recursive=True)
        assert any(child.name() == "mariadbd" for child in started)
        process.kill()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []


def test_generated_tasks_are_sqlites(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="set engine to 'sqlite'"):
        InterCodeSqlConfig(engine="mariadb")


def test_recorded_submissions_earn_what_they_earned_in_mysql(
    mariadb_installed: None, intercode_sql_data: tuple[Path, Path], recorded_sql_episodes: Path
) -> None:
    """Every fourth one that ran, as the test of SQLite has it."""
    tasks, _ = intercode_sql_data
    suite = build_suite(
        InterCodeSqlConfig(
            tasks=tasks,
            databases=tasks.with_name("ic_spider_dbs.sql"),
            engine="mariadb",
            turns=1_000,
        )
    )
    share = share_of_equal_rewards(suite, recorded_sql_episodes)
    suite.close()
    assert share >= 0.95
