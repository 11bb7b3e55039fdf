import numpy as np
import pytest

from qguide.qnet.features.hashing import Hasher, entry
from qguide.qnet.features.state_action import candidate_features, state_features, state_of
from qguide.qnet.features.words import (
    action_words,
    focused,
    listed_choices,
    named_parts,
    numbers_of,
    skeleton,
    surroundings,
)
from qguide.qnet.types import History, Message, ToolCall


def call(name: str, arguments: str) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments),))


def weight(history: History, candidate: Message, hasher: Hasher) -> dict[int, float]:
    indices, values = candidate_features(state_of(history, hasher), candidate)
    found: dict[int, float] = {}
    for index, value in zip(indices.tolist(), values.tolist(), strict=True):
        found[index] = found.get(index, 0.0) + value
    return found


HISTORY = (
    Message("system", "You run errands."),
    Message("user", "Bring the milk to Ana."),
    call("open", '{"place": "shelf"}'),
    Message("tool", "No milk here. There is a vase."),
)


def test_replies_of_one_effect_have_the_same_features() -> None:
    hasher = Hasher(b"salt")
    one = Message("assistant", "Thought: I look there.\nAction: open fridge")
    other = Message("assistant", "Action: open fridge")

    assert weight(HISTORY, one, hasher) == weight(HISTORY, other, hasher)


def test_equal_tool_calls_have_the_same_features_whatever_their_spelling() -> None:
    hasher = Hasher(b"salt")
    one = call("bring", '{"thing": "milk", "room": "office"}')
    other = call("bring", '{"room":"office","thing":"milk"}')

    assert weight(HISTORY, one, hasher) == weight(HISTORY, other, hasher)


def test_a_word_is_known_by_where_it_was_read() -> None:
    action = action_words(call("bring", '{"thing": "milk", "room": "office"}'))

    assert action.places == ("room", "thing")
    assert skeleton(action, ["new", "task"]) == "bring room:new thing:task"


def test_names_of_another_task_share_the_skeleton_and_not_the_action() -> None:
    hasher = Hasher(b"salt")
    other_task = (HISTORY[0], Message("user", "Bring the atlas to Ana."), *HISTORY[2:])
    milk = weight(HISTORY, call("take", '{"thing": "milk"}'), hasher)
    atlas = weight(other_task, call("take", '{"thing": "atlas"}'), hasher)

    assert milk != atlas
    assert milk.keys() & atlas.keys()


def test_each_family_weighs_the_same_however_long_the_observation_is() -> None:
    hasher = Hasher(b"salt")
    long = Message("tool", " ".join(f"word{i}" for i in range(5_000)))
    short = weight(HISTORY, call("open", '{"place": "fridge"}'), hasher)
    many = weight((*HISTORY[:-1], long), call("open", '{"place": "fridge"}'), hasher)

    def length(vector: dict[int, float]) -> float:
        return sum(value**2 for value in vector.values())

    assert length(many) == pytest.approx(length(short), rel=0.15)


def test_an_action_that_was_answered_before_is_told_from_a_new_one() -> None:
    hasher = Hasher(b"salt")
    once = weight(HISTORY, call("open", '{"place": "shelf"}'), hasher)
    never = weight(HISTORY[:2], call("open", '{"place": "shelf"}'), hasher)

    assert once != never


def test_a_long_text_is_read_where_it_concerns_the_task() -> None:
    text = ". ".join([*(f"filler{i} filler{i + 1}" for i in range(100)), "The milk is cold"])

    assert focused(text, {"milk"}, most=4) == ("the", "milk", "is", "cold")


def test_what_stands_around_words_of_the_task_is_the_same_in_all_tasks() -> None:
    copper = surroundings("You walk. You carry soaked copper, rope.", {"copper"})
    flax = surroundings("You walk. You carry soaked flax, rope.", {"flax"})

    assert [around for _, around in copper] == ["soaked _", "_ rope", "you carry …"]
    assert copper == [(word.replace("flax", "copper"), around) for word, around in flax]
    assert surroundings("Copper and flax", {"copper", "flax"})[1] == ("copper", "_ and")


def test_words_of_the_task_are_known_by_what_is_said_of_them() -> None:
    vocabulary = np.sort(Hasher(b"salt").hashes(["milk", "vase"]))
    hasher = Hasher(b"salt", vocabulary=vocabulary)
    reply = call("open", '{"place": "fridge"}')

    def after(observed: str) -> dict[int, float]:
        return weight((*HISTORY[:-1], Message("tool", observed)), reply, hasher)

    assert after("You see milk. You carry the vase.") != after("You carry milk. You see the vase.")


def test_a_salt_hides_which_weights_a_word_has() -> None:
    reply = call("open", '{"place": "fridge"}')

    assert weight(HISTORY, reply, Hasher(b"a")).keys() != weight(HISTORY, reply, Hasher(b"b")).keys()


def test_words_of_states_outside_the_vocabulary_are_not_read() -> None:
    def hasher(*known: str) -> Hasher:
        return Hasher(b"salt", vocabulary=np.sort(Hasher(b"salt").hashes(map(entry, known))))

    reply = call("open", '{"place": "fridge"}')
    other = (*HISTORY[:-1], Message("tool", "No milk here. There is a lamp."))
    without, with_both = hasher("milk"), hasher("milk", "vase", "lamp")

    assert weight(HISTORY, reply, without) == weight(other, reply, without)
    assert weight(HISTORY, reply, with_both) != weight(other, reply, with_both)


