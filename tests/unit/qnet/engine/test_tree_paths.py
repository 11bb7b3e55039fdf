"""Trees on trunks with recurrent layers: the loss and the gradients are those of packed rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from qguide.qnet.engine import tree_paths
from qguide.qnet.engine.tree_paths import has_recurrent_layers
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.accelerator import enable_gradient_checkpointing
from qguide.training.optimization.packed_replies import PackedReplies, ReplyPath
from qguide.training.optimization.packed_trees import PackedTree, Place
from qguide.training.policy_training.logprobs import reply_logprobs
from qguide.training.q_training.loss_terms import QNetLossOptions
from qguide.training.q_training.losses import loss_of_tree
from qguide.training.q_training.validation import q_of_tree
from tests.support.architectures import enliven, tiny_config, tiny_pair
from tests.support.tiny_models import policy_model, q_model

STEM = list(range(3, 30))
PATHS = [
    [*STEM, 40, 41],
    [*STEM, 40, 42, *range(50, 70)],
    [*STEM, 40, 42, *range(50, 60), 90],
    [*STEM[:9], 43],
    [7, 8],
]
OPTIONS = QNetLossOptions(ranking_weight=0.7, progress_weight=0.3)
HYBRIDS = ("granitemoehybrid", "qwen3_next")
pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Found:
    values: Tensor
    gradients: dict[str, Tensor]


@pytest.fixture
def by_paths(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Run every trunk on paths, in many passes, from the call on."""

    def switch() -> None:
        monkeypatch.setattr(tree_paths, "_LEAST_TOKENS", 1)
        for module in ("q_training.validation", "policy_training.logprobs"):
            monkeypatch.setattr(f"qguide.training.{module}.has_recurrent_layers", lambda _: True)

    return switch


def tree_of(paths: list[list[int]]) -> PackedTree:
    tree = PackedTree()
    for number, path in enumerate(paths):
        [*_, end] = tree.add(path)
        tree.label(Place(end, 0.1 + 0.2 * number))
        tree.label(Place(tree.before[end], 0.3))
    first, second, third = (tree.add(path)[-1] for path in paths[:3])
    tree.pairs = [(Place(second, 0.9), Place(first, 0.1)), (Place(third, 0.5), Place(first, 0.1))]
    tree.successions = [(Place(second, 0.9), Place(tree.add(STEM)[-1], 0.4))]
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


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_paths_have_the_loss_and_gradients_of_a_packed_row(
    architecture: str, by_paths: Callable[[], None]
) -> None:
    qnet, policy = q_model(architecture).model, policy_model(architecture).model
    packed = of_qnet(qnet), of_policy(policy)
    by_paths()
    assert_same(of_qnet(qnet), packed[0])
    assert_same(of_policy(policy), packed[1])


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
    monkeypatch.setattr(tree_paths, "_LEAST_TOKENS", 1)
    for model in (qnet, policy):
        enable_gradient_checkpointing(model)
    with counted_passes(qnet) as passes:
        assert_same(of_qnet(qnet), at_once[0])
    assert len(passes) > 3
    assert_same(of_policy(policy), at_once[1])


def test_each_distinct_token_is_read_from_one_path() -> None:
    tree = tree_of(PATHS)
    paths = list(tree_paths._paths(tree, range(len(tree))))
    read = [path[column] for path, own in paths for column in own]
    assert sorted(read) == list(range(len(tree)))
    assert [len(path) for path, _ in paths] == [len(path) for path in PATHS]
    assert [path for path, _ in tree_paths._paths(tree, [1])] == [[0, 1]]


def test_recurrent_layers_are_known_by_what_an_architecture_declares() -> None:
    assert all(has_recurrent_layers(causal_lm(name)) for name in (*HYBRIDS, "lfm2", "rwkv"))
    assert not any(has_recurrent_layers(causal_lm(name)) for name in ("llama", "gemma3_text"))


def causal_lm(model_type: str) -> PreTrainedModel:
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
