"""The local policy draws what the model says, whoever shares the batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.errors import CheckpointError, HistoryTooLongError
from qguide.qnet.types import Candidate, History, Message, SampleRequest, Sampling
from tests.support.tiny_models import ARCHITECTURES, CONTEXT, WORDS, policy_model, renderer

GREEDY = Sampling(temperature=0.0, max_tokens=12)
WARM = Sampling(temperature=1.0, max_tokens=12, seed=7)


def history(length: int, *, start: int = 0) -> History:
    words = [WORDS[(start + i * i) % len(WORDS)] for i in range(length)]
    return (Message("user", " ".join(words)),)


def says(candidates: list[Candidate]) -> list[str]:
    return [c.message.content for c in candidates]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_draws_are_those_of_transformers_generate(architecture: str) -> None:
    loaded = policy_model(architecture)
    policy = LocalPolicy(loaded)
    model: Any = loaded.model
    histories = [history(n, start=n) for n in (3, 40, 17)]
    drawn = policy.sample_batch([SampleRequest(h, 1, GREEDY) for h in histories])
    for h, candidates in zip(histories, drawn, strict=True):
        prompt = torch.tensor([renderer().encode_history(h)])
        reply = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=list(renderer().stop_token_ids),
            pad_token_id=0,
        )[0, prompt.shape[1] :]
        assert candidates[0].completion_tokens == len(reply)
        assert candidates[0].message == renderer().decode_reply(reply.tolist())


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    request = SampleRequest(history(30), 4, WARM)
    alone = LocalPolicy(policy_model()).sample_batch([request])[0]
    others = [SampleRequest(history(n, start=n), 3, replace(WARM, seed=n)) for n in (5, 60, 31)]
    crowd = LocalPolicy(policy_model(), max_rows=6, tokens_per_forward=16)
    among = crowd.sample_batch([others[0], request, *others[1:]])[1]
    assert says(among) == says(alone)
    for a, b in zip(among, alone, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_the_next_step_from_the_cache_draws_what_a_fresh_policy_draws() -> None:
    kept = LocalPolicy(policy_model())
    h = history(40)
    for seed in range(4):
        request = SampleRequest(h, 3, replace(WARM, seed=seed, max_tokens=8))
        drawn = kept.sample_batch([request])[0]
        fresh = LocalPolicy(policy_model()).sample_batch([request])[0]
        assert says(drawn) == says(fresh)
        h = (*h, drawn[1].message, *history(6, start=seed))
    assert kept.prefill_tokens < kept.history_tokens / 2


def test_equal_histories_in_one_batch_are_read_once() -> None:
    policy = LocalPolicy(policy_model())
    requests = [SampleRequest(history(30), 2, replace(WARM, seed=s)) for s in (1, 2, 1)]
    first, second, third = policy.sample_batch(requests)
    assert policy.prefill_tokens == len(renderer().encode_history(history(30)))
    assert says(first) == says(third)
    assert says(first) != says(second)


def test_one_seed_draws_differently_after_different_histories() -> None:
    flat = policy_model()
    with torch.no_grad():
        for parameter in flat.model.parameters():
            parameter.zero_()
    requests = [SampleRequest(history(30, start=s), 1, WARM) for s in (0, 1)]
    one, other = LocalPolicy(flat).sample_batch(requests)
    assert says(one) != says(other)


def test_draws_follow_the_model_distribution() -> None:
    loaded = policy_model()
    prompt = torch.tensor([renderer().encode_history(history(9))])
    with torch.inference_mode():
        probs = (loaded.model(prompt).logits[0, -1] / 0.7).softmax(-1)
    sampling = Sampling(temperature=0.7, max_tokens=1, seed=3)
    [drawn] = LocalPolicy(loaded).sample_batch([SampleRequest(history(9), 4000, sampling)])
    token = int(probs.argmax())
    word = renderer().decode_reply([token]).content
    same_word = [i for i in range(len(probs)) if renderer().decode_reply([i]).content == word]
    share = says(drawn).count(word) / 4000
    assert share == pytest.approx(float(probs[same_word].sum()), abs=0.03)


def test_at_temperature_zero_copies_cost_nothing() -> None:
    [drawn] = LocalPolicy(policy_model()).sample_batch([SampleRequest(history(9), 3, GREEDY)])
    assert len(set(says(drawn))) == 1
    assert drawn[0].completion_tokens > 0
    assert [c.completion_tokens for c in drawn[1:]] == [0, 0]


def test_the_first_candidate_can_be_the_greedy_one() -> None:
    policy = LocalPolicy(policy_model())
    hot = Sampling(temperature=5.0, max_tokens=12, seed=1, first_greedy=True)
    [drawn] = policy.sample_batch([SampleRequest(history(9), 3, hot)])
    [[greedy]] = policy.sample_batch([SampleRequest(history(9), 1, GREEDY)])
    assert drawn[0].message == greedy.message
    assert drawn[1].message != greedy.message


def test_a_reply_is_cut_where_the_context_ends() -> None:
    policy = LocalPolicy(policy_model(context=24))
    length = next(n for n in range(24) if len(renderer().encode_history(history(n))) == 22)
    [[candidate]] = policy.sample_batch([SampleRequest(history(length), 1, WARM)])
    assert candidate.completion_tokens <= 2


def test_a_history_without_room_for_a_reply_is_refused() -> None:
    with pytest.raises(HistoryTooLongError, match=f"takes {CONTEXT}"):
        LocalPolicy(policy_model()).sample_batch([SampleRequest(history(300), 1, WARM)])


def test_a_tiny_cache_forgets_but_draws_the_same() -> None:
    small, large = LocalPolicy(policy_model(), cache_bytes=1), LocalPolicy(policy_model())
    for _ in range(2):
        request = SampleRequest(history(40), 2, WARM)
        assert says(small.sample_batch([request])[0]) == says(large.sample_batch([request])[0])
    assert small.cached_bytes == 0 < large.cached_bytes


def test_an_architecture_that_cannot_be_packed_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    with pytest.raises(CheckpointError, match=r"rope_type .*'dynamic'"):
        LocalPolicy(policy_model(rope_parameters=rope))
