"""Contract of every scorer, with additions for the fast scorer of each kind of Q model."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from qguide.qnet.errors import HistoryTooLongError, InvalidCandidatesError
from qguide.qnet.models.checkpoint import load_qnet
from qguide.qnet.models.classifier import load_remote_classifier
from qguide.qnet.models.remote_trunk import load_remote_trunk
from qguide.qnet.models.trunk_export import export_trunk
from qguide.qnet.scoring.remote_classifier import RemoteClassifyScorer
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.scoring.vllm import VllmScorer
from qguide.qnet.scoring.vllm_client import ClassifyServer, VllmServer
from qguide.qnet.types import History, Message, Scorer, ScoreRequest
from tests.contract.scorers.batches import INSTRUCTION
from tests.contract.scorers.subjects import KINDS, Asking, Subject, behind, build_subject, close_to, tried
from tests.support.scripted_vllm import scripted_vllm
from tests.support.tiny_models import CONTEXT, WORDS, renderer, save_classifier

QNETS = tuple(kind for kind in KINDS if kind.endswith("qnet"))
OBSERVING = tuple(kind for kind in KINDS if kind.endswith("observing-qnet"))
AT_ACTION = tuple(kind for kind in KINDS if kind not in OBSERVING)
SCORERS = (
    "scripted",
    *(f"vllm-{kind}" for kind in QNETS),
    *(f"{how}-{kind}" for kind in KINDS for how in ("naive", "fast")),
    *(f"{how}-classifier" for how in ("naive", "fast", "remote")),
)
OTHER = Message("user", "take mug from shelf open Action : you see go to desk " * 2)
ONE_SLAB = 150_000


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {kind: build_subject(kind, "llama", tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(params=AT_ACTION)
def at_action(request: pytest.FixtureRequest, subjects: dict[str, Subject]) -> Subject:
    return subjects[request.param]


@pytest.fixture(params=OBSERVING)
def observing(request: pytest.FixtureRequest, subjects: dict[str, Subject]) -> Subject:
    return subjects[request.param]


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, subjects: dict[str, Subject]) -> Subject:
    return subjects[request.param]


@contextmanager
def on_vllm(folder: Path) -> Iterator[Asking]:
    """The QNet in a folder with its trunk on a server that speaks vLLM's protocol."""
    loaded = load_remote_trunk(folder / "qnet")
    export_trunk(folder / "qnet", folder / "trunk")
    with scripted_vllm(folder / "trunk", model=loaded.trunk_name, context=CONTEXT) as server:
        hidden_size = loaded.trunk.hidden_size
        client = VllmServer(server.url, model=loaded.trunk_name, hidden_size=hidden_size)
        with closing(VllmScorer(loaded, client)) as scorer:
            yield Asking(scorer, loaded.manifest.reads_observation)


@pytest.fixture(scope="module")
def remotes(subjects: dict[str, Subject]) -> Iterator[dict[str, Asking]]:
    with ExitStack() as servers:
        yield {kind: servers.enter_context(on_vllm(subjects[kind].folder)) for kind in QNETS}


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scorer]]:
    """A reward model in this process and on a server."""
    folder = save_classifier(tmp_path_factory.mktemp("classifier"))
    loaded = load_remote_classifier(folder, name="reward")
    with scripted_vllm(folder, model="reward", context=CONTEXT, classifies=True) as server:
        client = ClassifyServer(server.url, model="reward")
        with closing(RemoteClassifyScorer(loaded, client)) as remote:
            naive, fast = NaiveScorer(load_qnet(folder)), SharedPrefixScorer(load_qnet(folder))
            yield {"naive": naive, "fast": fast, "remote": remote}


@pytest.fixture(params=SCORERS)
def scorer(request: pytest.FixtureRequest, subjects: dict[str, Subject]) -> Scorer:
    if request.param == "scripted":
        return ScriptedScorer({"take": 0.5, "go": 0.25})
    how, _, kind = request.param.partition("-")
    if kind == "classifier":
        classifier: Scorer = request.getfixturevalue("classifiers")[how]
        return classifier
    if how == "vllm":
        served: Scorer = request.getfixturevalue("remotes")[kind]
        return served
    return subjects[kind].naive if how == "naive" else subjects[kind].build_fast()


@pytest.mark.parametrize("kind", QNETS)
def test_q_is_the_same_where_the_trunk_is_on_vllm(
    kind: str, subjects: dict[str, Subject], remotes: dict[str, Asking]
) -> None:
    turns = (INSTRUCTION, *said("go to desk"), Message("user", "you see mug"), *said("take mug"))
    history = (*turns, Message("user", "you see desk"))
    request = ScoreRequest(history, said("take mug", "take mug from desk", "go to shelf"))
    [result] = remotes[kind].score([request])
    assert result.q_values == close_to(subjects[kind].q_values(request))


