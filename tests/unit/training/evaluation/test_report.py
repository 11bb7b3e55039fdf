"""Colours of the methods in plots."""

import re

from training.evaluation.records import METHODS
from training.evaluation.report import colour_of


def test_methods_have_distinct_colours() -> None:
    assert len({colour_of(method) for method in METHODS}) == len(METHODS)


def test_a_method_without_an_entry_gets_a_colour_of_its_own() -> None:
    colours = {colour_of(name) for name in ("my-search", "my-beam", *METHODS)}
    assert len(colours) == len(METHODS) + 2
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
