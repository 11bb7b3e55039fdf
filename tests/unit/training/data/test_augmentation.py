"""Renamings keep every relation of an episode and change its names."""

import random

from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.types import Message
from qguide.training.data.augmentation import Augmentation, build_augmenter

ITEMS = ("apple", "mug", "pan")
PLACES = ("desk", "shelf")
EPISODE = (
    Message("user", "Your task is to: put some apple on desk. On the shelf 1, you see a pan 2."),
    Message("assistant", "Thought: No apple at shelf 1.\nAction: go to desk 1"),
)


def words(text: str) -> list[str]:
    return [word for word in text.replace(".", " ").split() if word in ITEMS + PLACES]


@given(st.integers(0, 1000))
def test_a_word_gets_the_same_new_name_everywhere_and_stays_in_its_group(seed: int) -> None:
    augment = build_augmenter(Augmentation(probability=1.0, groups=(ITEMS, PLACES)))
    renamed = augment(EPISODE, random.Random(seed))
    before = words(" ".join(m.content for m in EPISODE))
    after = words(" ".join(m.content for m in renamed))
    mapping = dict(zip(before, after, strict=True))
    assert [mapping[word] for word in before] == after
    assert len(set(mapping.values())) == len(mapping)
    assert all((old in ITEMS) == (new in ITEMS) for old, new in mapping.items())
    assert [m.role for m in renamed] == [m.role for m in EPISODE]


def test_words_inside_other_words_stay() -> None:
    augment = build_augmenter(Augmentation(probability=1.0, groups=(("pan", "mug"),)))
    (kept,) = augment([Message("user", "company")], random.Random(0))
    assert kept.content == "company"


def test_probability_zero_changes_nothing() -> None:
    augment = build_augmenter(Augmentation(probability=0.0, groups=(ITEMS,)))
    assert augment(EPISODE, random.Random(0)) == EPISODE