def said(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("assistant", text) for text in texts)


def equals_the_reference(subject: Subject, fast: Scorer, *requests: ScoreRequest) -> list[int]:
    """Check one batch, and return how many tokens of each request came from the cache."""
    results = fast.score(requests)
    for request, result in zip(requests, results, strict=True):
        assert result.q_values == close_to(subject.q_values(request))
    return [result.cached_tokens for result in results]


def test_there_is_one_q_for_each_candidate_in_the_order_of_the_requests(scorer: Scorer) -> None:
    one, other, third = said("go to desk", "take mug", "take")
    forward = ScoreRequest((INSTRUCTION,), (one, other, third))
    backward = ScoreRequest((INSTRUCTION,), (third, other, one))
    first, second = scorer.score([forward, backward])
    assert first.q_values == close_to(second.q_values[::-1])
    assert first.q_values[0] != first.q_values[1]


def test_equal_candidates_have_equal_q(scorer: Scorer) -> None:
    [result] = scorer.score([ScoreRequest((INSTRUCTION,), said("go", "take mug", "go", "go"))])
    assert result.q_values[0] == result.q_values[2] == result.q_values[3]


def test_scoring_again_changes_nothing(scorer: Scorer) -> None:
    request = ScoreRequest((INSTRUCTION,), said("go to desk", "take"))
    once, again = scorer.score([request])[0], scorer.score([request])[0]
    assert again.q_values == close_to(once.q_values)


def test_nothing_asked_is_nothing_answered(scorer: Scorer) -> None:
    assert scorer.score([]) == []


def test_a_request_without_candidates_is_refused(scorer: Scorer) -> None:
    with pytest.raises(InvalidCandidatesError, match="0 candidates"):
        scorer.score([ScoreRequest((INSTRUCTION,), ())])


def test_a_scorer_has_a_name(scorer: Scorer) -> None:
    assert scorer.name


@pytest.mark.parametrize("history", [(), (Message("user", ""),)], ids=["none", "empty"])
def test_the_shortest_history_and_the_shortest_candidate(subject: Subject, history: History) -> None:
    request = ScoreRequest(history, said("", "go"))
    assert len(renderer().encode_candidate(request.candidates[0])) == 1
    equals_the_reference(subject, subject.build_fast(), request)


def test_a_sequence_may_fill_the_context_and_not_exceed_it(subject: Subject) -> None:
    def request(tokens: int) -> ScoreRequest:
        """The longest of its candidates ends at that many tokens."""
        words = " ".join(WORDS[i * i % len(WORDS)] for i in range(tokens))
        room = tokens - len(renderer().encode_history((INSTRUCTION,)))
        while len(behind(subject.naive.asked(ScoreRequest((INSTRUCTION,), said(words))))) > room:
            words = words[: words.rindex(" ")]
        return ScoreRequest((INSTRUCTION,), said(words, "go"))

    fast = subject.build_fast(tokens_per_forward=64)
    equals_the_reference(subject, fast, request(CONTEXT))
    for scorer in (fast, subject.naive):
        with pytest.raises(HistoryTooLongError, match=f"257 tokens; .* takes {CONTEXT}"):
            scorer.score([request(CONTEXT + 1)])
    equals_the_reference(subject, fast, request(CONTEXT))


def test_the_pad_token_says_nothing_about_lengths(subject: Subject) -> None:
    """Every turn ends with the token that also pads, and it counts like any other."""
    assert renderer().tokenizer.pad_token == renderer().tokenizer.eos_token
    empty_turns = (INSTRUCTION, *said("", ""), Message("user", ""), *said(""))
    equals_the_reference(subject, subject.build_fast(), ScoreRequest(empty_turns, said("", "go")))


def test_the_next_step_computes_the_observation_and_the_candidates_alone(at_action: Subject) -> None:
    fast = at_action.build_fast()
    first = ScoreRequest((INSTRUCTION,), said("go to desk", "take mug", "go to"))
    assert equals_the_reference(at_action, fast, first) == [0]
    for taken in first.candidates:
        second = ScoreRequest((*first.history, taken, Message("user", "you see")), said("go"))
        known = [*renderer().encode_history(first.history), *renderer().encode_candidate(taken)]
        assert equals_the_reference(at_action, fast, second) == [at_action.passes * len(known)]
        fast = at_action.build_fast()
        fast.score([first])


