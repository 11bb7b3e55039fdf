"""Pairs among candidates, and along the best path of a tree worked out by hand."""

from qguide.training.algorithms.backups import label_tree
from qguide.training.algorithms.preferences import Preference, best_path_pairs, value_pairs
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.trajectory import Step


def test_every_two_candidates_that_differ_enough_are_a_pair() -> None:
    values = [0.5, 0.9, 0.5, 0.45]
    assert value_pairs(values, min_margin=0.1) == [(1, 0), (1, 2), (1, 3)]
    assert value_pairs(values, min_margin=0.04) == [(0, 3), (1, 0), (1, 2), (1, 3), (2, 3)]


def test_a_limit_keeps_the_largest_differences() -> None:
    values = [0.5, 0.9, 0.1, 0.5]
    assert value_pairs(values, min_margin=0.1, most=2) == [(0, 2), (1, 2)]
    assert value_pairs(values, min_margin=0.1, most=1) == [(1, 2)]


def test_two_of_the_same_side_are_no_pair() -> None:
    values, sides = [0.5, 0.9, 0.1, 0.5], ["a", "b", "b", "b"]
    assert value_pairs(values, min_margin=0.1, sides=sides) == [(0, 2), (1, 0)]
    assert value_pairs(values, min_margin=0.1, most=1, sides=sides) == [(0, 2)]


def tree_of_branches(*branches: tuple[str, float]) -> Tree:
    """A tree of actions spelled by letters; each branch ends with its reward."""
    tree = Tree("start")
    for letters, reward in branches:
        steps = [Step(letter, "") for letter in letters[:-1]]
        steps.append(Step(letters[-1], "", reward, terminated=True))
        tree, _ = merge_branch(tree, steps, source="policy")
    return tree


def letters(tree: Tree, pairs: list[Preference]) -> list[tuple[str, str]]:
    return [(tree.node(a).step.action, tree.node(b).step.action) for a, b in pairs]


def pairs_of(tree: Tree) -> list[tuple[str, str]]:
    values = label_tree(tree, target="q", gamma=0.9, normalized=False)
    return letters(tree, best_path_pairs(tree, values, min_margin=0.01))


# a: 0.81, b: 0.45, c: 0 at the root; below a: d (1 after another step) and e (0).
GOLDEN = (("adg", 1.0), ("ae", 0.0), ("bf", 0.5), ("c", 0.0))


def test_the_best_path_wins_against_the_worst_sibling_of_each_step() -> None:
    assert pairs_of(tree_of_branches(*GOLDEN)) == [("a", "c"), ("d", "e")]


def test_the_order_in_which_a_tree_grew_changes_nothing() -> None:
    assert pairs_of(tree_of_branches(*reversed(GOLDEN))) == [("a", "c"), ("d", "e")]


def test_equal_siblings_are_no_pair() -> None:
    assert pairs_of(tree_of_branches(("ac", 1.0), ("bd", 1.0), ("ae", 0.0))) == [("c", "e")]


def test_a_tree_without_success_gives_nothing() -> None:
    assert pairs_of(tree_of_branches(("ab", 0.0), ("c", 0.0))) == []
    assert best_path_pairs(Tree("start"), {}, min_margin=0.01) == []


def test_a_path_that_was_not_visited_to_its_end_gives_the_pairs_before_that() -> None:
    tree = tree_of_branches(("ab", 1.0), ("ac", 0.0), ("d", 0.0))
    assert best_path_pairs(tree, {1: 0.9, 3: 0.1, 4: 0.2}, min_margin=0.01) == [(1, 4)]


def test_a_sibling_that_was_never_visited_is_not_the_loser() -> None:
    tree = tree_of_branches(("a", 1.0), ("b", 0.0), ("c", 0.0))
    assert best_path_pairs(tree, {1: 1.0, 3: 0.2}, min_margin=0.01) == [(1, 3)]
