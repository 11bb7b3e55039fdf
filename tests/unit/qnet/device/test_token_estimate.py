"""Estimates of uncached tokens: text that was scored before is not counted again."""

import pytest

from qguide.qnet.device.scoring_worker import CHARACTERS_PER_TOKEN, UncachedTokenEstimator
from qguide.qnet.types import Message, ScoreRequest, ToolCall

TASK = Message("user", "t" * 4000)
LOOK, GO = Message("assistant", "l" * 40), Message("assistant", "g" * 80)
SEEN = Message("user", "s" * 400)
FIRST = ScoreRequest((TASK,), (LOOK, GO))


def tokens(*messages: Message) -> int:
    return 1 + sum(len(message.text) for message in messages) // CHARACTERS_PER_TOKEN


def test_everything_is_new_at_first() -> None:
    assert UncachedTokenEstimator().new_tokens(FIRST) == tokens(TASK, LOOK, GO)
    assert UncachedTokenEstimator().new_tokens(ScoreRequest((), (LOOK,))) == tokens(LOOK)


@pytest.mark.parametrize("action", [LOOK, GO])
def test_of_the_next_step_only_the_observation_and_the_candidates_are(action: Message) -> None:
    novelty = UncachedTokenEstimator()
    novelty.remember([FIRST])
    step = ScoreRequest((TASK, action, SEEN), (LOOK,))
    assert novelty.new_tokens(step) == tokens(SEEN, LOOK)
    novelty.remember([step])
    assert novelty.new_tokens(step) == tokens(LOOK)


def test_an_action_that_was_no_candidate_is_new() -> None:
    novelty = UncachedTokenEstimator()
    novelty.remember([FIRST])
    other = Message("assistant", "o" * 60)
    step = ScoreRequest((TASK, other, SEEN), (LOOK,))
    assert novelty.new_tokens(step) == tokens(other, SEEN, LOOK)


def test_another_beginning_is_another_history() -> None:
    novelty = UncachedTokenEstimator()
    novelty.remember([ScoreRequest((TASK, LOOK, SEEN), (GO,))])
    step = ScoreRequest((Message("user", "u" * 4000), LOOK, SEEN), (GO,))
    assert novelty.new_tokens(step) == tokens(*step.history, GO)


def test_what_is_called_counts_like_what_is_said() -> None:
    call = Message("assistant", "", (ToolCall("search", '{"query": "' + "q" * 400 + '"}'),))
    assert UncachedTokenEstimator().new_tokens(ScoreRequest((), (call,))) == tokens(call) > 100
