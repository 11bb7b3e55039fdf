"""Lockstep decoding agrees with the model run on each full sequence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakSet

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.auto import AutoModelForCausalLM

from qguide.qnet.engine.decoding import Draw, DrawsAfter, draw_passes
from qguide.qnet.engine.packed_model import PackedModel, logits_of
from qguide.qnet.engine.stacks import Beginnings, Stack
from qguide.qnet.sliced_scorer import finish
from tests.support.architectures import tiny_config
from tests.support.tiny_models import ARCHITECTURES, policy_model


def draw(model: PackedModel, jobs: Sequence[DrawsAfter], stop_token_ids: frozenset[int]) -> int:
    return finish(draw_passes(model, jobs, stop_token_ids))


def job(length: int, draws: int, *, temperature: float = 1.0, tokens: int = 10) -> DrawsAfter:
    uniforms = torch.rand((draws, tokens), generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    token_ids = [(i * i + length) % 250 for i in range(length)]
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


def forking_job(*, forks_at: Sequence[int], tokens: int = 12) -> DrawsAfter:
    """Draws whose random numbers are the first one's up to where each forks from it."""
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(tokens, generator=generator, dtype=torch.float64).tolist()
    rows = [first[:at] + torch.rand(tokens - at, generator=generator, dtype=torch.float64).tolist() for at in forks_at]
    draws = [Draw(1.0, first), *(Draw(1.0, row) for row in rows), Draw(0.0, first)]
    return DrawsAfter([(7 * i) % 300 for i in range(30)], draws)


@pytest.mark.parametrize("forks_at", [(0, 0), (3, 3, 5), (12, 4), (1, 2, 3, 9, 11)])
def test_draws_that_begin_alike_say_what_each_says_alone(forks_at: tuple[int, ...]) -> None:
    model = policy_model().model
    stop = frozenset(range(0, 300, 40))

    together = forking_job(forks_at=forks_at)
    alone = [DrawsAfter(together.token_ids, [one]) for one in forking_job(forks_at=forks_at).draws]
    for one in (together, *alone):
        packed = PackedModel(model, logits_of(model), cache_bytes=10**8, tokens_per_forward=64)
        draw(packed, [one], stop)
    expected = [one.draws[0] for one in alone]
    assert [one.token_ids for one in together.draws] == [one.token_ids for one in expected]
    logprobs = [one.logprob for one in expected]
    assert [one.logprob for one in together.draws] == pytest.approx(logprobs, abs=1e-4)
    said = {tuple(one.token_ids[: end + 1]) for one in together.draws for end in range(12)}
    columns = {column for one in together.draws for column in one.columns}
    assert len(columns) <= len(said), "what is said alike is computed once"


def with_sinks() -> PreTrainedModel:
    """A model whose attention has sinks, and no windows."""
    config = tiny_config("gpt_oss")
    config.num_hidden_layers, config.layer_types = 2, ["full_attention"] * 2
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


@pytest.mark.parametrize("begin_alike", [False, True])
@pytest.mark.parametrize("make_model", [lambda: policy_model().model, with_sinks], ids=["llama", "sinks"])
def test_draws_after_many_histories_say_what_each_says_alone(
    make_model: Callable[[], PreTrainedModel], begin_alike: bool
) -> None:
    model = make_model()
    stop = frozenset(range(0, 300, 30))
    packed, cold = (
        PackedModel(model, logits_of(model), cache_bytes=kept, tokens_per_forward=50) for kept in (10**8, 0)
    )
    # Of like length, and not; with one draw and several; some end at once and some have more to say
    # than there was room for.
    together = [job(20 + i, 1 + 2 * (i % 4 == 0), tokens=5 + 5 * (i % 9)) for i in (*range(0, 40, 6), 21, 100)]
    if begin_alike:
        # None, long ones that are read apart, and one too short for that.
        beginnings = [
            [],
            job(140, 1).token_ids,
            job(141, 1).token_ids,
            job(180, 1).token_ids,
            job(180, 1).token_ids[:90],
        ]
        together = [replace(one, token_ids=beginnings[i % 5] + one.token_ids) for i, one in enumerate(together)]
    for _ in range(2):
        draw(packed, together, stop)
        for one in together:
            token_ids = one.token_ids
            alone = DrawsAfter(token_ids, [Draw(d.temperature, d.uniforms) for d in one.draws])
            draw(cold, [alone], stop)
            assert [d.token_ids for d in one.draws] == [d.token_ids for d in alone.draws]
            logprobs = [d.logprob for d in alone.draws]
            assert [d.logprob for d in one.draws] == pytest.approx(logprobs, abs=1e-4)
        # Next, what was said and a few tokens more: it is known.
        said = [max((d.token_ids for d in one.draws), key=len) for one in together]
        later = [
            DrawsAfter([*one.token_ids, *tokens, 7, 11], [Draw(1.0, d.uniforms) for d in one.draws])
            for one, tokens in zip(together, said, strict=True)
        ]
        read = draw(packed, [replace(one, draws=[Draw(0.0, [0.0])]) for one in later], stop)
        assert read <= 3 * len(later)
        together = later


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> WeakSet[Stack | Beginnings]:
    """The copies that exist at any time."""
    alive: WeakSet[Stack | Beginnings] = WeakSet()

    def noting(init: Callable[..., None]) -> Callable[..., None]:
        def noted(copy: Stack | Beginnings, *arguments: object) -> None:
            alive.add(copy)
            init(copy, *arguments)

        return noted

    for kind in (Stack, Beginnings):
        monkeypatch.setattr(kind, "__init__", noting(kind.__init__))
    return alive


# Without a limit 467 kB are copied: beginnings of 600 tokens, which six and four histories have, and what comes after.
@pytest.mark.parametrize(("cache_bytes", "copies"), [(10**8, True), (1_600_000, True), (700_000, True), (0, False)])
def test_copies_take_half_of_the_cache_at_most_and_old_prefixes_make_room(
    copied: WeakSet[Stack | Beginnings], cache_bytes: int, copies: bool
) -> None:
    model = policy_model().model
    packed = PackedModel(model, logits_of(model), cache_bytes=cache_bytes, tokens_per_forward=700)
    for length in range(400, 480, 10):  # older prefixes, of which the cache has as many as it can hold
        draw(packed, [job(length, 1, tokens=1)], frozenset())
    begun = [job(600, 1).token_ids, job(601, 1).token_ids]
    together = [job(20 + i, 2) for i in range(10)]
    together = [replace(one, token_ids=begun[i % 5 > 2] + one.token_ids) for i, one in enumerate(together)]
    most = 0
    for _ in draw_passes(packed, together, frozenset()):
        found = sum(copy.nbytes for copy in copied)
        most = max(most, found)
        assert found <= cache_bytes // 2
        assert not found or packed.store.nbytes + found <= cache_bytes
    assert (most > 0) == copies
    assert packed.store.copied == 0
    for one in together:
        alone = DrawsAfter(one.token_ids, [Draw(d.temperature, d.uniforms) for d in one.draws])
        draw(PackedModel(model, logits_of(model), cache_bytes=0, tokens_per_forward=700), [alone], frozenset())
        assert [d.token_ids for d in one.draws] == [d.token_ids for d in alone.draws]


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
