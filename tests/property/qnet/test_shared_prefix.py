"""Whatever the sessions share and whatever was scored before, Q is that of the full sequence."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnet.checkpoint import LoadedQNet
from qnet.scoring import NaiveScorer, SharedPrefixScorer
from qnet.types import History, Message, ScoreRequest
from tests.tiny_models import ARCHITECTURES, WORDS, q_model

texts = st.lists(st.sampled_from(WORDS[:4]), min_size=1, max_size=12).map(" ".join)
candidates = st.lists(texts.map(lambda t: Message("assistant", t)), min_size=1, max_size=4)
INSTRUCTION = Message("user", " ".join(WORDS * 2))


@st.composite
def histories(draw: st.DrawFn) -> History:
    """From a tiny vocabulary and one instruction, so that prefixes collide often."""
    turns: list[Message] = [INSTRUCTION]
    for _ in range(draw(st.integers(0, 3))):
        turns.append(Message("assistant", draw(texts)))
        turns.append(Message("user", draw(texts)))
    return tuple(turns)


requests = st.builds(ScoreRequest, histories(), candidates.map(tuple))


@st.composite
def batches(draw: st.DrawFn) -> list[list[ScoreRequest]]:
    """Batches of sessions, each batch partly continuing the sessions of the one before."""
    found: list[list[ScoreRequest]] = []
    for _ in range(draw(st.integers(1, 3))):
        batch = draw(st.lists(requests, min_size=1, max_size=3))
        for old in found[-1] if found else []:
            taken = draw(st.sampled_from(old.candidates))
            observed = Message("user", draw(texts))
            batch.append(ScoreRequest((*old.history, taken, observed), tuple(draw(candidates))))
        found.append(draw(st.permutations(batch)))
    return found


@functools.cache
def loaded(architecture: str) -> LoadedQNet:
    """One model per architecture for all examples."""
    return q_model(architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=25, deadline=None)
@given(batches=batches(), budget=st.sampled_from((10**8, 60_000)))
def test_shared_prefix_scores_equal_naive_ones(
    architecture: str, batches: list[list[ScoreRequest]], budget: int
) -> None:
    model = loaded(architecture)
    fast = SharedPrefixScorer(model, cache_bytes=budget, tokens_per_forward=64)
    naive = NaiveScorer(model)
    for batch in batches:
        for one, other in zip(fast.score(batch), naive.score(batch), strict=True):
            assert one.q_values == pytest.approx(other.q_values, abs=1e-5)
            assert one.computed_tokens <= other.computed_tokens
