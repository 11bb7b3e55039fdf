"""The loss of SFT is TRL's over the tokens of actions, with logits as the model scales them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    PretrainedConfig,
)

from qguide.qnet.models.checkpoint import load_policy
from qguide.qnet.models.qnet import QNet
from qguide.training.jobs.sft import sft_loss
from qguide.training.optimization.padded_batches import Sequence1D
from qguide.training.q_training.qnet_loss import output_embeddings
from tests.support.tiny_models import save_policy


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


SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}
SCALES = (
    LlamaConfig(**SHAPE),
    GraniteConfig(**SHAPE, logits_scaling=8.0),
    CohereConfig(**SHAPE, logit_scale=0.0625),
    Gemma2Config(**SHAPE, final_logit_softcapping=1.0),
)


@pytest.mark.parametrize("config", SCALES, ids=lambda config: config.model_type)
def test_logits_that_a_model_scales_are_scaled_in_training(config: PretrainedConfig) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    token_ids = torch.randint(3, 250, (2, 12))
    rows = [Sequence1D(row.tolist(), {"weight": [0.0] + [1.0] * 11}) for row in token_ids]
    with torch.no_grad():
        ours = sft_loss(model, rows)
        theirs = float(model(input_ids=token_ids, labels=token_ids).loss)
    assert float(ours.total) / ours.weight == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", SCALES, ids=lambda config: config.model_type)
def test_logits_that_a_model_scales_are_scaled_for_a_world_model(
    tmp_path: Path, config: PretrainedConfig, tied: bool
) -> None:
    torch.manual_seed(0)
    config = type(config).from_dict(config.to_dict() | {"tie_word_embeddings": tied})
    policy = AutoModelForCausalLM.from_config(config).eval()
    policy.save_pretrained(tmp_path)
    qnet = QNet.from_trunk(tmp_path, head_width=8).eval()
    token_ids = torch.randint(3, 250, (1, 12))
    logits_of = output_embeddings(tmp_path, qnet, qnet.device)
    with torch.no_grad():
        ours = logits_of(qnet.hidden_states(token_ids)[0])
        torch.testing.assert_close(ours, policy(token_ids).logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_world_model_trains_an_output_layer_only_where_it_is_the_embedding(tmp_path: Path, tied: bool) -> None:
    config = LlamaConfig(**SHAPE, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    qnet = QNet.from_trunk(tmp_path, head_width=8)
    logits_of = output_embeddings(tmp_path, qnet, qnet.device)
    logits_of(torch.randn(3, 32, requires_grad=True)).sum().backward()
    assert (qnet.trunk.get_input_embeddings().weight.grad is not None) == tied


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
