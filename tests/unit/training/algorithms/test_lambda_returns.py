"""Temporal-difference labels, computed by hand."""

import json
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError, EmptyTreeError
from qguide.qnet.records import TreeRow
from qguide.training.algorithms.backups import gae_advantages, lambda_returns
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.data.records import tree_from_row
from qguide.training.trajectory import Step

GOLDEN = Path(__file__).parents[3] / "data" / "trees" / "two_ways_home.json"
# Nodes 2 and 4 win; node 1 leads to both, node 5 loses.
VALUES = {1: 0.5, 2: 0.8, 3: 0.4, 4: 0.9, 5: 0.2}


@pytest.fixture
def tree() -> Tree:
    return tree_from_row(TreeRow.model_validate(json.loads(GOLDEN.read_text())["tree"]))


def test_returns_mix_what_happened_with_what_was_expected(tree: Tree) -> None:
    returns = lambda_returns(tree, VALUES, gamma=0.9, gae_lambda=0.5)
    # Node 3: 0.9 (0.5 * 0.9 + 0.5 * 1). Node 1: V = (0.8 + 0.4) / 2, the mean return of its
    # children is (1 + 0.855) / 2, and 0.9 (0.5 * 0.6 + 0.5 * 0.9275) = 0.687375.
    assert returns == pytest.approx({1: 0.687375, 2: 1.0, 3: 0.855, 4: 1.0, 5: 0.0})


def test_advantages_are_returns_above_the_value_of_the_state(tree: Tree) -> None:
    advantages = gae_advantages(tree, VALUES, gamma=0.9, gae_lambda=0.5)
    # V of the task is (2 * 0.5 + 1 * 0.2) / 3 = 0.4, as two of three leaves are below node 1.
    assert advantages == pytest.approx({1: 0.287375, 2: 0.4, 3: 0.255, 4: 0.1, 5: -0.4})


def test_a_single_trajectory_gives_generalized_advantage_estimation() -> None:
    rewards, values = [0.0, 0.25, 0.0, 1.0], [0.3, 0.1, 0.6, 0.8]
    steps = [Step(f"Action: {i}", f"at {i}", reward=r) for i, r in enumerate(rewards)]
    tree, _ = merge_branch(Tree("task"), steps, source="policy")
    gamma, gae_lambda = 0.9, 0.7
    after = [*values[1:], 0.0]
    delta = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after, strict=True)]
    expected = {t + 1: sum((gamma * gae_lambda) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))}
    by_id = dict(enumerate(values, start=1))
    advantages = gae_advantages(tree, by_id, gamma=gamma, gae_lambda=gae_lambda)
    assert advantages == pytest.approx(expected)
    returns = lambda_returns(tree, by_id, gamma=gamma, gae_lambda=gae_lambda)
    assert returns == pytest.approx({i: expected[i] + v for i, v in by_id.items()})


def test_outcomes_alone_need_no_values(tree: Tree) -> None:
    assert lambda_returns(tree, {}, gamma=0.9, gae_lambda=1.0) == pytest.approx(
        {1: 0.9 * (1 + 0.9) / 2, 2: 1.0, 3: 0.9, 4: 1.0, 5: 0.0}
    )
    with pytest.raises(ConfigError, match=r"^node 4 .*gae_lambda .*qnet, .*gae_lambda to 1"):
        lambda_returns(tree, {}, gamma=0.9, gae_lambda=0.95)
    with pytest.raises(EmptyTreeError, match=r"draws$"):
        lambda_returns(Tree("nothing yet"), {}, gamma=0.9, gae_lambda=1.0)
