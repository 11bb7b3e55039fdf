import math

import pytest

from qnet.types import Message
from training.learning.episodes import Episode
from training.learning.recorded import recorded_decisions

START = (Message("user", "Open a door."),)


def episode(reply: str, reward: float, task: str = "t") -> Episode:
    return Episode(task, (START,), (Message("assistant", reply),), reward)


def test_a_state_that_episodes_left_differently_is_a_decision() -> None:
    recorded = [
        episode("Thought: why not.\nAction: left", 1.0),
        episode("Action: left", 0.0),
        episode("Action: right", 1.0),
        episode("Action: left", 1.0, task="another"),
    ]

    [found] = recorded_decisions(recorded, lambda _, replies: [float(len(replies))] * len(replies))

    assert found.task == "t"
    assert found.outcomes == [(1.0, 0.0), (1.0,)]
    assert found.q_values == (2.0, 2.0)
    assert math.exp(found.log_prior[0]) == pytest.approx(2.5 / 4)


def test_states_that_were_left_alike_are_none() -> None:
    assert recorded_decisions([episode("Action: left", 1.0)] * 3, lambda _, r: [0.0] * len(r)) == []
