"""A MariaDB server for tests, with a small dump, and the one record of a result."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX
from socket import socket as Socket
from typing import TYPE_CHECKING

from qguide.training.environments.intercode_sql.database import QueryResult

if TYPE_CHECKING:
    import pymysql

DUMP = """
CREATE USER 'admin'@'%' IDENTIFIED BY 'admin'; GRANT ALL PRIVILEGES ON *.* TO 'admin'@'%';
CREATE DATABASE shop; USE shop;
CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, price DECIMAL(5, 2));
INSERT INTO item VALUES (1, 'rope', 2.5), (2, 'lamp', 10);
CREATE DATABASE vault; CREATE TABLE vault.gold (bars INT);
CREATE USER reader@localhost; GRANT SELECT, SHOW VIEW ON shop.* TO reader@localhost;
CREATE USER writer@localhost; GRANT SELECT, INSERT ON shop.* TO writer@localhost;
CREATE USER player@localhost; GRANT SELECT ON shop.* TO player@localhost;
CREATE ROLE boss; GRANT ALL ON shop.* TO boss; GRANT boss TO player@localhost;
SET DEFAULT ROLE boss FOR player@localhost;
CREATE USER pricer@localhost; GRANT SELECT, UPDATE (price) ON shop.item TO pricer@localhost;
CREATE USER caller@localhost; GRANT SELECT ON shop.* TO caller@localhost;
CREATE FUNCTION shop.one() RETURNS INT RETURN 1;
GRANT EXECUTE ON FUNCTION shop.one TO caller@localhost;
CREATE USER giver@localhost IDENTIFIED BY 'x';
GRANT SELECT ON *.* TO giver@localhost WITH GRANT OPTION;
CREATE USER half@localhost; GRANT SELECT (id, name) ON shop.item TO half@localhost;
"""


def installed(name: str) -> str | None:
    """A program of MariaDB, which Debian has where an ordinary user's PATH does not look."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


@contextmanager
def serving(folder: Path, dump: str = DUMP) -> Iterator[str]:
    """The address of a server with that dump, without the name of an account."""
    server, installer = installed("mariadbd"), installed("mariadb-install-db")
    assert server is not None
    assert installer is not None
    root = ["--user=root"] if os.geteuid() == 0 else []
    data = ["--no-defaults", f"--datadir={folder / 'data'}", *root]
    install = [installer, *data, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, capture_output=True)
    socket = folder / "socket"
    serve = [server, *data, f"--socket={socket}", "--skip-networking", "--local-infile=0"]
    serve += ["--lower-case-table-names=1", "--sql-mode="]  # as the benchmark's server has them
    with subprocess.Popen(serve, stderr=subprocess.DEVNULL) as process:
        try:
            with connect_root(socket) as connection, connection.cursor() as cursor:
                cursor.execute(dump)
                while cursor.nextset():
                    pass
            yield f"localhost{socket}"
        finally:
            process.kill()


def connect_root(socket: Path) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    """A connection of root's, once the server answers."""
    # Every test's fixtures are imported together, on a machine without this client, too.
    import pymysql
    from pymysql.constants import CLIENT

    deadline = time.monotonic() + 120
    while True:
        with Socket(AF_UNIX) as probe:
            if not probe.connect_ex(str(socket)):
                break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return pymysql.connect(user="root", unix_socket=str(socket), client_flag=CLIENT.MULTI_STATEMENTS, autocommit=True)


def only(result: QueryResult) -> tuple[object, ...]:
    """The one record of a result."""
    assert result.records is not None, result.error
    (record,) = result.records
    return record
