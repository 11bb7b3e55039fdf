"""Q(s, a) = beta * (log pi_theta(a | s) - log pi_ref(a | s)), read at the action's tokens alone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qguide.qnet.errors import CheckpointError, MalformedHistoryError
from qguide.qnet.models.checkpoint import LoadedImplicitQ, load_policy, load_q_model, load_qnet
from qguide.qnet.models.implicit_q import ImplicitQ
from qguide.qnet.rendering.renderer import RenderedEpisode
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.server.q_models.build import build_models
from qguide.server.settings.settings import Settings
from tests.support.tiny_models import renderer, save_implicit_q, save_policy

REQUEST = ScoreRequest(
    (Message("user", "go to desk take mug from shelf"),),
    tuple(Message("assistant", text) for text in ("go to desk", "", "take", "go to desk")),
)
BETA = 0.3


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, its reference and the two as one; GPT-2 ties its embeddings to its logits."""
    folder = tmp_path_factory.mktemp("dpo")
    policy = save_policy(folder / "policy", request.param)
    reference = save_policy(folder / "reference", request.param, seed=1)
    save_implicit_q(folder / "q", policy, reference, beta=BETA)
    save_implicit_q(folder / "same", policy, policy)
    return folder


def implicit(folder: Path) -> LoadedImplicitQ:
    loaded = load_q_model(folder)
    assert isinstance(loaded, LoadedImplicitQ)
    return loaded


def logprob(folder: Path, candidate: Message) -> float:
    """log pi(candidate | history) of one policy, spelled out."""
    history = renderer().encode_history(REQUEST.history)
    action = renderer().encode_candidate(candidate)
    with torch.inference_mode():
        logits_TV = load_policy(folder).model(torch.tensor([history + action])).logits[0]
    logprobs_TV = logits_TV.double().log_softmax(dim=-1)
    rows = range(len(history) - 1, len(history) + len(action) - 1)
    return sum(float(logprobs_TV[row, token]) for row, token in zip(rows, action, strict=True))


def test_q_is_beta_times_the_difference_of_the_actions_log_probabilities(folders: Path) -> None:
    expected = [BETA * (logprob(folders / "policy", c) - logprob(folders / "reference", c)) for c in REQUEST.candidates]
    loaded = implicit(folders / "q")
    for scorer in (NaiveImplicitScorer(loaded), SharedPrefixImplicitScorer(loaded)):
        assert scorer.score([REQUEST])[0].q_values == pytest.approx(expected, abs=1e-5)


def test_a_policy_that_is_its_own_reference_prefers_nothing(folders: Path) -> None:
    [result] = SharedPrefixImplicitScorer(implicit(folders / "same")).score([REQUEST])
    assert result.q_values == (0.0,) * 4


@pytest.fixture
def logit_rows(folders: Path) -> Iterator[tuple[SharedPrefixImplicitScorer, list[int]]]:
    """A scorer, and how many rows of vocabulary logits each of its forward passes makes."""
    loaded = implicit(folders / "q")
    scorer = SharedPrefixImplicitScorer(loaded)
    rows: list[int] = []

    def count(_: nn.Module, __: tuple[Tensor, ...], logits_RV: Tensor) -> None:
        rows.append(logits_RV.shape[-2])

    models = (loaded.model.policy, loaded.model.reference)
    hooks = [model.get_output_embeddings().register_forward_hook(count) for model in models]
    yield scorer, rows
    for hook in hooks:
        hook.remove()


def test_vocabulary_logits_are_made_for_the_actions_tokens_alone(
    logit_rows: tuple[SharedPrefixImplicitScorer, list[int]],
) -> None:
    scorer, rows = logit_rows
    scorer.score([REQUEST])
    encoded = [renderer().encode_candidate(candidate) for candidate in REQUEST.candidates]
    followed = {tuple(token_ids[:end]) for token_ids in encoded for end in range(len(token_ids))}
    assert rows == [len(followed)] * 2


def test_a_history_without_tokens_is_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = implicit(folders / "q")
    nothing = RenderedEpisode([], [])
    monkeypatch.setattr(loaded.renderer, "encode_state", lambda _, **__: nothing)
    for scorer in (NaiveImplicitScorer(loaded), SharedPrefixImplicitScorer(loaded)):
        with pytest.raises(MalformedHistoryError, match="0 tokens"):
            scorer.score([REQUEST])


def test_its_checkpoint_says_what_it_is(folders: Path) -> None:
    loaded = implicit(folders / "q")
    assert (loaded.manifest.kind, loaded.manifest.read_at) == ("implicit-q", "action_tokens")
    assert loaded.model.config.beta == BETA
    with pytest.raises(CheckpointError, match=r"kind implicit-q, .*qnet"):
        load_qnet(folders / "q")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load_q_model(folders / "policy")


def test_two_vocabularies_are_refused(folders: Path, tmp_path: Path) -> None:
    other = load_policy(folders / "policy").model
    other.resize_token_embeddings(400)
    other.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"299 .*400; .*tokenizer"):
        ImplicitQ.from_policies(folders / "policy", tmp_path)


def test_the_server_serves_it_like_any_q_model(folders: Path) -> None:
    models = build_models(Settings(policy="scripted", q_models={"dpo": str(folders / "q")}))
    asyncio.run(models.close())
    [served] = models.q_models
    assert (served.name, served.source, served.context) == ("dpo", "checkpoint", 256)
    assert served.manifest is not None
    assert served.manifest.kind == "implicit-q"
