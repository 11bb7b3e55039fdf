"""A radix tree finds the same prefixes as a comparison with every sequence."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from qguide.qnet.engine.prefix_cache import RadixTree
from qguide.qnet.engine.token_trie import common_prefix

SEQUENCES = st.lists(st.integers(0, 2), max_size=8)


class Held(RuleBasedStateMachine):
    """A radix tree with changing sequences, checked against a plain list of them."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree()
        self.model: list[tuple[list[int], int]] = []

    @rule(target=held, token_ids=SEQUENCES, holder=st.integers(0, 4))
    def add(self, token_ids: list[int], holder: int) -> tuple[list[int], int]:
        self.tree.add(token_ids, holder)
        self.model.append((token_ids, holder))
        return token_ids, holder

    @rule(one=consumes(held))
    def remove(self, one: tuple[list[int], int]) -> None:
        self.tree.remove(*one)
        self.model.remove(one)

    @rule(token_ids=SEQUENCES)
    def find(self, token_ids: list[int]) -> None:
        longest = max((common_prefix(ids, token_ids) for ids, _ in self.model), default=0)
        shared, holders = self.tree.find(token_ids)
        assert shared == longest
        if longest:
            alike = {h for ids, h in self.model if common_prefix(ids, token_ids) == longest}
            assert set(holders) == alike

    @invariant()
    def no_token_is_kept_twice_and_none_for_nobody(self) -> None:
        beginnings = {tuple(ids[:end]) for ids, _ in self.model for end in range(1, len(ids) + 1)}
        nodes = list(_nodes(self.tree))
        assert sum(len(node.token_ids) for node in nodes) == len(beginnings)
        forks = Counter(beginning[:-1] for beginning in beginnings)
        ends = {tuple(ids) for ids, _ in self.model if ids}
        needed = ends | {at for at, count in forks.items() if at and count > 1}
        assert len(nodes) == len(needed)


TestHeld = Held.TestCase
TestHeld.settings = settings(max_examples=40)


def _nodes(tree: RadixTree) -> list[Any]:
    found: list[Any] = []
    left = list(tree._root.children.values())
    while left:
        node = left.pop()
        found.append(node)
        left += node.children.values()
    return found


@given(SEQUENCES, SEQUENCES)
def test_the_common_prefix_is_what_zipping_finds(one: Sequence[int], other: Sequence[int]) -> None:
    shared = common_prefix(one, other)
    assert list(one[:shared]) == list(other[:shared])
    assert shared == min(len(one), len(other)) or one[shared] != other[shared]
