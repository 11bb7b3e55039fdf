"""A judge is a job's Q model by the name `judge:NAME`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qguide.qnet.errors import ConfigError, JudgeAnswerError
from qguide.qnet.types import Candidate, Message, SampleRequest, ScoreRequest
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.evaluation.records import Results
from qguide.training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.rollouts.models import Inference, build_scorer, sha256_of_q_model
from tests.support.decision_groups import candidate, groups_row
from tests.support.dialect_upstream import DialectUpstream
from tests.support.serving import serving_app

Address = tuple[FakeUpstream, str]
STATE = (Message("user", "take the green book"),)
PRICES = {"prompt": 1.0, "completion": 10.0}
ACTIONS = ("go left", "open door", "take key")
GROUP = groups_row(
    ([candidate("Action: take desk", (0.0, 1)), candidate("Action: take book", (1.0, 1))], 1),
    environment="fake",
    first_observation="take the green book",
)


def inference(url: str, **judge: Any) -> Inference:
    entry = {"url": url, "model": "m", "prices": PRICES, "patience_s": 5.0, "judge": judge}
    return Inference.model_validate({"judges": {"demo": entry}})


def request(*texts: str) -> ScoreRequest:
    return ScoreRequest(STATE, tuple(Message("assistant", text) for text in texts))


def test_its_values_are_the_judges_and_its_tokens_have_a_price(address: Address, upstream: FakeUpstream) -> None:
    scorer: Any = build_scorer("judge:demo", inference(address[1]))
    first, second = scorer.score([request("take book", "sing"), request("take book")])
    assert (first.q_values, second.q_values) == ((1.0, 0.0), (1.0,))
    assert scorer.usage.requests == len(upstream.asked) == 2
    assert scorer.usage.completion_tokens == 2
    assert scorer.usage.cost == pytest.approx((scorer.usage.prompt_tokens + 20) / 1e6)


def test_an_upstream_that_caches_is_told_where_a_long_question_may_be_cut() -> None:
    upstream = DialectUpstream()
    with serving_app(upstream.app()) as url:
        entry = {"url": f"{url}/v1", "model": "m", "dialect": "messages", "caches": True}
        scorer = build_scorer("judge:demo", Inference.model_validate({"judges": {"demo": entry}}))
        scorer.score([ScoreRequest((Message("user", "take the green book " * 300),), request("take book").candidates)])
    assert "cache_control" in json.dumps(upstream.asked)


def test_an_unreadable_answer_is_an_error_of_the_job(address: Address, upstream: FakeUpstream) -> None:
    upstream.fault = "chatty"
    scorer: Any = build_scorer("judge:demo", inference(address[1]))
    with pytest.raises(JudgeAnswerError, match=r"judge:demo .* 0 to 9; .*prompt_file"):
        scorer.score([request("take book")])


def test_a_judge_without_a_table_or_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'judge:x', .*inference\.judges .*demo; .*'x'$"):
        build_scorer("judge:x", inference("http://127.0.0.1:1/v1"))
    entry = {"url": "http://127.0.0.1:1/v1", "model": "m", "api_key_variable": "JUDGE_KEY"}
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"demo: .* JUDGE_KEY .*api_key_variable"):
        build_scorer("judge:demo", Inference.model_validate({"judges": {"demo": entry}}))


def test_another_prompt_is_another_q_model(tmp_path: Path) -> None:
    file = tmp_path / "judge.txt"
    file.write_text("Prefer short turns.")
    own = inference("http://127.0.0.1:1/v1", prompt_file=str(file))
    before = sha256_of_q_model("judge:demo", own)
    file.write_text("Prefer long turns.")
    assert sha256_of_q_model("judge:demo", own) != before != ""


class Cycling:
    """Draws all actions of a corridor in turn."""

    name = "cycling"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [[Candidate(Message("assistant", f"Action: {ACTIONS[k % 3]}"), 3) for k in range(r.n)] for r in requests]


def evaluate(output: Path, url: str, **changes: Any) -> Results:
    values = {
        "output": output,
        "environment": CorridorConfig(count=3),
        "methods": ("random-of-m", "q-guided"),
        "qnet": "judge:demo",
        "inference": inference(url, **changes.pop("judge", {})),
        "seeds": (0,),
        "max_steps": 3,
    }
    config = EvaluateConfig.model_validate(values | changes)
    return run_evaluate(config, policy=Cycling(), console=Console(quiet=True))


def test_an_evaluation_with_a_judge_states_what_it_cost(
    address: Address, upstream: FakeUpstream, tmp_path: Path
) -> None:
    results = evaluate(tmp_path, address[1])
    assert results.complete
    assert results.judge_usage is not None
    assert results.judge_usage.requests == len(upstream.asked) > 0
    assert results.judge_usage.cost is not None
    assert results.config["qnet_sha256"]


def test_a_method_that_compares_states_refuses_a_ranking(address: Address, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adaptive .*mode = 'score'"):
        evaluate(tmp_path, address[1], judge={"mode": "rank"}, methods=("adaptive",))


@pytest.mark.parametrize("mode", ["score", "rank"])
def test_choice_regret_of_a_judge(address: Address, upstream: FakeUpstream, tmp_path: Path, mode: str) -> None:
    groups = tmp_path / "groups.jsonl"
    groups.write_text(GROUP.model_dump_json() + "\n")
    config = ChoiceRegretConfig(
        groups=(groups,), output=tmp_path / mode, qnet="judge:demo", inference=inference(address[1], mode=mode)
    )
    figures = run_choice_regret(config)
    assert len(upstream.asked) == (2 if mode == "score" else 1)
    metrics = json.loads((tmp_path / mode / "metrics.jsonl").read_text())
    assert metrics["judge_usage"]["requests"] == len(upstream.asked)
    assert figures == {name: metrics[name] for name in figures}
