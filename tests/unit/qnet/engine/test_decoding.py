"""Lockstep decoding agrees with the model run on each full sequence."""

import pytest
import torch

from qnet.engine.decoding import Draw, DrawsAfter, draw
from qnet.engine.packed_model import PackedModel, logits_of
from tests.support.tiny_models import ARCHITECTURES, policy_model


def job(length: int, draws: int, *, temperature: float = 1.0, tokens: int = 10) -> DrawsAfter:
    uniforms = torch.rand(
        (draws, tokens), generator=torch.Generator().manual_seed(length), dtype=torch.float64
    )
    token_ids = [(i * i + length) % 300 for i in range(length)]
    return DrawsAfter(token_ids, [Draw(temperature, row) for row in uniforms.tolist()])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprob_is_that_of_the_drawn_tokens_at_temperature_one(architecture: str) -> None:
    model = policy_model(architecture).model
    packed = PackedModel(model, logits_of(model), cache_bytes=10**8, tokens_per_forward=32)
    jobs = [job(50, 3, temperature=0.5), job(7, 1), job(20, 2, temperature=0.0)]
    assert draw(packed, jobs, frozenset(range(0, 300, 9))) == 77
    lengths = set()
    for one in jobs:
        for drawn in one.draws:
            lengths.add(len(drawn.token_ids))
            with torch.inference_mode():
                logits = model(torch.tensor([one.token_ids + drawn.token_ids])).logits[0]
            logprobs = logits.log_softmax(-1)[len(one.token_ids) - 1 : -1]
            expected = logprobs.gather(1, torch.tensor(drawn.token_ids)[:, None]).sum()
            assert drawn.logprob == pytest.approx(float(expected), abs=1e-4)
    assert len(lengths) > 1, "draws of one length never leave the batch early"


def test_a_draw_ends_with_its_stop_token() -> None:
    model = policy_model().model
    packed = PackedModel(model, logits_of(model), cache_bytes=10**8, tokens_per_forward=64)
    stop = frozenset(range(0, 300, 3))
    one = job(20, 6)
    draw(packed, [one], stop)
    for drawn in one.draws:
        assert drawn.stopped == (drawn.token_ids[-1] in stop)
        assert stop.isdisjoint(drawn.token_ids[:-1])
    assert any(drawn.stopped for drawn in one.draws)


def test_a_failing_forward_leaves_nothing_in_the_cache() -> None:
    model = policy_model().model
    packed = PackedModel(model, logits_of(model), cache_bytes=10**8, tokens_per_forward=64)
    draw(packed, [job(40, 2)], frozenset())
    assert len(packed.store) == 1
    broken = job(40, 2)
    broken.token_ids.append(10**6)
    with pytest.raises(IndexError):
        draw(packed, [broken], frozenset())
    assert len(packed.store) == 0
    assert packed.store.nbytes == 0
