"""The loss of a QNet, by hand."""

import pytest
import torch

from qguide.training.optimization.packed_trees import PackedTree, QPlace, pack_tree
from qguide.training.q_training.loss_terms import hl_gauss_error, tree_loss
from qguide.training.q_training.options import QNetLossOptions, RankingLoss
from qguide.training.q_training.validation import sibling_accuracy
from tests.support.echo import episode
from tests.support.labels import labelled
from tests.support.tiny_models import renderer


def test_the_error_of_a_distribution_is_least_at_its_target() -> None:
    edges = torch.linspace(-0.1, 1.1, 25)
    centres = (edges[:-1] + edges[1:]) / 2
    for target in (0.2, 0.75, 1.0):
        logits_TK = torch.zeros(1, 24, requires_grad=True)
        optimizer = torch.optim.Adam([logits_TK], lr=0.1)
        for _ in range(400):
            optimizer.zero_grad()
            hl_gauss_error(logits_TK, torch.tensor([target]), edges).sum().backward()
            optimizer.step()
        mean = float(logits_TK.detach().softmax(-1) @ centres)
        assert mean == pytest.approx(target, abs=0.01)


def test_the_loss_of_a_perfect_qnet_is_zero_and_of_a_wrong_order_is_not() -> None:
    chats = [(episode("red")[0], episode(said)[1]) for said in ("red", "blue")]
    rows = labelled(*chats, labels={1: 1.0, 2: 0.0})
    [tree] = pack_tree(renderer(), rows, loss_on="last", min_label_margin=0.1, max_length=64, max_tokens=64)
    [(better, worse)] = tree.pairs

    def told(of_better: float, of_worse: float) -> torch.Tensor:
        """Q at the ends of both actions, 0 elsewhere."""
        q_T = torch.zeros(len(tree))
        q_T[[better.position, worse.position]] = torch.tensor([of_better, of_worse])
        return q_T

    assert float(tree_loss(told(1.0, 0.0), tree, QNetLossOptions()).total) == 0.0
    assert float(tree_loss(told(0.0, 1.0), tree, QNetLossOptions()).total) == 2.0
    assert sibling_accuracy([(told(0.3, 0.2), tree)]) == (1.0, 1.0, 1)
    assert sibling_accuracy([(told(0.2, 0.2), tree)]) == (0.5, 0.5, 1)


def test_progress_is_the_difference_to_the_action_before() -> None:
    ask, red = episode("red")[:2]
    chats = [(ask, red, ask, episode(said)[1]) for said in ("red", "blue")]
    rows = labelled(*chats, labels={1: 0.5, 2: 1.0, 3: 0.25}, target="td")
    [tree] = pack_tree(renderer(), rows, loss_on="last", min_label_margin=0.1, max_length=64, max_tokens=64)
    # The label of node 1 is in the first path alone, but it comes before both of its children.
    [(win, before), (lose, same)] = tree.successions
    assert before == same
    assert [place.q_value for place in (before, win, lose)] == [0.5, 1.0, 0.25]
    q_T = torch.zeros(len(tree))
    q_T[[before.position, win.position, lose.position]] = torch.tensor([0.4, 0.6, 0.3])
    promise = 0.1**2 + 0.4**2 + 0.05**2
    progress = (0.2 - 0.5) ** 2 + (-0.1 + 0.25) ** 2
    assert float(tree_loss(q_T, tree, QNetLossOptions()).total) == pytest.approx(promise)
    total = tree_loss(q_T, tree, QNetLossOptions(progress_weight=2.0)).total
    assert float(total) == pytest.approx(promise + 2 * progress)


def test_trainings_from_before_progress_have_the_same_configuration() -> None:
    assert "progress_weight" not in QNetLossOptions().model_dump()
    assert QNetLossOptions(progress_weight=1.0).model_dump()["progress_weight"] == 1.0


def test_a_rare_great_regret_outweighs_a_frequent_small_one() -> None:
    # In two trees of three the first action is better by 0.1, in the third the second one by 0.9.
    trees = []
    for first, second in ((0.1, 0.0), (0.1, 0.0), (0.0, 0.9)):
        tree = PackedTree(token_ids=[1, 2])
        places = (QPlace(0, first), QPlace(1, second))
        tree.pairs = [places if first > second else places[::-1]]
        tree.weight, tree.weighted = [0.0, 0.0], [0.0, 0.0]
        tree.depths, tree.before = [0, 0], [-1, -1]
        trees.append(tree)
    margin = torch.zeros((), requires_grad=True)

    def slope(ranking: RankingLoss) -> float:
        objective = QNetLossOptions(ranking_weight=1.0, ranking=ranking)
        q_T = torch.stack([margin, -margin])
        loss = torch.stack([tree_loss(q_T, tree, objective).total for tree in trees]).sum()
        return float(torch.autograd.grad(loss, margin)[0])

    assert slope("order") < slope("root") < slope("regret")
    assert slope("order") < 0 < slope("regret")
    by_count, by_gap, _ = sibling_accuracy((torch.tensor([1.0, 0.0]), tree) for tree in trees)
    assert by_count == pytest.approx(2 / 3)
    assert by_gap == pytest.approx(0.2 / 1.1)
