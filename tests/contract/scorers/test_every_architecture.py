"""Every causal architecture of transformers: Q is that of the full sequence, or it is refused."""

import pytest

from tests.support.architecture_lists import NOT_BUILT, PACKED, sampled
from tests.support.architectures import MODEL_TYPES, is_tiny, refusal_of, tiny_config


@pytest.mark.parametrize("model_type", sampled(MODEL_TYPES))
@pytest.mark.filterwarnings("ignore")
def test_its_q_are_those_of_full_sequences_or_it_is_refused_with_the_reason(model_type: str) -> None:
    try:
        config = tiny_config(model_type)
        tiny = is_tiny(config)
    except Exception as error:  # each configuration has rules of its own
        assert model_type in NOT_BUILT
        pytest.skip(f"no tiny model: {error}")
    assert tiny == (model_type not in NOT_BUILT)
    if not tiny:
        pytest.skip("no tiny model: its configuration holds others")
    refusal = refusal_of(config)
    assert (refusal is None) == (model_type in PACKED)
    if refusal is not None:
        assert "does not run on packed tokens" in refusal or "rope_type" in refusal


@pytest.mark.filterwarnings("ignore")
def test_attention_to_chosen_tokens_is_refused_however_many_are_chosen() -> None:
    config = tiny_config("deepseek_v32")
    config.index_topk = 2048  # more than a self-check reads
    assert "does not run on packed tokens (outputs differ" in str(refusal_of(config))
