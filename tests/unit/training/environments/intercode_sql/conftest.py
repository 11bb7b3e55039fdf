"""A MariaDB for the tests of one module."""

from collections.abc import Iterator

import pytest

from tests.support.mariadb_dump import serving


@pytest.fixture(scope="module")
def server(mariadb_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with some databases."""
    with serving(tmp_path_factory.mktemp("mariadb")) as address:
        yield address
