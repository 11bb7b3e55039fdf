"""Lone surrogates are found wherever they stand, without a search that costs more than a parse."""

import json
import tracemalloc

from qguide.server.http.bodies import lone_surrogate_in


def test_the_place_is_that_of_the_first() -> None:
    value = json.loads(r'{"a": ["\ud83d\ude00", {"b": "\ud83d"}], "c": "\ud83d"}')
    assert lone_surrogate_in(value) == "body.a.1.b"
    assert lone_surrogate_in(json.loads(r'["\ude00"]')) == "body.0"
    assert lone_surrogate_in(json.loads(r'{"a": {"\ud83d": 1}}')) == "a name in body.a"


def test_a_long_name_over_many_values_is_not_written_for_each() -> None:
    value = {"x" * 200_000: [1] * 1_000}
    tracemalloc.start()
    try:
        assert lone_surrogate_in(value) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    found = lone_surrogate_in({"x" * 200_000: ["\ud83d"]})
    assert found is not None
    assert len(found) < 100
