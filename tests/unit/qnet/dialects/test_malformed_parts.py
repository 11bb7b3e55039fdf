"""Parts of a turn that no dialect can carry, because they lack what their type needs."""

from typing import Any

import pytest

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.policies.upstream_dialects import MESSAGES, RESPONSES
from qguide.qnet.types import Message, Sampling


@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES], ids=["messages", "responses"])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": 1},
        {"type": "file"},
        {"type": "file", "file": "a.pdf"},
    ],
)
def test_a_part_that_lacks_what_its_type_needs_is_refused(part: dict[str, Any], dialect: Any) -> None:
    turn = Message("user", "", wire={"role": "user", "content": [part]})
    with pytest.raises(InvalidRequestError):
        dialect.request_body("m", (turn,), n=1, sampling=Sampling())
