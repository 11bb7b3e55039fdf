"""Full sequences in batches: Q is that of each sequence alone, on every architecture."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from qguide.qnet.engine.full_sequences import Continuations, FullSequenceModel, Way
from qguide.qnet.engine.model_memory import in_float32
from qguide.qnet.models.checkpoint import LoadedImplicitQ, LoadedQNet
from qguide.qnet.models.implicit_q import ImplicitQ, ImplicitQConfig
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.scoring.full_sequences import FullSequenceScorer, _ValueReader
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.sliced_scorer import Slices, finish
from qguide.qnet.types import Message, ScoreRequest, ScoreResult
from tests.support.architecture_lists import (
    HISTORY_ONCE,
    NOT_BUILT,
    ONE_ROW,
    PACKED,
    WHOLE_PADDED,
    WITHOUT_FORWARD,
    sampled,
)
from tests.support.architectures import MODEL_TYPES, enliven, steps, tiny_config, tiny_pair
from tests.support.tiny_models import renderer

UNPACKED = [n for n in MODEL_TYPES if n not in {*NOT_BUILT, ONE_ROW, *PACKED, *WITHOUT_FORWARD}]
ROOM = 256
CACHE_BYTES = 2**24
KEPT = ["granitemoehybrid", "lfm2", "qwen3_next"]
pytestmark = pytest.mark.filterwarnings("ignore")


def way_of(model_type: str) -> Way:
    if model_type in HISTORY_ONCE:
        return "one_row" if model_type in ONE_ROW else "shared_history"
    return "padded" if model_type in WHOLE_PADDED else "alone"


def last_row(outputs_AD: Tensor, _: list[int]) -> Tensor:
    return outputs_AD[-1]


def assert_same_q(found: Sequence[ScoreResult], expected: Sequence[ScoreResult]) -> None:
    """Within 1e-5: recurrences add up in another order where a history is cut."""
    for one, other in zip(found, expected, strict=True):
        assert one.q_values == pytest.approx(other.q_values, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("model_type", sampled(UNPACKED))
def test_q_of_batches_is_that_of_sequences_alone(model_type: str) -> None:
    naive, served = tiny_pair(tiny_config(model_type))
    scorer = FullSequenceScorer(served, tokens_per_forward=ROOM, cache_bytes=CACHE_BYTES)
    trunk = FullSequenceModel(served.model.trunk, last_row, tokens_per_forward=ROOM)
    assert trunk.way == way_of(model_type), trunk.reason
    batch = steps()
    expected = NaiveScorer(naive).score(batch)
    assert_same_q([result for step in batch for result in scorer.score([step])], expected)
    assert_same_q(scorer.score(batch), expected)
    assert (scorer.cache.nbytes > 0) == scorer.keeps_histories == (model_type in HISTORY_ONCE)


@pytest.mark.parametrize("model_type", ["lfm2", "mamba", "qwen3_next"])
def test_an_implicit_q_reads_the_same_log_probabilities(model_type: str) -> None:
    fields = tiny_config(model_type).to_dict()
    model = ImplicitQ(ImplicitQConfig(policy=fields, reference=fields)).float().eval()
    enliven(model.policy)
    loaded = LoadedImplicitQ("tiny", model, renderer(), Manifest(kind="implicit-q", name="tiny"))
    scorer = FullSequenceScorer(loaded, tokens_per_forward=ROOM, cache_bytes=CACHE_BYTES)
    expected = NaiveImplicitScorer(loaded).score(steps())
    assert_same_q(scorer.score(steps()), expected)
    assert_same_q(scorer.score(steps()), expected)


def test_a_value_head_reads_match_features_of_its_candidates() -> None:
    trunk = tiny_config("lfm2").to_dict()
    config = QNetConfig(trunk=trunk, head_width=16, head_features="match-1")
    model = QNet(config).float().eval()
    enliven(model)
    loaded = LoadedQNet("tiny", model, renderer(), Manifest(kind="qnet", name="tiny"))
    scorer = FullSequenceScorer(loaded, tokens_per_forward=ROOM)
    assert_same_q(scorer.score(steps()), NaiveScorer(loaded).score(steps()))


def test_equal_candidates_and_a_history_cost_their_tokens_once() -> None:
    loaded, _ = tiny_pair(tiny_config("lfm2"))
    request = steps()[0]
    twice = replace(request, candidates=request.candidates * 2)
    scorer = FullSequenceScorer(loaded, tokens_per_forward=ROOM)
    [result] = scorer.score([twice])
    rendered = scorer.prepare(request)
    assert result.computed_tokens == len(rendered.history) + sum(map(len, rendered.candidates))
    assert result.q_values[: len(request.candidates)] == result.q_values[len(request.candidates) :]


@pytest.mark.parametrize(("model_type", "room"), [("lfm2", 16), ("mamba", 128)])
def test_a_pass_has_no_more_tokens_than_a_turn_at_the_device(model_type: str, room: int) -> None:
    loaded, _ = tiny_pair(tiny_config(model_type))
    scorer = FullSequenceScorer(loaded, tokens_per_forward=room)
    prepared = [scorer.prepare(request) for request in steps()]
    before, passes = 0, []
    work = scorer.slices(prepared)
    try:
        while True:
            so_far = sum(usage.prompt_tokens for usage in next(work).values())
            passes.append(so_far - before)
            before = so_far
    except StopIteration as end:
        results: list[ScoreResult] = end.value
    assert before == sum(result.computed_tokens for result in results)
    longest = max(len(p.history) + max(map(len, p.candidates)) for p in prepared)
    # What cannot be cut is one pass: a candidate, or where nothing is shared its whole sequence.
    candidate = max(len(c) for p in prepared for c in p.candidates)
    assert max(passes) <= max(room, candidate if model_type == "lfm2" else longest)
    assert len(passes) > len(prepared)


def test_a_state_that_is_lost_shows_in_half_precision_too() -> None:
    trunk = tiny_pair(tiny_config("mamba"))[0].model.trunk.to(torch.bfloat16)
    before = {name: weight.clone() for name, weight in trunk.state_dict().items()}
    found = FullSequenceModel(trunk, last_row, tokens_per_forward=ROOM)
    assert (found.way, "shared_history: outputs differ" in found.reason) == ("padded", True)
    assert all(torch.equal(before[name], weight) for name, weight in trunk.state_dict().items())
    assert {weight.dtype for weight in trunk.parameters()} == {torch.bfloat16}


def test_a_model_that_does_not_fit_in_float32_is_not_taken_there(monkeypatch: pytest.MonkeyPatch) -> None:
    trunk = tiny_pair(tiny_config("lfm2"))[0].model.trunk.to(torch.bfloat16)
    monkeypatch.setattr("qguide.qnet.engine.model_memory._free_bytes", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"float32 .* bytes .* 1,000 "), in_float32(trunk):
        pass
    assert FullSequenceModel(trunk, last_row, tokens_per_forward=ROOM).way == "alone"


def test_angles_that_change_with_the_length_keep_sequences_alone() -> None:
    config = tiny_config("llama")
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    trunk = tiny_pair(config)[0].model.trunk
    found = FullSequenceModel(trunk, last_row, tokens_per_forward=ROOM)
    assert (found.way, "'dynamic'" in found.reason) == ("alone", True)


def test_logits_are_made_from_the_shortest_history_on() -> None:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(tiny_config("mamba")).float()
    made: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _, args, output: made.append(output.shape[1]))
    runs = FullSequenceModel(model, last_row, tokens_per_forward=ROOM, logits=True)
    made.clear()
    requests = [Continuations(list(range(1, 41)), [[5, 6, 7], [8]])]
    finish(runs.run(requests, Counter(), Counter()))
    assert made == [4]


def test_a_request_without_a_history_is_scored_alone() -> None:
    trunk = tiny_pair(tiny_config("lfm2"))[0].model.trunk
    runs = FullSequenceModel(trunk, last_row, tokens_per_forward=ROOM)
    [found] = finish(runs.run([Continuations([], [[3, 4], [5]])], Counter(), Counter()))
    with torch.inference_mode():
        expected = trunk(input_ids=torch.tensor([[3, 4]]), use_cache=False).last_hidden_state[0, -1]
    assert torch.allclose(found[0], expected, atol=1e-5)


def test_copies_of_a_long_historys_state_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    trunk = tiny_pair(tiny_config("lfm2"))[0].model.trunk
    runs = FullSequenceModel(trunk, last_row, tokens_per_forward=ROOM)
    runs.way = "shared_history"  # one row has no copies of what was read before
    rows: list[int] = []
    trunk.register_forward_pre_hook(lambda _, args, given: rows.append(given["input_ids"].shape[0]), with_kwargs=True)
    short, long = [3, 4], list(range(1, 41)) * 5
    tails = [[5 + number, 6] for number in range(8)]
    requests = [Continuations(short, tails), Continuations(long, tails)]
    expected = finish(runs.run(requests, Counter(), Counter()))
    assert rows == [1, 8, 1, 8]
    copied = runs._read(Continuations(long, []), len(long), None)[0].copied_bytes
    monkeypatch.setattr("qguide.qnet.engine.full_sequences._COPIES_BYTES", 3 * copied)
    rows.clear()
    found = finish(runs.run(requests, Counter(), Counter()))
    assert rows == [1, 8, 1, 3, 3, 2]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(torch.stack(one), torch.stack(other), atol=1e-5)
    monkeypatch.setattr("qguide.qnet.engine.full_sequences._COPIES_BYTES", 1)
    rows.clear()
    finish(runs.run(requests, Counter(), Counter()))
    assert rows == [1] * 18, "a history that is longer than all room runs, too"


def one_row(model_type: str, room: int) -> tuple[FullSequenceModel[Tensor], list[tuple[int, ...]]]:
    """A model that keeps states, and the shapes of the passes that it makes from now on."""
    trunk = tiny_pair(tiny_config(model_type))[0].model.trunk
    runs = FullSequenceModel(trunk, last_row, tokens_per_forward=room, cache_bytes=CACHE_BYTES)
    assert runs.way == "one_row"
    shapes: list[tuple[int, ...]] = []
    trunk.register_forward_pre_hook(
        lambda _, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    return runs, shapes


@pytest.mark.parametrize("model_type", sampled(ONE_ROW))
def test_a_warm_step_is_one_row_that_equals_sequences_alone(model_type: str) -> None:
    runs, shapes = one_row(model_type, ROOM)
    first, second = list(range(1, 6)), list(range(1, 9))
    for history, fresh in ((first, 5), (second, 3), (second, 0)):
        for tails in ([[3, 4], [9]], [[7], [8, 9, 10, 11, 12], [6, 5, 4]], [[2, 1]], [[5]]):
            alone, costs = Counter[int](), Counter[int]()
            [found] = finish(runs.run([Continuations(history, tails)], costs, Counter()))
            assert shapes.pop() == (1, fresh + sum(map(len, tails)))
            assert costs[0] == fresh + sum(map(len, tails))
            runs.way = "alone"
            [expected] = finish(runs.run([Continuations(history, tails)], alone, Counter()))
            runs.way = "one_row"
            shapes.clear()
            # Sums of a recurrence are in another order, and a linear layer may be oneDNN's.
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
            fresh = 0


def test_a_row_that_would_be_too_long_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, shapes = one_row("granitemoehybrid", 24)
    request = Continuations(list(range(1, 41)), [[1] * 6, [2] * 5, [3] * 20])
    expected = finish(runs.run([request], Counter(), Counter()))
    assert shapes == [(1, 24), (1, 16), (1, 11), (1, 20)]
    runs.store.clear()
    shapes.clear()
    monkeypatch.setattr("qguide.qnet.engine.full_sequences._MASK_ENTRIES", 8 * (40 + 24))
    found = finish(runs.run([request], Counter(), Counter()))
    assert shapes == [(1, 24), (1, 16), (1, 5), (1, 6), (1, 20)]
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_last_layer_works_on_what_is_read() -> None:
    runs, _ = one_row("qwen3_5_text", ROOM)
    layers = runs._model.layers
    rows: list[list[int]] = []
    for layer in layers:
        layer.mlp.register_forward_pre_hook(lambda _, args: rows[-1].append(args[0].shape[1]))
    for history, tails in (([1, 2, 3], [[4, 5], [6, 7, 8]]), ([1, 2, 3, 4], [])):
        rows.append([])
        finish(runs.run([Continuations(history, tails)], Counter(), Counter()) if tails else read(runs, history))
    most = len(layers) - 1
    assert rows == [[8] * most + [3], [1] * len(layers)]


def read(runs: FullSequenceModel[Tensor], history: list[int]) -> Slices[None]:
    for _ in runs.read_ahead(("", history), begin=lambda _: None):
        yield {}


def test_what_is_kept_of_a_continuation_is_not_the_whole_batch() -> None:
    loaded, _ = tiny_pair(tiny_config("mamba"))
    reader = FullSequenceScorer(loaded, tokens_per_forward=4096)._reader
    assert isinstance(reader, _ValueReader)
    request = Continuations(list(range(1, 100)), [[1, 2], [3] * 40])
    [hidden] = finish(reader._trunk.run([request], Counter(), Counter()))
    assert [one.untyped_storage().nbytes() for one in hidden] == [one.nbytes for one in hidden]


def test_no_request_is_scored_from_another_ones_history() -> None:
    naive, served = tiny_pair(tiny_config("mamba"))
    one = steps()[0]
    others = [ScoreRequest(step.history, one.candidates) for step in steps()]
    scorer = FullSequenceScorer(served, tokens_per_forward=4096)
    assert_same_q(scorer.score([one, *others]), NaiveScorer(naive).score([one, *others]))


@pytest.mark.parametrize("model_type", KEPT)
def test_a_step_costs_its_new_tokens_and_a_branch_goes_back_to_a_turn(model_type: str) -> None:
    naive, served = (NaiveScorer(one) for one in tiny_pair(tiny_config(model_type)))
    scorer = FullSequenceScorer(served._loaded, tokens_per_forward=ROOM, cache_bytes=CACHE_BYTES)
    first, second, third = steps()
    branch = replace(second, history=(*second.history[:-1], Message("user", "you see shelf")))
    known = 0
    for number, step in enumerate((first, second, third)):
        [found] = scorer.score([step])
        assert_same_q([found], naive.score([step]))
        history, candidates = history_and_candidates(scorer, step)
        assert found.cached_tokens == known
        assert found.computed_tokens == history - known + candidates
        # The candidate that the next history goes on with is not read again.
        known = history + len(renderer().encode_candidate(step.candidates[number]))
    behind_first = history_and_candidates(scorer, first)[0]
    for step in (branch, third, branch, first):
        assert_same_q(scorer.score([step]), naive.score([step]))
    [branched, again] = [scorer.score([replace(s, cache_salt="other")])[0] for s in (branch, third)]
    assert branched.cached_tokens == 0, "another salt finds nothing"
    assert again.cached_tokens == 0
    fresh = replace(branch, history=(*branch.history[:-1], Message("user", "you see desk")))
    assert scorer.score([fresh])[0].cached_tokens == behind_first
    scorer.close()
    assert scorer.cache.nbytes == 0


def test_what_is_kept_stays_within_its_budget() -> None:
    naive, served = tiny_pair(tiny_config("lfm2"))
    scorer = FullSequenceScorer(served, tokens_per_forward=ROOM, cache_bytes=2**16)
    others = [replace(step, cache_salt=str(salt)) for salt in range(4) for step in steps()]
    expected = NaiveScorer(naive).score(others)
    for other, reference in zip(others, expected, strict=True):
        assert_same_q(scorer.score([other]), [reference])
        assert 0 < scorer.cache.nbytes <= 2**16
    assert scorer.cache.evictions > 0


def test_keys_and_values_of_a_session_count_once() -> None:
    trunk = tiny_pair(tiny_config("lfm2"))[0].model.trunk
    runs = FullSequenceModel(trunk, last_row, tokens_per_forward=ROOM, cache_bytes=CACHE_BYTES)
    whole = list(range(1, 201))
    for end in (40, 120, 200):
        finish(runs.run([Continuations(whole[:end], [[3]])], Counter(), Counter()))
    states = [state for state, *_ in runs.store._states.values()]
    attended = {id(state._attended): state._attended for state in states}
    assert [state.length for state in states] == [40, 120, 200]
    assert [one.length for one in attended.values()] == [200]
    own = sum(state.nbytes for state in states)
    assert runs.store.nbytes == own + states[-1]._attended.nbytes


def test_a_pass_over_a_long_history_ends_at_a_turn() -> None:
    trunk = tiny_pair(tiny_config("lfm2"))[0].model.trunk
    runs = FullSequenceModel(trunk, last_row, tokens_per_forward=50, cache_bytes=CACHE_BYTES)
    spent, known = Counter[int](), Counter[int]()
    history = list(range(1, 121))
    finish(runs.run([Continuations(history, [[3]], turns=[20, 45, 80])], spent, known))
    assert [state.length for state, *_ in runs.store._states.values()] == [45, 80, 120]
    other = [*history[:80], 7, 8]
    finish(runs.run([Continuations(other, [[3]])], spent, known))
    assert (spent[0], known[0]) == (120 + 1 + 2 + 1, 80)


def test_a_history_that_was_read_ahead_is_known() -> None:
    naive, served = tiny_pair(tiny_config("qwen3_next"))
    scorer = FullSequenceScorer(served, tokens_per_forward=16, cache_bytes=CACHE_BYTES)
    assert scorer.reads_ahead
    request = steps()[1]
    prepared = scorer.prepare_history(request)
    assert prepared is not None
    begun: list[int] = []
    for _ in scorer.read_ahead(prepared, begin=begun.append):
        pass
    assert sum(begun) == len(prepared[1])
    assert len(begun) > 1
    [found] = scorer.score([request])
    assert found.cached_tokens == len(prepared[1])
    assert_same_q([found], NaiveScorer(naive).score([request]))


def history_and_candidates(scorer: FullSequenceScorer, step: ScoreRequest) -> tuple[int, int]:
    """Number of tokens of a request's history, and of its distinct candidates."""
    rendered = scorer.prepare(step)
    return len(rendered.history), sum(map(len, rendered.candidates))
