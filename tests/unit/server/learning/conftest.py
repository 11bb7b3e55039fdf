"""A server that learns."""

from pathlib import Path

import pytest

from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.settings import Settings
from tests.unit.server.learning.scripted_agent import REPLIES, settings_of


@pytest.fixture
def settings(tmp_path: Path, address: tuple[FakeUpstream, str], upstream: FakeUpstream) -> Settings:
    """A server that learns in a new folder."""
    upstream.replies = REPLIES
    return settings_of(tmp_path, address[1])
