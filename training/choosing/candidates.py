"""Candidates of one state, from attempts of any number of models: cut where the choice is made.

A state is a task and, if `after` is not 0, equal first actions. Its candidates are the next turns
of every attempt that was there. An attempt that had ended by then is no candidate: that it ended
would tell its outcome.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from qguide.qnet.types import message_key
from qguide.training.choosing.attempts import Attempt
from qguide.training.choosing.features import Candidate
from qguide.training.choosing.schemas import Asked, functions_of


def candidates_of(
    attempts: Sequence[Attempt], *, after: int = 0, turns: int = 1, observed: bool = False
) -> dict[str, list[Candidate]]:
    """The candidates of each state with at least two of them, by the state's name.

    Args:
        after: number of first actions that are equal in a state.
        turns: of each candidate, behind the state.
        observed: the answer to the last of them may be read, so the attempt must still run then.
    """
    questions = _questions(attempts)
    states: dict[str, list[Candidate]] = defaultdict(list)
    for attempt, asked in zip(attempts, questions, strict=True):
        needed = after + turns + (1 if observed and not attempt.runs_on else 0)
        if len(attempt.turns) >= needed:
            taken = attempt.turns[after : after + turns]
            functions = functions_of(attempt.opening)
            candidate = Candidate(attempt, taken, observed, asked, functions)
            states[_state_of(attempt, after)].append(candidate)
    return {name: found for name, found in states.items() if len(found) > 1}


def _state_of(attempt: Attempt, after: int) -> str:
    keys = [message_key(turn.action) for turn in attempt.turns[:after]]
    return "\n".join([attempt.task, *keys])


def _questions(attempts: Sequence[Attempt]) -> Iterator[Asked]:
    """The last message before each attempt's first action, without its model's instructions.

    These are the lines with which all tasks of a section begin.
    """
    texts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for attempt in attempts:
        texts[attempt.section, attempt.model].add(_opening(attempt))
    shared = {key: _shared_lines(found) for key, found in texts.items()}
    known: dict[str, Asked] = {}
    for attempt in attempts:
        key = attempt.section, attempt.model
        text = _opening(attempt)
        text = text[shared[key] :] if len(texts[key]) > 1 else text
        yield known.setdefault(text, Asked(text))


def _opening(attempt: Attempt) -> str:
    return attempt.opening[-1].content if attempt.opening else ""


def _shared_lines(texts: Collection[str]) -> int:
    """Length of the lines with which all texts begin."""
    first, last = min(texts), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    end = next((i for i, (a, b) in pairs if a != b), min(len(first), len(last)))
    return first.rfind("\n", 0, end) + 1
