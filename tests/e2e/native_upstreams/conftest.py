"""A server with an upstream of each dialect, named as its dialect."""

from collections.abc import Iterator

import pytest

from qguide.server.app import create_app
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.dialect_upstream import DialectUpstream
from tests.support.native_clients import DIALECTS
from tests.support.serving import serving_app


@pytest.fixture(scope="module")
def fake() -> DialectUpstream:
    return DialectUpstream()


@pytest.fixture(scope="module")
def address(fake: DialectUpstream) -> Iterator[str]:
    """The fake's own."""
    with serving_app(fake.app()) as address:
        yield address


@pytest.fixture(scope="module")
def url(address: str) -> Iterator[str]:
    table = {"url": f"{address}/v1", "model": "fake", "retries": 0}
    upstreams = {name: Upstream.model_validate(table | {"dialect": name}) for name in DIALECTS}
    settings = Settings(policy="chat", upstreams=upstreams, q_models={"q": SCRIPTED})
    with serving_app(create_app(settings)) as served:
        yield served


@pytest.fixture(autouse=True)
def forgotten(fake: DialectUpstream) -> None:
    fake.asked.clear()
    fake.repeated.clear()
