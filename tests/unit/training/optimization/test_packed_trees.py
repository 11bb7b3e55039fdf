"""A packed tree: each token once, the same Q values, the same loss."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, LlamaConfig, MptConfig, PretrainedConfig

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.types import Message
from qguide.training.algorithms.backups import label_tree, labelled_paths
from qguide.training.algorithms.tree import merge_trees
from qguide.training.data.records import LabelledTree
from qguide.training.optimization.options import ReadAt
from qguide.training.optimization.packed_trees import (
    PackedTree,
    QPlace,
    pack_tree,
    sibling_pairs,
    without_unbranched_suffixes,
)
from qguide.training.q_training.validation import q_of_tree, require_packable
from tests.support.labels import labelled
from tests.support.tiny_models import renderer

LLAMA = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
GPT2 = GPT2Config(vocab_size=16, n_embd=16, n_layer=2, n_head=2, n_positions=64)
PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=8)


def qnet_of(config: PretrainedConfig) -> QNet:
    torch.manual_seed(0)
    qnet = QNet(QNetConfig(trunk=config.to_dict(), head_width=8))
    qnet.eval()
    return qnet


QNETS = {config.model_type: qnet_of(config) for config in (LLAMA, GPT2)}


@pytest.mark.parametrize("model_type", QNETS)
@given(paths=PATHS)
@settings(max_examples=60)
def test_q_in_a_tree_is_q_of_each_path_alone(model_type: str, paths: list[list[int]]) -> None:
    qnet = QNETS[model_type]
    tree = PackedTree()
    places = [tree.add_labelled(path, [0.0] * len(path), [0.0] * len(path)) for path in paths]
    with torch.inference_mode():
        q_T = q_of_tree(qnet, tree)
        for path, indices in zip(paths, places, strict=True):
            alone_T = qnet(torch.tensor([path]))[0]
            torch.testing.assert_close(q_T[indices], alone_T, atol=2e-5, rtol=0)


@pytest.mark.parametrize("model_type", QNETS)
def test_trunks_that_heed_the_mask_are_accepted(model_type: str) -> None:
    require_packable(QNETS[model_type])


def test_a_trunk_that_ignores_the_mask_is_refused() -> None:
    config = MptConfig(vocab_size=16, d_model=16, n_layers=2, n_heads=2, initializer_range=0.3)
    with pytest.raises(ConfigError, match=r"MptModel .* 0\.0\d+ .*attention"):
        require_packable(qnet_of(config))


@given(paths=PATHS, seed=st.integers(0, 99))
def test_a_tree_holds_each_distinct_beginning_once(paths: list[list[int]], seed: int) -> None:
    rng = random.Random(seed)
    tree = PackedTree()
    asked = 0.0
    for path in paths:
        new = tree.new_tokens(path)
        before = len(tree)
        weight = [rng.random() for _ in path]
        asked += sum(weight)
        indices = tree.add_labelled(path, weight, [1.0] * len(path))
        assert [tree.token_ids[i] for i in indices] == path
        assert len(tree) - before == new
    beginnings = {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    assert len(tree) == len(beginnings)
    assert sum(tree.weight) == pytest.approx(asked)
    assert tree.target == pytest.approx([1.0] * len(tree))


def test_labels_that_share_a_token_are_averaged_by_their_weights() -> None:
    tree = PackedTree()
    tree.add_labelled([5, 6], [1.0, 1.0], [0.0, 1.0])
    tree.add_labelled([5, 7], [3.0, 0.0], [1.0, 9.0])
    assert [*tree.weight] == [4.0, 1.0, 0.0]
    assert tree.target == [0.75, 1.0, 0.0]


def test_a_pair_needs_one_state_and_a_difference() -> None:
    places = [(0, QPlace(3, 1.0)), (0, QPlace(5, 0.99)), (0, QPlace(7, 0.5)), (4, QPlace(9, 0.0))]
    pairs = sibling_pairs(places, min_label_margin=0.1)
    assert [(a.position, b.position) for a, b in pairs] == [(3, 7), (5, 7)]


def chat(*actions: int) -> list[Message]:
    said = [(Message("assistant", f"do {n}"), Message("user", f"saw {n}")) for n in actions]
    return [Message("user", "see"), *(message for turn in said for message in turn)]


@pytest.mark.parametrize(("read_at", "targets"), [("action", [0.25, 0.5]), ("observation", [0.0, 0.5, 1.0])])
def test_an_action_is_taught_the_mean_of_its_answers_as_often_as_each_came(
    read_at: ReadAt, targets: list[float]
) -> None:
    other_answer = [*chat(1)[:2], *chat(3)[2:]]
    episodes = [(chat(1), 1.0), (chat(2), 0.5), *[(other_answer, 0.0)] * 3]
    merged = merge_trees([labelled(said, labels={}, rewards=(reward,)).tree for said, reward in episodes])
    labels = label_tree(merged, target="q", gamma=1.0, normalized=False)
    tree = LabelledTree("t", replace(merged, values={"q": labels}), "q")
    pack = partial(pack_tree, loss_on="last", min_label_margin=0.1, max_length=64, max_tokens=256)
    [packed] = pack(renderer(), tree, read_at=read_at)
    assert sorted(target for target, weight in zip(packed.target, packed.weight, strict=True) if weight) == targets


def test_a_path_ends_at_its_last_action_that_has_a_sibling() -> None:
    labels = {number: float(number) for number in range(1, 6)}
    tree = labelled(chat(1, 2, 3, 4), chat(1, 5), labels=labels)
    long, short = labelled_paths(tree.tree, labels)
    cut = without_unbranched_suffixes([long, short])
    assert [[node.id for node in path.nodes] for path in cut] == [[1, 2], [1, 5]]
    assert [path.q_values for path in cut] == [(1.0, 2.0), (None, 5.0)]
    assert without_unbranched_suffixes([long]) == []


def test_a_candidate_that_nobody_took_trains_no_value_of_its_observation() -> None:
    tree = labelled(chat(1), labels={1: 0.5})
    [node] = tree.tree.nodes
    untried = replace(node, step=replace(node.step, tried=False))
    candidate = replace(tree, tree=replace(tree.tree, nodes=(untried,)))
    packed = partial(pack_tree, loss_on="last", min_label_margin=0.1, max_length=64, max_tokens=64)
    assert len(packed(renderer(), candidate, read_at="action")) == 1
    with pytest.raises(RecordError, match=r"task t, node 1: .*read_at = 'action'"):
        packed(renderer(), candidate, read_at="observation")
