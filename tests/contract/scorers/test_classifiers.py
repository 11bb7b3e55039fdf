"""Sequence classifiers with one label: Q is the logit that transformers gives the conversation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

from qguide.qnet.errors import CheckpointError, HistoryTooLongError, InvalidCandidatesError
from qguide.qnet.models.checkpoint import load_q_model, load_qnet
from qguide.qnet.models.model_export import export_model
from qguide.qnet.scoring.build import build_serving_scorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import History, Message, ScoreRequest
from tests.contract.scorers.batches import batches
from tests.contract.scorers.subjects import close_to, tried
from tests.support.chat_templates import OWN_TEMPLATES, tokenizer_of, trl_templates
from tests.support.tiny_models import ARCHITECTURES, CONTEXT, renderer, save_classifier, save_policy, save_qnet

TEMPLATES = {name: trl_templates()[name] for name in ("qwen3", "qwen2_5", "llama3", "gemma")} | {
    name: OWN_TEMPLATES[name] for name in ("like phi 4", "like kimi k2", "like olmo 2")
}
HISTORY: History = (
    Message("user", "go to desk 1"),
    Message("assistant", "<think>\nthe pen\n</think>\n\ntake the pen 2"),
    Message("user", "take the pen 2 from drawer 3"),
)
SAID = tuple(
    Message("assistant", text)
    for text in ("take the pen 2", "<think>\nfrom\n</think>\n\ntake the desk 1", "go", "take")
)


class Reference:
    """transformers alone: the chat template, the tokenizer and the classifier of a folder."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def q(self, history: History, said: Message) -> float:
        rows = [{"role": m.role, "content": m.content} for m in (*history, said)]
        token_ids = self.tokenizer.apply_chat_template(rows, return_dict=False)
        with torch.inference_mode():
            return float(self.model(torch.tensor([token_ids])).logits[0, 0])


def naive_and_fast(folder: Path) -> tuple[NaiveScorer, SharedPrefixScorer]:
    return NaiveScorer(load_qnet(folder)), SharedPrefixScorer(load_qnet(folder))


@pytest.mark.parametrize("family", TEMPLATES)
def test_q_is_the_logit_of_what_the_chat_template_prints(family: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(family, TEMPLATES[family])
    reference = Reference(save_classifier(tmp_path, tokenizer=tokenizer))
    expected = [reference.q(HISTORY, said) for said in SAID]
    assert len(set(expected)) == len(SAID)
    for scorer in naive_and_fast(tmp_path):
        [result] = scorer.score([ScoreRequest(HISTORY, SAID)])
        assert result.q_values == close_to(expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_q_is_read_before_padding_as_transformers_does(architecture: str, tmp_path: Path) -> None:
    end = renderer().tokenizer.eos_token_id
    reference = Reference(save_classifier(tmp_path, architecture, pad_token_id=end))
    assert reference.model.config.pad_token_id == renderer().encode_candidate(SAID[0])[-1]
    expected = [reference.q(HISTORY, said) for said in SAID]
    for scorer in naive_and_fast(tmp_path):
        [result] = scorer.score([ScoreRequest(HISTORY, SAID)])
        assert result.q_values == close_to(expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose template drops earlier thoughts and ends with a line break."""
    tokenizer = tokenizer_of("qwen3", TEMPLATES["qwen3"])
    return save_classifier(tmp_path_factory.mktemp("classifier"), tokenizer=tokenizer)


@settings(max_examples=5, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(batches=batches(), cache_bytes=st.sampled_from((1, 10**8)))
def test_episodes_side_by_side_have_the_q_of_each_conversation_alone(
    folder: Path, batches: list[list[ScoreRequest]], cache_bytes: int
) -> None:
    naive, fast = NaiveScorer(load_qnet(folder)), SharedPrefixScorer(load_qnet(folder))
    for batch in batches:
        asked = [ScoreRequest(one.history, one.candidates) for one in batch if one.history]
        for alone, found in zip(naive.score(asked), fast.score(asked), strict=True):
            # The template's own words make long rows, whose sums differ by a little more.
            assert found.q_values == pytest.approx(alone.q_values, abs=5e-5)
            assert found.computed_tokens + found.cached_tokens <= alone.computed_tokens


def test_the_next_step_finds_the_conversation_in_the_cache(folder: Path) -> None:
    _, fast = naive_and_fast(folder)
    fast.score([ScoreRequest(HISTORY[:1], SAID[2:])])
    later = (*HISTORY[:1], SAID[2], Message("user", "take the pen 2"))
    [second] = fast.score([ScoreRequest(later, SAID[2:])])
    # From the second reply on, the template leaves the empty thoughts of the first one out.
    assert second.cached_tokens >= len(renderer().encode_history(HISTORY[:1]))


def test_a_request_that_cannot_be_read_is_refused(folder: Path) -> None:
    for scorer in naive_and_fast(folder):
        with pytest.raises(InvalidCandidatesError, match="0 candidates"):
            scorer.score([ScoreRequest(HISTORY, ())])
        with pytest.raises(InvalidCandidatesError, match=r"candidates\[\]\.observation"):
            scorer.score([tried(ScoreRequest(HISTORY, SAID))])
        with pytest.raises(HistoryTooLongError, match=f"takes {CONTEXT}"):
            scorer.score([ScoreRequest((Message("user", "go " * CONTEXT),), SAID)])


def test_an_exported_classifier_reads_what_its_checkpoint_was_trained_on(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen3", TEMPLATES["qwen3"])
    policy = save_policy(tmp_path / "policy", tokenizer=tokenizer)
    save_qnet(tmp_path / "q", policy, head="linear", tokenizer=tokenizer)
    export_model(tmp_path / "q", tmp_path / "exported")
    request = ScoreRequest(HISTORY, SAID)
    [expected] = NaiveScorer(load_qnet(tmp_path / "q")).score([request])
    for scorer in naive_and_fast(tmp_path / "exported"):
        assert scorer.score([request])[0].q_values == close_to(expected.q_values)


def test_several_labels_are_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path, labels=3)
    with pytest.raises(CheckpointError, match=r"has 3 labels \(LABEL_0, .*num_labels = 1"):
        load_q_model(tmp_path)


def test_a_mark_that_no_export_writes_is_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"qguide": "x"}))
    with pytest.raises(CheckpointError, match=r"config\.json: .*\bqguide .*export-model"):
        load_q_model(tmp_path)


def test_a_head_of_more_than_one_layer_is_refused(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_labels": 1}
    config = BertConfig(num_hidden_layers=1, num_attention_heads=2, **shape)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    renderer().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"classifier\.weight.*score, .*QGUIDE_CLASSIFIERS"):
        load_q_model(tmp_path)


def test_a_trunk_that_cannot_be_packed_runs_on_full_sequences_where_that_is_allowed(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    reference = Reference(save_classifier(tmp_path, rope_parameters=rope))
    options: dict[str, Any] = {"cache_bytes": 0, "tokens_per_forward": 128}
    with pytest.raises(CheckpointError, match="rope_type is 'dynamic'"):
        build_serving_scorer(load_q_model(tmp_path), **options, full_sequences=False)
    scorer = build_serving_scorer(load_q_model(tmp_path), **options, full_sequences=True)
    [result] = scorer.score([ScoreRequest(HISTORY, SAID)])
    assert result.q_values == close_to([reference.q(HISTORY, said) for said in SAID])