def test_an_actions_own_words_are_always_read() -> None:
    hasher = Hasher(b"salt", vocabulary=np.zeros(0, np.uint64))
    fridge, shelf = (call("open", f'{{"place": "{place}"}}') for place in ("fridge", "rack"))

    assert weight(HISTORY, fridge, hasher) != weight(HISTORY, shelf, hasher)


@pytest.mark.parametrize(
    "history",
    [
        (Message("user", ""),),
        (Message("user", "Go."), Message("assistant", ""), Message("user", "")),
        (Message("system", "Only instructions."),),
        (Message("user", "Go."), call("f", "not json"), Message("tool", "\ud800 half a character")),
    ],
)
@pytest.mark.parametrize(
    "reply",
    [
        Message("assistant", ""),
        Message("assistant", "{no JSON}"),
        Message("assistant", '{"a":' * 100_000),
        call("f", '{"a":' * 100_000),
        call("f", "[1, 2]"),
        call("f", '{"a": {"b": null}}'),
    ],
)
def test_odd_histories_and_replies_have_finite_features(history: History, reply: Message) -> None:
    hasher = Hasher(b"")
    state = state_of(history, hasher)

    for indices, values in (state_features(state), candidate_features(state, reply)):
        assert np.isfinite(values).all()
        assert ((indices >= 0) & (indices < 1 << hasher.bits)).all()


def test_a_path_is_known_by_its_parts_beside_the_other_words() -> None:
    def moved(source: str, target: str) -> Message:
        return call("move", f'{{"source": "/home/{source}", "target": "/srv/{target}"}}')

    pairs = set(named_parts(action_words(moved("ann/cv_2041.pdf", "people"))))
    again = set(named_parts(action_words(moved("bob/cv_9316.docx", "people"))))
    assert "source:cv target:people" in pairs & again
    assert "source:cv target:people" not in named_parts(action_words(moved("bob/cv_9316.docx", "media")))
    hasher = Hasher(b"salt")
    one, other = (
        weight(HISTORY, moved(source, "people"), hasher) for source in ("ann/cv_2041.pdf", "bob/cv_9316.docx")
    )
    apart = weight(HISTORY, moved("bob/log_9316.docx", "media"), hasher)
    assert len(one.keys() & other.keys()) > len(one.keys() & apart.keys())


def test_words_of_a_language_have_no_parts() -> None:
    assert named_parts(action_words(call("bring", '{"thing": "well-made vase", "n": 2}'))) == ()


def test_parts_of_a_long_action_are_bounded() -> None:
    paths = " ".join(f"dir{chr(97 + i)}/file_{chr(97 + i)}" for i in range(26))
    assert len(named_parts(action_words(call("copy", f'{{"paths": "{paths}"}}')))) == 12 * 11 / 2


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Price: $1,234.50 in all", {"price": 1234.5}),
        ('{"balance": -12, "share": .5}', {"balance": -12, "share": 0.5}),
        ("The heat is 63, limits are 70 and 80", {"heat": 63, "limits": 70, "and": 80}),
        ("Load 95%; memory 1,234,567 kB", {"load": 95, "memory": 1234567}),
        ('{"ports":[100,200,300]}', {"ports": 100}),
        ("Version 1.2.3 of 2026-11-26, 10:30, pages 5-7, 7kg", {}),
        ("Account 1234567890123456789, mass 1e9", {}),
        ("Sum 1" + ",234" * 3_000, {"sum": 1}),
    ],
)
def test_a_number_is_read_with_its_sign_and_its_thousands(text: str, numbers: dict[str, float]) -> None:
    assert dict(numbers_of(text)) == numbers


LISTED = "A troll stands in the way.\n1. Sneak past\n2. Sing a song\n3. Go home"


@pytest.mark.parametrize("reply", ["2", "2.", "(2)", "Option 2", "2. Sing a song", "Action: [2]"])
def test_the_number_of_a_choice_is_read_as_the_choice(reply: str) -> None:
    assert action_words(Message("assistant", reply), LISTED).key == "sing a song"


@pytest.mark.parametrize("reply", ["4", "0", "a door", "22", "2 songs"])
def test_what_is_no_number_of_a_choice_is_read_as_it_is(reply: str) -> None:
    assert action_words(Message("assistant", reply), LISTED).key == reply


def test_only_the_part_of_a_list_that_is_read_is_kept() -> None:
    long = LISTED + "\n" + "a " * 5000
    assert listed_choices(f"{long}b{long}") is listed_choices(f"{long}c{long}"), "one entry of the cache"


def test_a_choice_that_was_taken_is_known_whatever_its_number() -> None:
    turned = "A troll stands in the way.\n1. Go home\n2. Sneak past\n3. Sing a song"
    hasher = Hasher(b"salt")
    before = (Message("user", LISTED), Message("assistant", "2"), Message("user", LISTED))
    after = (Message("user", turned), Message("assistant", "3"), Message("user", turned))

    first, second = ([one.key for one in state_of(history, hasher).read.actions] for history in (before, after))

    assert first == second == ["sing a song"]
    assert action_words(Message("assistant", "b"), "a) Stay\nb) Leave").key == "leave"