def test_what_candidates_begin_with_alike_is_computed_once(at_action: Subject) -> None:
    thought = "go to desk take mug from shelf open"
    request = ScoreRequest((INSTRUCTION,), said(thought, f"{thought} shelf", f"{thought} desk mug"))
    fast = at_action.build_fast()
    equals_the_reference(at_action, fast, request)
    [again] = fast.score([request])
    apart = sum(len(renderer().encode_candidate(c)) for c in request.candidates)
    thoughts_saved = 2 * len(thought.split())
    computed = again.computed_tokens // at_action.passes
    assert computed == apart - thoughts_saved + at_action.from_history
    for taken in request.candidates:
        after = ScoreRequest((*request.history, taken, Message("user", "you see")), said("go"))
        known = [*renderer().encode_history(request.history), *renderer().encode_candidate(taken)]
        fast = at_action.build_fast()
        fast.score([request])
        assert equals_the_reference(at_action, fast, after) == [at_action.passes * len(known)]


def test_a_history_that_leaves_a_known_one_midway_keeps_what_they_share(subject: Subject) -> None:
    fast = subject.build_fast()
    known = ScoreRequest((INSTRUCTION, *said("go"), Message("user", "you see mug")), said("take"))
    leaves = ScoreRequest((INSTRUCTION, *said("go to"), Message("user", "desk")), said("take"))
    fast.score([known])
    shared = len(renderer().encode_history((INSTRUCTION,)))
    [cached] = equals_the_reference(subject, fast, leaves)
    assert shared <= cached / subject.passes < len(renderer().encode_history(leaves.history))
    equals_the_reference(subject, fast, known, leaves)


def test_a_history_evicted_between_its_steps_is_computed_again(subject: Subject) -> None:
    fast = subject.build_fast(cache_bytes=subject.passes * ONE_SLAB // 2)
    one, other = (ScoreRequest((start,), said("go", "take")) for start in (INSTRUCTION, OTHER))
    assert equals_the_reference(subject, fast, one) == [0]
    assert equals_the_reference(subject, fast, one) != [0]
    assert equals_the_reference(subject, fast, other) == [0]
    assert equals_the_reference(subject, fast, one) == [0]


def test_sessions_in_one_batch_do_not_see_each_other(subject: Subject) -> None:
    fast = subject.build_fast()
    requests = [
        ScoreRequest((start, *turns), said("go", "go to desk", "take"))
        for start in (INSTRUCTION, OTHER)
        for turns in ((), (*said("go"), Message("user", "you see")))
    ]
    equals_the_reference(subject, fast, *requests)
    equals_the_reference(subject, fast, *reversed(requests), *requests)


def test_a_refused_request_leaves_the_scorer_as_it_was(subject: Subject) -> None:
    fast = subject.build_fast()
    good = ScoreRequest((INSTRUCTION,), said("go", "take"))
    fast.score([good])
    with pytest.raises(HistoryTooLongError):
        fast.score([good, ScoreRequest((Message("user", "go " * CONTEXT),), said("go"))])
    equals_the_reference(subject, fast, good)


def test_the_step_after_a_tried_candidate_computes_the_next_candidates_alone(observing: Subject) -> None:
    first = ScoreRequest(
        (INSTRUCTION,),
        said("go to desk", "take mug"),
        observations=((Message("user", "you see mug"),), (Message("user", "open"),)),
    )
    for taken, answer in zip(first.candidates, first.observations, strict=True):
        fast = observing.build_fast()
        fast.score([first])
        second = ScoreRequest((*first.history, taken, *answer), said("go"))
        known = len(renderer().encode_history(second.history))
        assert equals_the_reference(observing, fast, second) == [known]


def test_one_action_that_was_answered_in_two_ways_has_two_values(observing: Subject) -> None:
    answers = ((Message("user", "you see mug"),), (Message("user", "you see desk"),))
    request = ScoreRequest((INSTRUCTION,), said("take mug", "take mug"), observations=answers)
    for scorer in (observing.naive, observing.build_fast()):
        [result] = scorer.score([request])
        assert result.q_values[0] != result.q_values[1]


@pytest.mark.parametrize("how", ["naive", "fast", "vllm"])
@pytest.mark.parametrize("kind", ["qnet", "observing-qnet"])
def test_a_request_of_the_other_reading_is_refused(
    how: str, kind: str, subjects: dict[str, Subject], remotes: dict[str, Asking]
) -> None:
    built = {"naive": subjects[kind].naive, "fast": subjects[kind].build_fast(), "vllm": remotes[kind]}
    at_action = ScoreRequest((INSTRUCTION,), said("go", "take"))
    other = at_action if kind == "observing-qnet" else tried(at_action)
    remedy = "name a Q model (that reads at the action|whose read_at is 'observation')"
    with pytest.raises(InvalidCandidatesError, match=rf"candidates\[\]\.observation.*{remedy}"):
        built[how].scorer.score([other])
