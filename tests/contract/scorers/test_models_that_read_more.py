"""Of a checkpoint that reads images, too, the text model is loaded: as a policy, as a trunk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMultimodalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import load_policy, load_qnet, save_checkpoint
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.text_model import load_causal_lm
from qguide.qnet.scoring.value_head import NaiveScorer
from tests.support.architecture_lists import READS_MORE
from tests.support.architectures import enliven, steps, tiny_shape
from tests.support.tiny_models import renderer

_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 14,
}
_LLAMA_VISION: dict[str, Any] = {
    **_VISION,
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
}
_TOWERS: dict[str, dict[str, Any] | None] = {
    "gemma3": {**_VISION, "model_type": "siglip_vision_model"},
    "gemma4": None,
    "llama4": _LLAMA_VISION,
    "mistral3": {**_VISION, "model_type": "pixtral", "head_dim": 8},
    "qwen3_5": _QWEN_VISION,
    "qwen3_5_moe": _QWEN_VISION,
}
"""By architecture: the sizes of what sees."""


def write_model(folder: Path, model_type: str, text: str, vision: Any) -> PreTrainedModel:
    """A random model of both parts and a tokenizer, in a folder."""
    text_fields = {**tiny_shape(text), "model_type": text, "vocab_size": 320}
    parts = {"text_config": text_fields, "vision_config": vision}
    config = CONFIG_MAPPING[model_type](**parts)
    model: PreTrainedModel = AutoModelForMultimodalLM.from_config(config).float().eval()
    enliven(model)
    model.save_pretrained(folder)
    renderer().tokenizer.save_pretrained(folder)
    return model


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal but for rounding: products of experts depend on how their tensors lie in memory."""
    return torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", READS_MORE)
def test_its_text_model_is_a_policy_and_a_trunk(model_type: str, tmp_path: Path) -> None:
    parts = READS_MORE[model_type], _TOWERS[model_type]
    whole = write_model(tmp_path / "whole", model_type, *parts)
    input_ids = torch.arange(1, 31).reshape(1, -1)
    # transformers 5.24 looks for Llama 4's image features among the outputs of its text model.
    reference: Any = whole.language_model if model_type == "llama4" else whole
    with torch.inference_mode():
        expected = reference(input_ids=input_ids).logits
        policy = load_policy(tmp_path / "whole")
        assert same(policy.model(input_ids=input_ids).logits, expected)
        policy.model.save_pretrained(tmp_path / "text")
        text = load_causal_lm(tmp_path / "text").eval()
        assert same(text(input_ids=input_ids).logits, expected)
        assert not any("vision" in name for name in text.state_dict())
        hidden = whole.get_decoder()(input_ids=input_ids)
        qnet = QNet.from_trunk(tmp_path / "whole", head_width=16).eval()
        if hasattr(hidden, "last_hidden_state"):
            found = qnet.trunk(input_ids=input_ids).last_hidden_state
            assert same(found, hidden.last_hidden_state)
    manifest = Manifest(kind="qnet", name="tiny", read_at="last_token")
    save_checkpoint(tmp_path / "q", model=qnet, tokenizer=renderer().tokenizer, manifest=manifest)
    loaded = load_qnet(tmp_path / "q")
    [result] = NaiveScorer(loaded).score(steps()[:1])
    assert len(result.q_values) == 5


def test_a_text_model_without_a_class_of_its_own_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "qwen3_vl", "qwen3_vl_text", _QWEN_VISION)
    with pytest.raises(CheckpointError, match=r"qwen3_vl .*qwen3_vl_text; .*vLLM"):
        load_policy(tmp_path)
