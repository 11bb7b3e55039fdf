"""The fast scorer equals the plain one and computes only what is new."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from qguide.qnet.engine.prefix_cache import Entry, PrefixCache
from qguide.qnet.errors import CheckpointError, HistoryTooLongError, InvalidCandidatesError
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import History, Message, ScoreRequest, ScoreResult
from tests.support.tiny_models import ARCHITECTURES, WORDS, distinct_tokens, q_model, renderer


def said(*words: int) -> Message:
    return Message("assistant", " ".join(WORDS[w % len(WORDS)] for w in words))


def history(length: int, *, start: int = 0) -> History:
    words = [WORDS[(start + i * i) % len(WORDS)] for i in range(length)]
    return (Message("user", " ".join(words)),)


def tokens(request: ScoreRequest) -> tuple[int, int]:
    """Tokens of the history, and of the candidates without what some begin with like others."""
    history_tokens = len(renderer().encode_history(request.history))
    return history_tokens, distinct_tokens(request.candidates)


def assert_equal(fast: Sequence[ScoreResult], naive: Sequence[ScoreResult]) -> None:
    for one, other in zip(fast, naive, strict=True):
        assert one.q_values == pytest.approx(other.q_values, abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_fast_scorer_equals_the_plain_one_step_after_step(architecture: str) -> None:
    loaded = q_model(architecture)
    fast, naive = SharedPrefixScorer(loaded), NaiveScorer(loaded)
    histories = [history(30), history(45, start=1), history(4)]
    for step in range(4):
        candidates = (said(0, 1, step), said(0, 1), said(5, 2, 7, step, 9), said(0, 1))
        requests = [ScoreRequest(h, candidates) for h in histories]
        assert_equal(fast.score(requests), naive.score(requests))
        histories = [(*h, candidates[i], Message("user", WORDS[step])) for i, h in enumerate(histories)]


def test_q_depends_on_every_part_of_the_state() -> None:
    naive = NaiveScorer(q_model())
    base = ScoreRequest(history(20), (said(1, 2, 3),))
    others = [
        ScoreRequest(history(20, start=1), base.candidates),
        ScoreRequest(base.history, (said(2, 2, 3),)),
        ScoreRequest(base.history, (said(1, 2, 4),)),
    ]
    [q, *changed] = [result.q_values[0] for result in naive.score([base, *others])]
    assert all(abs(other - q) > 1e-4 for other in changed)


def test_the_first_step_computes_history_and_distinct_candidates_once() -> None:
    request = ScoreRequest(history(30), (said(1, 2), said(3), said(1, 2)))
    [result] = SharedPrefixScorer(q_model()).score([request])
    assert (result.computed_tokens, result.cached_tokens) == (sum(tokens(request)), 0)
    assert result.q_values[0] == result.q_values[2]


def test_a_later_step_computes_the_observation_and_the_candidates() -> None:
    scorer = SharedPrefixScorer(q_model())
    first = ScoreRequest(history(30), (said(1, 2), said(3, 4, 5)))
    scorer.score([first])
    second = ScoreRequest((*first.history, said(3, 4, 5), Message("user", "you see desk")), (said(6),))
    [result] = scorer.score([second])
    known = tokens(first)[0] + len(renderer().encode_candidate(said(3, 4, 5)))
    assert result.cached_tokens == known
    assert result.computed_tokens == sum(tokens(second)) - known


def test_two_branches_of_one_history_in_one_batch_score_as_alone() -> None:
    loaded = q_model()
    fast, naive = SharedPrefixScorer(loaded), NaiveScorer(loaded)
    fast.score([ScoreRequest(history(40), (said(1, 2), said(3)))])
    branches = [
        ScoreRequest((*history(40), action, Message("user", "open shelf")), (said(4), said(5, 6)))
        for action in (said(1, 2), said(3), said(9, 9))
    ]
    results = fast.score([*branches, branches[0]])
    assert_equal(results, naive.score([*branches, branches[0]]))
    assert all(result.cached_tokens > 32 for result in results)


def test_a_beginning_that_many_sessions_share_is_computed_and_kept_once() -> None:
    loaded = q_model(context=2048)
    fast, naive = SharedPrefixScorer(loaded), NaiveScorer(loaded)
    [task] = history(300)

    def requests(steps: int) -> list[ScoreRequest]:
        turns = [Message("user", "open shelf"), said(1, 2)] * steps
        return [ScoreRequest((task, said(n, n + 1), *turns), (said(n), said(7))) for n in range(8)]

    cold = fast.score(requests(1))
    assert_equal(cold, naive.score(requests(1)))
    shared = len(renderer().encode_episode((task,)).token_ids)
    assert sum(result.cached_tokens for result in cold) >= 7 * shared
    assert sum(r.computed_tokens + r.cached_tokens for r in cold) == sum(
        sum(tokens(request)) for request in requests(1)
    )
    alone = SharedPrefixScorer(loaded)
    alone.score(requests(1)[:1])
    assert fast.cache.nbytes < 4 * alone.cache.nbytes
    warm = fast.score(requests(2))
    assert_equal(warm, naive.score(requests(2)))
    assert all(result.cached_tokens > shared for result in warm)
    [late] = fast.score([ScoreRequest((task, said(9, 9), said(3)), (said(1),))])
    assert late.cached_tokens >= shared


def test_rows_beyond_one_chunk_of_attention_see_what_they_should() -> None:
    loaded = q_model(context=512)
    requests = [
        ScoreRequest(history(200, start=n), (said(*range(n, n + 90)), said(n), said(*range(40)))) for n in range(2)
    ]
    fast, naive = SharedPrefixScorer(loaded), NaiveScorer(loaded)
    assert_equal(fast.score(requests), naive.score(requests))


def test_histories_longer_than_a_forward_pass_are_cut() -> None:
    loaded = q_model()
    requests = [ScoreRequest(history(n, start=n), (said(1), said(2, 3))) for n in (150, 3, 70)]
    small = SharedPrefixScorer(loaded, tokens_per_forward=16)
    assert_equal(small.score(requests), NaiveScorer(loaded).score(requests))


def test_a_tiny_cache_forgets_but_scores_the_same() -> None:
    loaded = q_model()
    small, naive = SharedPrefixScorer(loaded, cache_bytes=1), NaiveScorer(loaded)
    request = ScoreRequest(history(40), (said(1), said(2)))
    for _ in range(2):
        [result] = small.score([request])
        assert result.cached_tokens == 0
        assert_equal([result], naive.score([request]))


def test_the_model_still_trains_as_before_once_it_is_served() -> None:
    loaded = q_model()
    token_ids = torch.arange(40).reshape(2, 20)
    mask = torch.ones_like(token_ids)
    mask[0, 12:] = 0
    before = loaded.model(token_ids, attention_mask=mask)
    SharedPrefixScorer(loaded)
    after = loaded.model(token_ids, attention_mask=mask)
    assert torch.allclose(before[0, :12], after[0, :12], atol=1e-6)
    assert torch.allclose(before[1], after[1], atol=1e-6)


def test_candidates_together_may_be_longer_than_the_window_or_the_context() -> None:
    for loaded in (q_model("mistral", sliding_window=64), q_model(context=64)):
        candidates = tuple(said(*range(n, n + 20)) for n in range(8))
        request = ScoreRequest(history(30), candidates)
        fast, naive = SharedPrefixScorer(loaded), NaiveScorer(loaded)
        assert_equal(fast.score([request]), naive.score([request]))


def test_a_history_may_be_longer_than_a_sliding_window() -> None:
    loaded = q_model("mistral", sliding_window=64)
    request = ScoreRequest(history(80), (said(1), said(2)))
    (fast,) = SharedPrefixScorer(loaded).score([request])
    (naive,) = NaiveScorer(loaded).score([request])
    assert fast.q_values == pytest.approx(naive.q_values, abs=1e-5)


def test_a_broken_history_leaves_the_scorer_usable() -> None:
    loaded = q_model()
    fast = SharedPrefixScorer(loaded)
    good = ScoreRequest(history(40), (said(1),))
    fast.score([good])
    with pytest.raises(HistoryTooLongError, match=r"\d+ tokens; .* 256;"):
        fast.score([good, ScoreRequest(history(300), (said(1),))])
    assert_equal(fast.score([good]), NaiveScorer(loaded).score([good]))


def test_a_lease_that_fails_leaves_none_of_the_others_held(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = q_model()
    fast = SharedPrefixScorer(loaded, cache_bytes=1)
    requests = [ScoreRequest(history(40, start=n), (said(1),)) for n in range(2)]
    leases = iter((True, False))
    real = PrefixCache.lease

    def lease(store: PrefixCache, token_ids: list[int], **limits: Any) -> Entry:
        if not next(leases):
            raise MemoryError
        return real(store, token_ids, **limits)

    with monkeypatch.context() as patch:
        patch.setattr(PrefixCache, "lease", lease)
        with pytest.raises(MemoryError):
            fast.score(requests)
    assert_equal(fast.score(requests), NaiveScorer(loaded).score(requests))
    assert fast.cache.nbytes == 0


def test_no_requests_have_no_results() -> None:
    assert SharedPrefixScorer(q_model()).score([]) == []


def test_a_request_without_candidates_is_refused() -> None:
    loaded = q_model()
    for scorer in (SharedPrefixScorer(loaded), NaiveScorer(loaded)):
        with pytest.raises(InvalidCandidatesError, match="0 candidates"):
            scorer.score([ScoreRequest(history(5), ())])


def test_a_model_with_foreign_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = q_model()
    monkeypatch.setattr(type(loaded.model.trunk), "set_attn_implementation", lambda *_: None)
    with pytest.raises(CheckpointError, match=r"LlamaModel .*\(0 .* 2 layers"):
        SharedPrefixScorer(loaded)


def test_the_scripted_scorer_reads_its_keywords_in_order() -> None:
    scorer = ScriptedScorer({"take mug": 0.9, "mug": 0.5}, otherwise=0.1)
    replies = tuple(Message("assistant", s) for s in ("see mug", "take mug", "look"))
    [result] = scorer.score([ScoreRequest((Message("user", "go"),), replies)])
    assert result.q_values == (0.5, 0.9, 0.1)
