"""Addresses are shown without users, passwords and keys."""

import pytest

from qguide.qnet.errors import without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("runs/a", "runs/a"),
        ("http://host", "http://host"),
        ("https://h/v1?key=SECRET", "https://h/…"),
        ("http://h:1/v1?key=SECRET#m", "http://h/…"),
        ("http://user:pa@SECRET@h/v1", "http://…@h/…"),
        ("http://user:pa/SECRET@h/v1", "http://…"),
        ("https://h/v1?mail=a@SECRET", "https://…"),
        ("http://[::1]:8000/v1", "http://[::1]/…"),
        ("user:SECRET@h/v1", "…"),
        ("//user:SECRET@h/v1", "…"),
        ("h/v1?key=SECRET", "…"),
    ],
)
def test_only_scheme_and_host_of_an_address_are_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
