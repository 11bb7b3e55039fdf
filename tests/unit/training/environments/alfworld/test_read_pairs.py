"""A read pair is one reply in two histories that differ in one name of the last list."""

from random import Random

from qguide.qnet.types import Message
from qguide.training.environment import ReadPair
from qguide.training.environments.alfworld.bundle import read_pairs

FIRST = "You see a bed 1, and a desk 1.\n\nYour task is to: put a book in desk."
LIST = "You arrive at loc 3. On the bed 1, you see a book 2, and a pen 1."
TAKE_BOOK = "Thought: book 2 is here.\nAction: take book 2 from bed 1"
TAKE_MUG = "Thought: mug 1 is here.\nAction: take mug 1 from bed 1"
GO = "Thought: Not here.\nAction: go to desk 1"


def pairs_after(observation: str, *replies: str) -> list[ReadPair]:
    history = (Message("user", FIRST), Message("assistant", "Action: go to bed 1"), Message("user", observation))
    return read_pairs(history, replies, Random(0))


def test_what_is_there_is_exchanged_for_something_that_nobody_named() -> None:
    [pair] = pairs_after(LIST, TAKE_BOOK, GO)
    assert (pair.played, pair.rival) == ("present", GO)
    assert pair.present[-1].content == LIST
    assert pair.present[:-1] == pair.absent[:-1]
    start, end = "You arrive at loc 3. On the bed 1, you see a ", ", and a pen 1."
    absent = pair.absent[-1].content
    assert absent.startswith(start)
    assert absent.endswith(end)
    stranger = absent.removeprefix(start).removesuffix(end).split()[0]
    assert stranger.isalpha()
    assert stranger not in FIRST + LIST


def test_what_is_not_there_takes_the_place_of_something_that_is() -> None:
    [pair] = pairs_after(LIST, TAKE_MUG)
    assert (pair.played, pair.rival) == ("absent", None)
    assert pair.absent[-1].content == LIST
    assert pair.present[-1].content in (LIST.replace("book 2", "mug 1"), LIST.replace("pen 1", "mug 1"))


def test_a_reply_about_another_place_or_after_no_list_makes_no_pair() -> None:
    assert pairs_after(LIST, "Action: take book 2 from desk 1", GO) == []
    assert pairs_after("Nothing happens.", TAKE_BOOK, GO) == []
    assert pairs_after("You arrive at loc 3. On the bed 1, you see nothing.", TAKE_BOOK) == []
