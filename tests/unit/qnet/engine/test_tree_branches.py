"""Trees on trunks with recurrent layers: the loss and the gradients are those of packed rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from qguide.qnet.engine import tree_branches
from qguide.qnet.engine.tree_branches import has_recurrent_layers, reads_branches
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.accelerator import enable_gradient_checkpointing
from qguide.training.optimization.packed_replies import PackedReplies, ReplyPath
from qguide.training.optimization.packed_trees import PackedTree, QPlace
from qguide.training.policy_training.logprobs import reply_logprobs
from qguide.training.q_training.options import QNetLossOptions
from qguide.training.q_training.qnet_loss import loss_of_tree
from qguide.training.q_training.validation import q_of_tree
from tests.support.architectures import enliven, seeded, tiny_config, tiny_pair
from tests.support.tiny_models import policy_model, q_model

STEM = list(range(3, 30))
PATHS = [[*STEM, 40, 41], [*STEM, 40, 42, *range(50, 70)], [*STEM, 40, 42, *range(50, 60), 90], [*STEM[:9], 43], [7, 8]]
OPTIONS = QNetLossOptions(ranking_weight=0.7, progress_weight=0.3)
HYBRIDS = ("granitemoehybrid", "qwen3_next")
pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Found:
    values: Tensor
    gradients: dict[str, Tensor]


@pytest.fixture
def switch_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run every trunk on branches or on paths, in many passes, from the call on."""

    def switch(way: str) -> None:
        monkeypatch.setattr(tree_branches, "_LEAST_TOKENS", 1)
        monkeypatch.setattr(tree_branches, "reads_branches", lambda _: way == "branches")
        for module in ("q_training.validation", "policy_training.logprobs"):
            monkeypatch.setattr(f"qguide.training.{module}.has_recurrent_layers", lambda _: True)

    return switch


def tree_of(paths: list[list[int]]) -> PackedTree:
    tree = PackedTree()
    for number, path in enumerate(paths):
        [*_, end] = tree.add(path)
        tree.label(QPlace(end, 0.1 + 0.2 * number))
        tree.label(QPlace(tree.before[end], 0.3))
    first, second, third = (tree.add(path)[-1] for path in paths[:3])
    tree.pairs = [(QPlace(second, 0.9), QPlace(first, 0.1)), (QPlace(third, 0.5), QPlace(first, 0.1))]
    tree.successions = [(QPlace(second, 0.9), QPlace(tree.add(STEM)[-1], 0.4))]
    return tree


def replies() -> PackedReplies:
    packed = PackedReplies()
    for path in PATHS:
        packed.add_reply(ReplyPath(path, scored=list(range(1, len(path)))[-4:]))
    return packed


def of_qnet(qnet: QNet) -> Found:
    qnet.zero_grad()
    tree = tree_of(PATHS)
    loss = loss_of_tree(qnet, tree, OPTIONS)
    loss.total.backward()
    return Found(torch.cat([q_of_tree(qnet, tree), loss.total[None]]), gradients_of(qnet))


def of_policy(policy: PreTrainedModel) -> Found:
    policy.zero_grad()
    logprob_R = reply_logprobs(policy, replies())
    (logprob_R * torch.arange(1.0, 6.0)).sum().backward()
    return Found(logprob_R, gradients_of(policy))


def gradients_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(one: Found, other: Found) -> None:
    """Equal to 1e-5, gradients relative to the largest."""
    torch.testing.assert_close(one.values, other.values, atol=1e-5, rtol=1e-5)
    assert one.gradients.keys() == other.gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in other.gradients.values())
    for name, gradient in one.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name], atol=1e-5 * largest, rtol=1e-4)


