"""Layers with sliding windows: each sees what its window leaves it, however packed."""

import pytest
import torch

from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.engine.packed_model import PackedModel
from qguide.qnet.engine.tree_attention import tree_inputs
from qguide.qnet.errors import CheckpointError
from qguide.qnet.scoring.build import build_serving_scorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import Message, SampleRequest, Sampling, ScoreRequest
from qguide.training.optimization.packed_trees import PackedTree
from tests.support.architectures import WINDOW, WINDOWED, steps, tiny_config, tiny_pair
from tests.support.tiny_models import policy_model, renderer


@pytest.mark.parametrize("model_type", WINDOWED)
@pytest.mark.parametrize("tokens_per_forward", [16, 2048])
def test_q_is_that_of_the_full_sequence(model_type: str, tokens_per_forward: int) -> None:
    naive_model, fast_model = tiny_pair(tiny_config(model_type))
    naive = NaiveScorer(naive_model)
    fast = SharedPrefixScorer(fast_model, tokens_per_forward=tokens_per_forward)
    assert fast.context == 512
    for request in steps():
        assert len(renderer().encode_history(request.history)) > 2 * WINDOW
        [reference], [found] = naive.score([request]), fast.score([request])
        assert found.q_values == pytest.approx(reference.q_values, abs=2e-6)
    assert found.cached_tokens > WINDOW


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "mistral"])
def test_the_window_matters(model_type: str) -> None:
    long, short = tiny_pair(tiny_config(model_type))
    request = steps()[-1]
    long.model.trunk.config.sliding_window = 500
    [wide], [narrow] = NaiveScorer(long).score([request]), NaiveScorer(short).score([request])
    assert max(abs(a - b) for a, b in zip(wide.q_values, narrow.q_values, strict=True)) > 1e-3


def test_sessions_side_by_side_see_none_of_each_other() -> None:
    naive_model, fast_model = tiny_pair(tiny_config("gemma3_text"))
    naive, fast = NaiveScorer(naive_model), SharedPrefixScorer(fast_model)
    batch = steps()
    fast.score(batch[:2])
    for reference, found in zip(naive.score(batch), fast.score(batch), strict=True):
        assert found.q_values == pytest.approx(reference.q_values, abs=2e-6)


def test_a_policy_with_windows_draws_what_its_ordinary_forward_pass_says() -> None:
    loaded = policy_model("mistral", sliding_window=WINDOW, context=256)
    plain = policy_model("mistral", sliding_window=WINDOW, context=256)
    plain.model.load_state_dict(loaded.model.state_dict())
    history = steps()[0].history
    token_ids = renderer().encode_history(history)
    start = len(token_ids)
    with torch.inference_mode():
        for _ in range(24):
            logits_V = plain.model(input_ids=torch.tensor([token_ids])).logits[0, -1]
            token_ids.append(int(logits_V.argmax()))
            if token_ids[-1] in renderer().stop_token_ids:
                break
    request = SampleRequest(history, 1, Sampling(temperature=0.0, max_tokens=24))
    [[drawn]] = LocalPolicy(loaded).sample_batch([request])
    assert drawn.message == renderer().decode_reply(token_ids[start:])
    assert drawn.completion_tokens == len(token_ids) - start


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "mistral", "olmo3"])
def test_a_packed_tree_trains_on_what_its_paths_see(model_type: str) -> None:
    model, _ = tiny_pair(tiny_config(model_type))
    history, said = steps()[0].history, steps()[0].candidates
    stem = renderer().encode_history(history)
    tree = PackedTree()
    places = [tree.add([*stem, *renderer().encode_candidate(one)]) for one in said]
    with torch.inference_mode():
        packed_TD = model.model.hidden_states(**tree_inputs(tree, torch.device("cpu")))[0]
        for one, place in zip(said, places, strict=True):
            path = [*stem, *renderer().encode_candidate(one)]
            alone_TD = model.model.hidden_states(torch.tensor([path]))[0]
            assert torch.allclose(packed_TD[place], alone_TD, atol=1e-5)


def test_a_trunk_that_keeps_its_histories_is_served_unasked() -> None:
    _, served_model = tiny_pair(tiny_config("lfm2"))
    options = {"cache_bytes": 2**20, "tokens_per_forward": 128}
    served = build_serving_scorer(served_model, **options, full_sequences=False)
    cold, warm = served.score(steps()[:1]), served.score(steps()[:1])
    assert cold[0].cached_tokens == 0 < warm[0].cached_tokens


def test_a_trunk_that_keeps_nothing_is_refused_or_run_where_that_is_allowed() -> None:
    naive_model, served_model = tiny_pair(tiny_config("falcon_mamba"))
    options = {"cache_bytes": 2**20, "tokens_per_forward": 128}
    with pytest.raises(CheckpointError, match=r"FalconMambaModel .*packed .*\("):
        build_serving_scorer(served_model, **options, full_sequences=False)
    served = build_serving_scorer(served_model, **options, full_sequences=True)
    batch = steps()
    expected = NaiveScorer(naive_model).score(batch)
    for reference, found in zip(expected, served.score(batch), strict=True):
        assert found.q_values == pytest.approx(reference.q_values, abs=1e-5)
        assert found.computed_tokens <= reference.computed_tokens
    assert served.cache.nbytes == 0


def test_windows_that_are_not_known_layer_by_layer_are_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedModel, "_packs_windows", lambda self, trunk: False)
    naive_model, fast_model = tiny_pair(tiny_config("mistral"))
    fast = SharedPrefixScorer(fast_model)
    assert fast.context == WINDOW
    short = ScoreRequest((Message("user", "go"),), (Message("assistant", "to"),))
    [reference], [found] = NaiveScorer(naive_model).score([short]), fast.score([short])
    assert found.q_values == pytest.approx(reference.q_values, abs=2e-6)
