"""Properties of every tree and every label."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.records import TreeRow
from qguide.training.algorithms.backups import (
    average_outcome,
    bellman_backup,
    branch_outcome,
    gae_advantages,
    labelled_paths,
    lambda_returns,
    normalize,
    outcome_advantage,
)
from qguide.training.algorithms.tree import Tree, merge_branch, tree_of
from qguide.training.data.records import node_row, tree_from_row
from qguide.training.trajectory import Step

gammas = st.floats(0.0, 1.0)
outcomes = st.floats(0.0, 1.0)


@st.composite
def branches(draw: st.DrawFn) -> tuple[Step, ...]:
    """A trajectory in a world where the state is the list of actions so far."""
    names = draw(st.text("abc", min_size=1, max_size=5))
    steps = [Step(f"Action: {name}", names[: i + 1]) for i, name in enumerate(names)]
    steps[-1] = replace(steps[-1], reward=draw(outcomes), terminated=None)
    return tuple(steps)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree = Tree("start")
    for branch in draw(st.lists(branches(), min_size=1, max_size=8)):
        tree, _ = merge_branch(tree, branch, source="policy")
    leaves = {leaf.id for leaf in tree.leaves()}
    # A branch may have run through what was a leaf: rewards stand on leaves alone.
    nodes = [
        node if node.id in leaves else replace(node, step=replace(node.step, reward=0.0, terminated=False))
        for node in tree.nodes
    ]
    return tree_of(tree.first_observation, nodes)


@given(trees())
def test_gamma_zero_gives_the_reward(tree: Tree) -> None:
    q_values = bellman_backup(tree, gamma=0.0)
    assert q_values == {node.id: node.step.reward for node in tree.nodes}


@given(trees(), gammas)
def test_rewards_in_the_unit_interval_give_q_in_it(tree: Tree, gamma: float) -> None:
    assert all(0.0 <= q <= 1.0 for q in bellman_backup(tree, gamma=gamma).values())


@given(trees(), gammas, st.data())
def test_a_higher_reward_lowers_no_q(tree: Tree, gamma: float, data: st.DataObject) -> None:
    raised = data.draw(st.sampled_from(tree.nodes))
    better = [
        replace(node, step=replace(node.step, reward=node.step.reward + 0.5)) if node is raised else node
        for node in tree.nodes
    ]
    before = bellman_backup(tree, gamma=gamma)
    after = bellman_backup(tree_of(tree.first_observation, better), gamma=gamma)
    assert all(after[node_id] >= before[node_id] for node_id in before)
    assert after[raised.id] > before[raised.id]


@given(trees(), gammas)
def test_a_parent_is_worth_its_best_child_discounted(tree: Tree, gamma: float) -> None:
    q_values = bellman_backup(tree, gamma=gamma)
    for node in tree.nodes:
        if below := tree.children[node.id]:
            best = max(q_values[child] for child in below)
            assert q_values[node.id] == pytest.approx(gamma * best)


@given(trees(), gammas)
def test_normalising_keeps_the_order_and_spans_the_unit_interval(tree: Tree, gamma: float) -> None:
    q_values = bellman_backup(tree, gamma=gamma)
    normalized = normalize(q_values)
    ranked = sorted(q_values, key=lambda node_id: q_values[node_id])
    assert all(normalized[a] <= normalized[b] for a, b in pairwise(ranked))
    if len(set(q_values.values())) == 1:
        assert normalized == q_values
    else:
        assert (min(normalized.values()), max(normalized.values())) == (0.0, 1.0)


@given(trees())
def test_the_average_lies_between_the_worst_and_the_best_leaf(tree: Tree) -> None:
    averages = average_outcome(tree)
    below: dict[int, list[float]] = {}
    for leaf in tree.leaves():
        for node in tree.path(leaf.id):
            below.setdefault(node.id, []).append(leaf.step.reward)
    for node_id, rewards in below.items():
        assert min(rewards) - 1e-9 <= averages[node_id] <= max(rewards) + 1e-9
        assert averages[node_id] == pytest.approx(sum(rewards) / len(rewards))


@given(trees())
def test_the_branch_outcome_is_the_reward_of_a_leaf_below(tree: Tree) -> None:
    outcome = branch_outcome(tree)
    for leaf in tree.leaves():
        assert outcome[leaf.id] == leaf.step.reward
    for node in tree.nodes:
        if below := tree.children[node.id]:
            assert outcome[node.id] in {outcome[child] for child in below}


@given(trees())
def test_returns_without_discount_and_values_are_average_outcomes(tree: Tree) -> None:
    returns = lambda_returns(tree, {}, gamma=1.0, gae_lambda=1.0)
    assert returns == pytest.approx(average_outcome(tree))
    advantages = gae_advantages(tree, {}, gamma=1.0, gae_lambda=1.0)
    assert advantages == pytest.approx(outcome_advantage(tree), abs=1e-12)


@given(trees(), gammas)
def test_a_model_that_knows_the_outcomes_is_told_nothing_else(tree: Tree, gae_lambda: float) -> None:
    known = average_outcome(tree)
    assert lambda_returns(tree, known, gamma=1.0, gae_lambda=gae_lambda) == pytest.approx(known)


@given(trees(), gammas, st.data())
def test_lambda_zero_reads_one_step_ahead(tree: Tree, gamma: float, data: st.DataObject) -> None:
    values = {node.id: data.draw(outcomes) for node in tree.nodes}
    returns = lambda_returns(tree, values, gamma=gamma, gae_lambda=0.0)
    for node in tree.nodes:
        below = tree.children[node.id]
        if len(below) == 1:
            expected = node.step.reward + gamma * values[below[0]]
            assert returns[node.id] == pytest.approx(expected)
        if not below:
            assert returns[node.id] == node.step.reward


@given(trees(), branches())
def test_merging_a_branch_twice_is_merging_it_once(tree: Tree, branch: tuple[Step, ...]) -> None:
    once, first_ids = merge_branch(tree, branch, source="policy")
    twice, second_ids = merge_branch(once, branch, source="expert")
    assert twice == once
    assert second_ids == first_ids


@given(trees(), branches())
def test_a_merged_branch_can_be_read_back(tree: Tree, branch: tuple[Step, ...]) -> None:
    merged, node_ids = merge_branch(tree, branch, source="policy")
    path = merged.path(node_ids[-1])
    assert [node.step.action for node in path] == [step.action for step in branch]
    assert [node.depth for node in path] == list(range(1, len(branch) + 1))
    assert merged.nodes[: len(tree.nodes)] == tree.nodes


@given(trees())
def test_children_differ_and_rebuild_from_the_nodes(tree: Tree) -> None:
    assert tree_of(tree.first_observation, tree.nodes) == tree
    for below in tree.children:
        actions = [tree.node(child).step.action for child in below]
        assert len(set(actions)) == len(actions)


@given(trees(), gammas)
def test_every_node_is_labelled_exactly_once(tree: Tree, gamma: float) -> None:
    q_values = bellman_backup(tree, gamma=gamma)
    labelled = [
        (node.id, q_value)
        for path in labelled_paths(tree, q_values)
        for node, q_value in zip(path.nodes, path.q_values, strict=True)
        if q_value is not None
    ]
    assert len(labelled) == len(tree.nodes)
    assert dict(labelled) == q_values


@given(trees())
def test_a_tree_survives_its_row(tree: Tree) -> None:
    row = TreeRow(
        task_id="t",
        kind="any",
        environment="any",
        first_observation=tree.first_observation,
        nodes=tuple(node_row(node) for node in tree.nodes),
        draws=1,
    )
    assert tree_from_row(TreeRow.model_validate_json(row.model_dump_json())) == tree
