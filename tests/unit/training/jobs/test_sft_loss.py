"""The loss of SFT is TRL's over the tokens of actions."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qnet.models.checkpoint import load_policy
from tests.support.tiny_models import save_policy
from training.jobs.sft import sft_loss
from training.optimization.padded_batches import Sequence1D


@pytest.mark.filterwarnings("default")  # TRL uses deprecated arguments of transformers
@pytest.mark.parametrize("seed", [3, 4])
def test_the_loss_of_random_batches_is_that_of_trl(tmp_path: Path, seed: int) -> None:
    folder = save_policy(tmp_path / "policy")
    generator = torch.Generator().manual_seed(seed)
    batch = [_random_row(generator) for _ in range(8)]
    with torch.no_grad():
        ours = sft_loss(load_policy(folder).model, batch)
    assert ours.weight == sum(sum(row.columns["weight"]) for row in batch)
    theirs = _loss_of_trl(folder, batch, tmp_path / "trl")
    assert float(ours.total) / ours.weight == pytest.approx(theirs, abs=1e-5)


def _random_row(generator: torch.Generator) -> Sequence1D:
    """Random tokens, some of which are an action's; the first never is."""
    length = int(torch.randint(4, 30, (), generator=generator))
    token_ids = torch.randint(1, 250, (length,), generator=generator).tolist()
    weight = torch.randint(0, 2, (length,), generator=generator).float().tolist()
    return Sequence1D(token_ids, {"weight": [0.0, *weight[1:]]})


def _loss_of_trl(folder: Path, batch: list[Sequence1D], output: Path) -> float:
    """Loss by `SFTTrainer` on the same tokens, padded as it pads."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(output_dir=str(output), report_to="none", use_cpu=True, bf16=False),
        train_dataset=datasets.Dataset.from_list([{"text": "go"}]),  # a trainer wants one
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    inputs = trainer.data_collator(
        [
            {
                "input_ids": row.token_ids,
                "labels": [
                    token if weight else -100
                    for token, weight in zip(row.token_ids, row.columns["weight"], strict=True)
                ],
            }
            for row in batch
        ]
    )
    with torch.no_grad():
        return float(trainer.compute_loss(model, inputs))
