import math
from dataclasses import replace

import pytest

from qguide.qnet.types import Message
from qguide.training.learning.episodes import LearnedEpisode
from qguide.training.learning.recorded import recorded_decisions
from qguide.training.trajectory import Drawn

START = (Message("user", "Open a door."),)


def episode(reply: str, reward: float, task: str = "t") -> LearnedEpisode:
    return LearnedEpisode(task, (START,), (Message("assistant", reply),), reward)


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


def test_draws_that_were_recorded_are_the_votes_and_tell_the_greedy_reply() -> None:
    left, right = (Message("assistant", f"Action: {way}") for way in ("left", "right"))
    drawn = (Drawn(left, 1, False), Drawn(right, 4, True))
    told = LearnedEpisode("t", (START,), (left,), 1.0, (drawn,))

    [found] = recorded_decisions([told, episode("Action: right", 0.0)], lambda _, r: [0.0] * 2)

    assert math.exp(found.log_prior[0]) == pytest.approx(1.5 / 7)
    assert found.greedy == 1


def test_a_greedy_reply_that_nobody_took_has_no_outcome() -> None:
    drawn = (Drawn(Message("assistant", "Action: up"), 1, True),)
    told = [replace(episode(f"Action: {way}", 1.0), drawn=(drawn,)) for way in ("left", "right")]

    [found] = recorded_decisions(told, lambda _, r: [0.0] * 2)

    assert found.greedy is None
