"""A radix tree of token sequences, which finds the longest prefix shared with another one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """Tokens that come after the parent's, and how many sequences of each holder have them."""

    token_ids: list[int]
    holders: dict[int, int] = field(default_factory=dict)
    children: dict[int, "_Node"] = field(default_factory=dict)


class RadixTree:
    """Sequences by holder; a holder may have several, and the same one more than once."""

    def __init__(self) -> None:
        self._root = _Node([])

    def __bool__(self) -> bool:
        return bool(self._root.children)

    def add(self, token_ids: Sequence[int], holder: int) -> None:
        """Add a sequence of a holder."""
        node, at = self._root, 0
        while at < len(token_ids):
            child = node.children.get(token_ids[at])
            if child is None:
                child = node.children[token_ids[at]] = _Node(list(token_ids[at:]))
            shared = _shared(child.token_ids, token_ids, at)
            if shared < len(child.token_ids):
                child = _split(node, child, shared)
            child.holders[holder] = child.holders.get(holder, 0) + 1
            node, at = child, at + shared

    def remove(self, token_ids: Sequence[int], holder: int) -> None:
        """Remove a sequence of a holder, which was added before."""
        path, at = [self._root], 0
        while at < len(token_ids):
            child = path[-1].children[token_ids[at]]
            child.holders[holder] -= 1
            if not child.holders[holder]:
                del child.holders[holder]
            if not child.holders:
                del path[-1].children[token_ids[at]]
                break
            path.append(child)
            at += len(child.token_ids)
        # From below: a node that was joined to its child may now be its parent's only one.
        for node in reversed(path[1:]):
            _join_only_child(node)

    def find(self, token_ids: Sequence[int]) -> tuple[int, Mapping[int, int]]:
        """Length of the longest shared prefix, and its holders, the latest last."""
        node, at = self._root, 0
        while at < len(token_ids):
            child = node.children.get(token_ids[at])
            if child is None:
                break
            shared = _shared(child.token_ids, token_ids, at)
            node, at = child, at + shared
            if shared < len(child.token_ids):
                break
        return at, node.holders


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading tokens that two sequences share."""
    # Halving: slices are compared in C, which beats a loop over tokens in Python by far.
    equal, end = 0, min(len(one), len(other))
    while equal < end:
        middle = (equal + end + 1) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            end = middle - 1
    return equal


def _shared(edge: list[int], token_ids: Sequence[int], at: int) -> int:
    """Number of an edge's tokens that a sequence has from `at` on."""
    return common_prefix(edge, token_ids[at : at + len(edge)])


def _split(parent: _Node, node: _Node, at: int) -> _Node:
    """Cut a node in two; returns the upper one."""
    upper = _Node(node.token_ids[:at], dict(node.holders), {node.token_ids[at]: node})
    node.token_ids = node.token_ids[at:]
    parent.children[upper.token_ids[0]] = upper
    return upper


def _join_only_child(node: _Node) -> None:
    """Undo a split that no sequence needs any more."""
    if len(node.children) != 1 or not node.token_ids:
        return
    [child] = node.children.values()
    if child.holders == node.holders:
        node.token_ids = node.token_ids + child.token_ids
        node.children = child.children
