"""The fake upstream as tests of its clients and of the server share it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.dialect_upstream import DialectUpstream


@pytest.fixture(scope="module")
def address() -> "Iterator[tuple[DialectUpstream, str]]":
    """A fake upstream that runs for a module, and its base URL."""
    # The server's packages are not where `make gpu-check` runs tests below this folder.
    from tests.support.dialect_upstream import DialectUpstream
    from tests.support.serving import serving_app

    state = DialectUpstream()
    with serving_app(state.app()) as url:
        yield state, f"{url}/v1"


@pytest.fixture
def upstream(address: "tuple[DialectUpstream, str]") -> "DialectUpstream":
    """The same, without a past."""
    state, _ = address
    vars(state).update(vars(type(state)()))
    return state
