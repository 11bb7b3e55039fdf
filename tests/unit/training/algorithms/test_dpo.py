"""The DPO loss: its gradient and its scale, and that it is TRL's."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qguide.qnet.models.checkpoint import load_policy
from qguide.training.optimization.packed_replies import PackedReplies, ReplyPath
from qguide.training.policy_training.dpo_loss import dpo_loss, implicit_q
from qguide.training.policy_training.logprobs import reply_logprobs
from tests.support.tiny_models import save_policy


def test_the_gradient_is_beta_times_what_sigmoid_leaves() -> None:
    policy = torch.tensor([-3.0, -2.0], requires_grad=True)
    loss = dpo_loss(*implicit_q(policy, policy.detach(), beta=0.4))
    [slope] = torch.autograd.grad(loss, policy)
    assert slope.tolist() == pytest.approx([-0.2, 0.2])


@pytest.mark.parametrize("beta", [0.1, 0.3])
def test_beta_scales_the_margin(beta: float) -> None:
    policy, reference = torch.tensor([-1.0, -9.0]), torch.tensor([-2.0, -3.0])
    chosen, rejected = implicit_q(policy, reference, beta=beta)
    assert float(chosen - rejected) == pytest.approx(beta * (1 + 6))


@pytest.mark.filterwarnings("default")  # TRL uses deprecated arguments of transformers
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_the_loss_of_random_batches_is_that_of_trl(tmp_path: Path, beta: float) -> None:
    folders = [save_policy(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    generator = torch.Generator().manual_seed(7)
    batch = [_random_pair(generator) for _ in range(8)]
    policy, reference = (load_policy(folder).model for folder in folders)
    ours = []
    for prompt, chosen, rejected in batch:
        tree = PackedReplies()
        for reply in (chosen, rejected):
            places = range(len(prompt), len(prompt) + len(reply))
            tree.add_reply(ReplyPath([*prompt, *reply], list(places)))
        with torch.no_grad():
            logprobs = [reply_logprobs(model, tree) for model in (policy, reference)]
        ours.append(dpo_loss(*implicit_q(*logprobs, beta=beta)))
    theirs = _loss_of_trl(folders, batch, tmp_path / "trl", beta=beta)
    assert float(torch.stack(ours).mean()) == pytest.approx(theirs, abs=1e-5)


_UNUSED = {"prompt": "go", "chosen": "to", "rejected": "a"}
"""A trainer wants a data set."""

Pair = tuple[list[int], list[int], list[int]]
"""Tokens of a prompt, the chosen and the rejected reply."""


def _random_pair(generator: torch.Generator) -> Pair:
    lengths = torch.randint(2, 9, (3,), generator=generator).tolist()
    prompt, chosen, rejected = (torch.randint(1, 250, (length,), generator=generator).tolist() for length in lengths)
    return prompt, chosen, rejected


def _loss_of_trl(folders: list[Path], batch: list[Pair], output: Path, *, beta: float) -> float:
    """Loss by `DPOTrainer` on the same tokens, padded as it pads."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    policy, reference = (AutoModelForCausalLM.from_pretrained(folder) for folder in folders)
    trainer = trl.DPOTrainer(
        model=policy.eval(),
        ref_model=reference,
        args=trl.DPOConfig(output_dir=str(output), beta=beta, report_to="none", use_cpu=True, bf16=False),
        train_dataset=datasets.Dataset.from_list([{"prompt": "go", "chosen": "to", "rejected": "a"}]),
        processing_class=AutoTokenizer.from_pretrained(folders[0]),
    )
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    inputs = trainer.data_collator([dict(zip(names, pair, strict=True)) for pair in batch])
    with torch.no_grad():
        return float(trainer.compute_loss(policy, inputs))
