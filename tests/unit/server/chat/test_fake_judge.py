"""The fake upstream's rule, by which it answers a judge's questions."""

import math

import pytest

from qguide.qnet.chat_messages import plain_message
from qguide.qnet.judging.answers import read_score
from qguide.qnet.judging.prompt import JudgePrompt
from qguide.qnet.types import Candidate, Message
from qguide.server.chat.fake_replies import proposal_value, read_question

TURNS = [
    ("system", "You take things."),
    ("user", "Take the green book!"),
    ("assistant", "Thought: Hm.\nAction: look"),
    ("user", "You see a desk."),
]


@pytest.mark.parametrize(
    ("proposal", "value"),
    [
        ("Thought: It is green.\nAction: take book", 1.0),
        ("take THE desk", 2 / 3),
        ("Action: look", 0.0),
        ("Thought: Again.\nAction: LOOK", 0.0),
        ("", 0.0),
        ("...", 0.0),
    ],
)
def test_a_value_is_the_share_of_the_tasks_words(proposal: str, value: float) -> None:
    assert proposal_value(TURNS, proposal) == pytest.approx(value)


def test_its_probabilities_have_the_value_as_their_mean() -> None:
    history = tuple(Message(role, text) for role, text in TURNS)  # type: ignore[arg-type]
    question = JudgePrompt().score(history, Message("assistant", "take the desk"))
    verdict = read_question([plain_message(message) for message in question])
    assert verdict is not None
    assert verdict.text == "6"
    assert math.fsum(verdict.probabilities.values()) == pytest.approx(1.0)
    answer = Candidate(Message("assistant", verdict.text), 1, logprobs=verdict.logprobs())
    assert read_score(answer, judge="j") == pytest.approx(2 / 3)


@pytest.mark.parametrize("text", ["find the mug", "The conversation:\nis long", ""])
def test_other_messages_are_no_questions(text: str) -> None:
    assert read_question([{"role": "user", "content": text}]) is None
