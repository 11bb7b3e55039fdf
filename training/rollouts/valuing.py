"""Score requests of actions that were tried, for Q models of either kind."""

from collections.abc import Sequence

from qguide.qnet.types import History, ScoreRequest
from qguide.training.trajectory import Step, step_messages


def value_request(history: History, steps: Sequence[Step], *, observes: bool) -> ScoreRequest:
    """The request for the Q of actions that were tried in one state.

    Args:
        steps: the actions, with what each was answered.
        observes: the Q model is read after the answers.
    """
    answers = tuple(step_messages(step)[1:] for step in steps)
    replies = tuple(step.message for step in steps)
    return ScoreRequest(history, replies, observations=answers if observes else ())
