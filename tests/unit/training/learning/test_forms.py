"""One task in the forms that agents give it: a Q model learns what each of them says."""

import json
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from qguide.qnet.features.hashing import Hasher
from qguide.qnet.types import History, Message, ToolCall
from qguide.training.learning.advantage import Options
from qguide.training.learning.episodes import LearnedEpisode
from qguide.training.learning.learner import learn

DRAWERS = ("red", "blue", "green")
RIGHT = {"ring": "red", "coin": "blue"}
RULES = " ".join(f"Rule {n}: never touch item{n} before step{n} is over." for n in range(40))
LISTED = "Things are ring and coin. Drawers are red, blue and green."
THOUGHTS = ("I see.", "It may be here.", "Let me look.", "One after the other.", "Why not?")

Open = Callable[[str], History]
Say = Callable[[str, str], Message]


def plain(thing: str) -> History:
    return (Message("user", f"Find the {thing}."),)


def after_long_instructions(thing: str) -> History:
    return (Message("user", f"{RULES}\n\nYour task: find the {thing}."),)


def in_the_system_message(thing: str) -> History:
    return (Message("system", f"{RULES} Find the {thing}."), Message("user", "Begin."))


def in_the_developer_message(thing: str) -> History:
    return (Message("developer", f"{RULES} Find the {thing}."), Message("user", "Begin."))


def after_an_example(thing: str) -> History:
    example = (
        Message("user", "Find the ring in the cellar."),
        Message("assistant", "Action: open the trunk"),
        Message("user", "You hold the ring."),
    )
    return (Message("system", LISTED), *example, Message("user", f"Now find the {thing}."))


def action(drawer: str, thought: str) -> Message:
    return Message("assistant", f"Thought: {thought}\nAction: open {drawer}")


def json_object(drawer: str, thought: str) -> Message:
    fields = {"thought": thought, "action": "open", "drawer": drawer}
    return Message("assistant", json.dumps(fields))


def code(drawer: str, thought: str) -> Message:
    return Message("assistant", f"{thought}\n\n```bash\nopen {drawer}\n```")


def episodes(count: int, opening: Open, say: Say) -> list[LearnedEpisode]:
    """One guess each; the right one is worth it in seven of ten cases."""
    chance = Random(0)
    found = []
    for number in range(count):
        thing, drawer = ("ring", "coin")[number % 2], chance.choice(DRAWERS)
        reward = float(drawer == RIGHT[thing] and chance.random() < 0.7)
        reply = say(drawer, chance.choice(THOUGHTS))
        found.append(LearnedEpisode(f"{number}", (opening(thing),), (reply,), reward))
    return found


@pytest.mark.parametrize(
    ("opening", "say"),
    [
        (plain, json_object),
        (plain, code),
        (after_long_instructions, action),
        (in_the_system_message, action),
        (in_the_developer_message, action),
        (after_an_example, action),
    ],
)
def test_it_learns_from_the_task_wherever_it_stands_and_from_the_act_however_it_is_written(
    opening: Open, say: Say
) -> None:
    model = learn(episodes(100, opening, say), Options(), Hasher(b"salt")).model

    for thing, right in RIGHT.items():
        candidates = tuple(say(drawer, "Something never thought.") for drawer in DRAWERS)
        q_values = model.q_values(opening(thing), candidates)
        assert DRAWERS[int(np.argmax(q_values))] == right


def test_an_example_is_not_taken_for_the_task() -> None:
    model = learn(episodes(100, after_an_example, action), Options(), Hasher(b"salt")).model
    history = after_an_example("coin")

    assert model.hasher.frames(history[1].text)
    assert not model.hasher.frames(history[-1].text)


def test_a_value_that_instructions_list_is_read_in_observations() -> None:
    chance = Random(1)
    found = []
    for number in range(100):
        place, drawer = chance.choice(("hall", "attic")), chance.choice(DRAWERS)
        start = Message("user", f"Places are hall and attic. You are guest {number % 40}.")
        look = Message("assistant", "Action: look")
        seen = (start, look, Message("user", f"You stand in the {place}."))
        right = drawer == {"hall": "red", "attic": "blue"}[place]
        replies = (look, action(drawer, "So."))
        found.append(LearnedEpisode(f"{number % 40}", ((start,), seen), replies, float(right)))

    model = learn(found, Options(), Hasher(b"salt")).model

    for place, best in (("hall", "red"), ("attic", "blue")):
        history = (start, look, Message("user", f"You stand in the {place}."))
        q_values = model.q_values(history, tuple(action(one, "So.") for one in DRAWERS))
        assert DRAWERS[int(np.argmax(q_values))] == best


def test_a_number_is_large_or_small_for_what_the_task_is_about() -> None:
    """The heat that is usual for a pump is too much for a press."""
    usual = {"pump": 80.0, "press": 40.0}

    def history(machine: str, factor: float, number: int) -> History:
        told = Message("user", f"heat: {usual[machine] * factor:.1f} degrees")
        return (Message("user", f"Ticket {number}: the {machine}."), action("a", "So."), told)

    chance = Random(2)
    found = []
    for number in range(160):
        machine, high = chance.choice(tuple(usual)), chance.random() < 0.3
        state = history(machine, chance.uniform(1.1, 1.4) if high else chance.uniform(0.7, 0.95), number)
        drawer = chance.choice(DRAWERS[:2])
        replies = (state[1], action(drawer, "So."))
        found.append(LearnedEpisode(f"{number}", (state[:1], state), replies, float((drawer == "red") == high)))

    model = learn(found, Options(), Hasher(b"salt")).model

    candidates = tuple(action(one, "So.") for one in DRAWERS[:2])
    for machine in usual:
        for factor, best in ((1.35, 0), (0.75, 1)):
            assert np.argmax(model.q_values(history(machine, factor, 900), candidates)) == best


def test_two_facts_of_one_sentence_decide_together() -> None:
    """The right method depends on the kind and the fault of the column that is named."""
    kinds, faults = ("date", "amount"), ("blanks", "spaces")

    def seen(kind: str, fault: str, column: str) -> History:
        look = Message("assistant", "Action: look")
        told = Message("user", f"{column}: type {kind}, issue {fault}.\nother: type {kind[::-1]}.")
        return (Message("user", f"Clean the table of {column}."), look, told)

    def mend(column: str, drawer: str) -> Message:
        call = ToolCall("fix", json.dumps({"column": column, "method": drawer}))
        return Message("assistant", "", (call,))

    def right(kind: str, fault: str) -> str:
        return DRAWERS[kinds.index(kind) ^ faults.index(fault)]

    chance = Random(3)
    found = []
    for number in range(200):
        kind, fault = chance.choice(kinds), chance.choice(faults)
        column, drawer = f"column{number}", chance.choice(DRAWERS[:2])
        state = seen(kind, fault, column)
        reward = float(drawer == right(kind, fault))
        replies = (state[1], mend(column, drawer))
        found.append(LearnedEpisode(f"{number}", (state[:1], state), replies, reward))

    model = learn(found, Options(), Hasher(b"salt")).model

    for kind in kinds:
        for fault in faults:
            candidates = tuple(mend("new", drawer) for drawer in DRAWERS[:2])
            q_values = model.q_values(seen(kind, fault, "new"), candidates)
            assert DRAWERS[int(np.argmax(q_values))] == right(kind, fault)
