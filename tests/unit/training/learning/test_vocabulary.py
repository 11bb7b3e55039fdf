"""The words of states that a Q model without a network reads."""

from qguide.qnet.features.hashing import FRAME, TASK, Hasher, entry
from qguide.qnet.types import Message
from qguide.training.learning.episodes import Episode
from qguide.training.learning.vocabulary import vocabulary_of

THINGS = ("ring", "coin") * 20


def episode(number: int, thing: str) -> Episode:
    states = (
        Message("system", "Be brief"),
        Message("user", f"Find the {thing} of guest{number}"),
        Message("assistant", "Action: open the drawer"),
        Message("user", "It is empty" if number % 4 else "It holds a letter"),
    )
    return Episode(f"{number}", (states[:2], states), (states[2], states[2]), 0.0)


def test_words_of_nearly_all_episodes_and_of_a_single_one_are_left_out() -> None:
    hasher = Hasher(b"salt")

    found = vocabulary_of([episode(*one) for one in enumerate(THINGS)], hasher)

    of_tasks = {entry("ring", TASK), entry("coin", TASK), entry("Be brief", FRAME)}
    told = {entry(word) for word in ("is", "empty", "holds", "a", "letter")}
    assert set(found.tolist()) == set(hasher.hashes(of_tasks | told).tolist())


def test_a_salt_hides_the_words() -> None:
    episodes = [episode(*one) for one in enumerate(THINGS)]

    one, other = (vocabulary_of(episodes, Hasher(salt)) for salt in (b"a", b"b"))

    assert len(one) == len(other)
    assert not set(one.tolist()) & set(other.tolist())
