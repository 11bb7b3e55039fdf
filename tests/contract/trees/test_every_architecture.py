"""Every causal architecture of transformers: which of them train, and in what shape."""

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from qguide.qnet.engine.tree_branches import has_recurrent_layers, reads_branches
from qguide.qnet.errors import ConfigError
from qguide.training.q_training.validation import require_packable, two_branches
from tests.support.architecture_lists import NOT_BUILT, PACKED_TREES, PADDED, TREE_BRANCHES, TREE_PATHS, sampled
from tests.support.architectures import MODEL_TYPES, enliven, tiny_config, tiny_pair

BUILT = [name for name in MODEL_TYPES if name not in NOT_BUILT]
BROKEN = ["bailing_hybrid"]  # recurrent, but its tiny model does not run
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("model_type", sampled(BUILT))
def test_a_q_model_trains_on_trees_or_is_refused_with_the_reason(model_type: str) -> None:
    loaded, _ = tiny_pair(tiny_config(model_type))
    trunk = loaded.model.trunk
    recurrent = TREE_BRANCHES | TREE_PATHS
    assert has_recurrent_layers(trunk) == (model_type in {*recurrent, *BROKEN})
    if model_type in PACKED_TREES | recurrent:
        require_packable(loaded.model)
        if model_type in recurrent:
            assert reads_branches(trunk) == (model_type in TREE_BRANCHES)
    else:
        with pytest.raises(ConfigError, match=r" 0\.0001 .*attention|tree .*attention"):
            require_packable(loaded.model)


@pytest.mark.parametrize("model_type", sampled(PADDED))
def test_padding_on_the_right_changes_no_logit_before_it(model_type: str) -> None:
    config = tiny_config(model_type)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).float().eval()
    enliven(model)
    short, long = two_branches(config)
    short = short[:5]
    alone_TV = _logits(model, [short])[0]
    beside_TV = _logits(model, [[*short, 0, 0, 0], long])[0, :5]
    largest = float(alone_TV.abs().max())
    assert float((beside_TV - alone_TV).abs().max()) <= 1e-4 * max(1.0, largest)


@torch.inference_mode()
def _logits(model: PreTrainedModel, rows: list[list[int]]) -> Tensor:
    logits_BTV: Tensor = model(input_ids=torch.tensor(rows)).logits
    return logits_BTV