@pytest.mark.parametrize("way", ["branches", "paths"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_both_ways_have_the_loss_and_gradients_of_a_packed_row(
    architecture: str, way: str, switch_to: Callable[[str], None]
) -> None:
    qnet, policy = q_model(architecture).model, policy_model(architecture).model
    packed = of_qnet(qnet), of_policy(policy)
    switch_to(way)
    assert_same(of_qnet(qnet), packed[0])
    assert_same(of_policy(policy), packed[1])


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_branches_of_a_hybrid_have_the_loss_and_gradients_of_its_paths(
    model_type: str, switch_to: Callable[[str], None]
) -> None:
    qnet, policy = tiny_pair(tiny_config(model_type))[0].model, causal_lm(model_type)
    of_branches = of_qnet(qnet), of_policy(policy)
    assert reads_branches(qnet.trunk)
    assert reads_branches(policy)
    switch_to("paths")
    assert_same(of_qnet(qnet), of_branches[0])
    assert_same(of_policy(policy), of_branches[1])


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_branches_compute_each_token_once_but_for_single_ones_that_branch(model_type: str) -> None:
    qnet = tiny_pair(tiny_config(model_type))[0].model
    tree = tree_of(PATHS)
    q_of_tree(qnet, tree)  # the first call also tries the architecture
    with counted_passes(qnet) as passes:
        q_of_tree(qnet, tree)
    # Token 40, which two follow, comes with each of them; [43] is padded to 2, and [90] to 10.
    assert sum(shape.numel() for shape in passes) == len(tree) + 1 + 1 + 9
    assert all(shape.numel() < len(tree) for shape in passes)


def test_a_state_that_an_architecture_gets_wrong_is_told_by_the_probe(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = causal_lm("jamba")  # ignores the state of earlier tokens where there are several
    with caplog.at_level("INFO", logger=tree_branches.__name__):
        of_policy(policy)
    assert not reads_branches(policy)
    assert "outputs or gradients differ by" in caplog.text


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_a_hybrid_reads_each_path_of_a_tree_as_it_reads_it_alone(model_type: str) -> None:
    qnet = tiny_pair(tiny_config(model_type))[0].model
    tree = tree_of(PATHS)
    with torch.no_grad():
        q_T = q_of_tree(qnet, tree)
        for path in PATHS:
            alone_T = qnet(torch.tensor([path]))[0]
            torch.testing.assert_close(q_T[tree.add(path)], alone_T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_passes_that_are_computed_again_have_the_same_gradients(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    qnet = tiny_pair(tiny_config(model_type))[0].model.train()
    policy = causal_lm(model_type).train()
    at_once = of_qnet(qnet), of_policy(policy)
    monkeypatch.setattr(tree_branches, "_LEAST_TOKENS", 1)
    for model in (qnet, policy):
        enable_gradient_checkpointing(model)
    with counted_passes(qnet) as passes:
        assert_same(of_qnet(qnet), at_once[0])
    assert len(passes) > 3
    assert_same(of_policy(policy), at_once[1])


def test_paths_end_at_their_last_wanted_token() -> None:
    tree = tree_of(PATHS)
    paths = list(tree_branches._paths(tree, range(len(tree))))
    assert [len(path) for path in paths] == [len(path) for path in PATHS]
    assert list(tree_branches._paths(tree, [1])) == [[0, 1]]


def test_recurrent_layers_are_known_by_what_an_architecture_declares() -> None:
    assert all(has_recurrent_layers(causal_lm(name)) for name in (*HYBRIDS, "lfm2", "rwkv"))
    assert not any(has_recurrent_layers(causal_lm(name)) for name in ("llama", "gemma3_text"))


def causal_lm(model_type: str) -> PreTrainedModel:
    with seeded():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(tiny_config(model_type))
    model.float().eval()
    enliven(model)
    return model


@contextmanager
def counted_passes(qnet: QNet) -> Iterator[list[torch.Size]]:
    """The shapes of a trunk's inputs, pass by pass."""
    shapes: list[torch.Size] = []
    hook = qnet.trunk.register_forward_pre_hook(
        lambda _, args, given: shapes.append(given["input_ids"].shape), with_kwargs=True
    )
    yield shapes
    hook.remove()


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_a_frozen_trunk_reads_branches(model_type: str) -> None:
    policy = causal_lm(model_type).requires_grad_(False)
    assert reads_branches(policy)
