"""A MariaDB for the tests of one module."""

from collections.abc import Iterator

import pytest

from qguide.training.environments.intercode_sql.mariadb import MariaDbServer
from tests.support.mariadb_dump import DUMP


@pytest.fixture(scope="module")
def server(
    mariadb_installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDbServer]:
    """A server with some databases."""
    dump = tmp_path_factory.mktemp("dump") / "dump.sql"
    dump.write_text(DUMP)
    server = MariaDbServer(dump, ["shop", "vault", "my_till"])
    yield server
    server.close()
