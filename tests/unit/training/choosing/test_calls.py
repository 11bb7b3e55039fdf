"""Calls that models wrote in different ways are the same calls."""

import json

import pytest

from qguide.qnet.types import Message, ToolCall
from qguide.training.choosing.calls import calls_of
from qguide.training.choosing.schemas import FLAWS, AskedQuestion, fit_of, functions_of
from tests.support.recordings.llms import AREA

SAME = (
    "[shape.area(width=2, height=5)]",
    "```python\nshape.area(height=5.0, width=2)\n```",
    "I would call this:\n\n[shape\\_area(width=2, height=5)]\nIt returns 10.",
    '<tool_call>\n{"arguments": {"width": 2, "height": 5}, "name": "shape_area"}\n</tool_call>',
    '{"tool_calls": [{"name": "shape.area", "arguments": {"width": 2, "height": 5}}]}',
    "[{'shape.area': {'width': 2, 'height': 5}}]",
    "['shape.area(width=2, height=5)']",
    'shape_area\n{"width": 2, "height": 5}',
    "{'name': 'shape.area', 'parameters': {'width': 2, 'height': 5}}",
    "shape.area({'width': 2, 'height': 5});",
)


@pytest.mark.parametrize("text", SAME)
def test_one_call_is_read_from_every_form(text: str) -> None:
    arguments = json.dumps({"width": 2, "height": 5})
    said = Message("assistant", "", (ToolCall("shape_area", arguments),))
    [call] = calls_of(said)
    [read] = calls_of(Message("assistant", text))
    assert read.key == call.key


def test_several_calls_are_read_in_their_order() -> None:
    text = "shape.area(width=1, height=2); shape.area(width=3, height=4)"
    assert [call.arguments["width"] for call in calls_of(Message("assistant", text))] == [1, 3]


@pytest.mark.parametrize("text", ["", "I cannot help with that.", "[shape.area(width=", "{"])
def test_a_text_without_a_call_has_none(text: str) -> None:
    assert calls_of(Message("assistant", text)) == ()


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("shape.volume(width=2)", "unknown function"),
        ("shape.area(width=2)", "missing"),
        ("shape.area(width=2, height=5, depth=1)", "unknown argument"),
        ("shape.area(width=2, height='five')", "kind"),
        ("shape.area(width=2, height=5, unit='inch')", "not allowed"),
        ("shape.area(2, height=5)", "position"),
    ],
)
def test_what_does_not_fit_the_schema_is_found(text: str, flaw: str) -> None:
    functions = functions_of((Message("system", f"Functions: {json.dumps(AREA)}"),))
    fit = fit_of(calls_of(Message("assistant", text)), functions, AskedQuestion("How large is it?"))
    assert fit.counts[flaw] == 1


def test_a_call_that_fits_has_no_flaw_and_its_numbers_were_said() -> None:
    functions = functions_of((Message("system", f"Functions: {json.dumps(AREA)}"),))
    asked = AskedQuestion("How large is a rectangle of two by 5 m?")
    fit = fit_of(calls_of(Message("assistant", SAME[0])), functions, asked)
    assert not any(fit.counts.get(flaw) for flaw in FLAWS)
    assert fit.counts["numbers said"] == fit.counts["numbers"] == 2
