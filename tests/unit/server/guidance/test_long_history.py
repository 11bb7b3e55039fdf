"""Histories longer than the Q model takes: refused, unguided, or read through a window."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.models.remote_trunk import load_remote_trunk
from qguide.qnet.models.trunk_export import export_trunk
from qguide.qnet.records import OfferRow
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.remote_models import Upstream, VllmTrunk
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings
from tests.support.scripted_vllm import scripted_vllm
from tests.support.tiny_models import CONTEXT, WORDS, save_classifier, save_implicit_q, save_policy, save_qnet
from tests.unit.server.conftest import Serve

Body = dict[str, Any]
TASK: Body = {"role": "user", "content": "go to desk take mug"}
SAW = " ".join(WORDS[:8])
ACT: Body = {"num_candidates": 3, "greedy_candidate": False, "long_history": "window"}
CALL: Body = {"id": "c", "type": "function", "function": {"name": "go", "arguments": '{"to": "desk"}'}}
WINDOW = {"read_messages", "read_tokens", "left_out_messages", "left_out_tokens"}


def turns(count: int) -> list[Body]:
    """So many actions and their observations behind the task."""
    said = [
        message
        for number in range(count)
        for message in ({"role": "assistant", "content": f"go to desk {number}"}, {"role": "user", "content": SAW})
    ]
    return [TASK, *said]


def act(client: TestClient, messages: list[Body], **more: Any) -> Body:
    response = client.post("/v1/act", json=ACT | {"messages": messages} | more)
    assert response.status_code == 200, response.text
    answer: Body = response.json()
    return answer


def refused(client: TestClient, messages: list[Body], **more: Any) -> str:
    response = client.post("/v1/act", json=ACT | {"messages": messages} | more)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "history_too_long"
    return str(response.json()["error"]["message"])


def _local(make: Callable[[Path], Path]) -> Callable[[Path], Settings]:
    return lambda folder: Settings(policy=SCRIPTED, q_models={"tiny": str(make(folder))})


def _qnet(folder: Path) -> Path:
    return save_qnet(folder / "q", save_policy(folder / "policy"))


def _implicit(folder: Path) -> Path:
    policy, reference = save_policy(folder / "p", seed=1), save_policy(folder / "r", seed=2)
    return save_implicit_q(folder / "q", policy, reference)


SCORERS = {
    "qnet": _local(_qnet),
    "implicit-q": _local(_implicit),
    "classifier": _local(lambda folder: save_classifier(folder / "q")),
}


@pytest.fixture
def tiny(serve: Serve, tmp_path: Path) -> TestClient:
    return serve(SCORERS["qnet"](tmp_path))


@pytest.mark.parametrize("kind", SCORERS)
def test_every_scorer_reads_the_task_and_the_newest_turns(serve: Serve, tmp_path: Path, kind: str) -> None:
    client = serve(SCORERS[kind](tmp_path))
    answer = act(client, turns(40))
    assert answer["guided"] is True
    window = answer["window"]
    assert set(window) == WINDOW
    assert window["read_messages"] + window["left_out_messages"] == 81
    assert window["left_out_tokens"] > 0
    assert "left out" in answer["warnings"][0]
    read = window["read_messages"]
    shorter = [TASK, *turns(40)[-(read - 1) :]]
    body = {"messages": shorter, "candidates": [c["message"] for c in answer["candidates"]]}
    scores = client.post("/v1/score", json=body).raise_for_status().json()
    assert "window" not in scores
    expected = [score["q_value"] for score in scores["scores"]]
    assert [c["q_value"] for c in answer["candidates"]] == pytest.approx(expected, abs=1e-5)


def test_a_trunk_on_another_server_reads_the_same_window(serve: Serve, tmp_path: Path) -> None:
    saved = _qnet(tmp_path)
    export_trunk(saved, tmp_path / "trunk")
    name = load_remote_trunk(saved).trunk_name
    with scripted_vllm(tmp_path / "trunk", model=name, context=CONTEXT) as vllm:
        trunk = VllmTrunk.model_validate({"url": vllm.url, "api_key": "key"})
        settings = Settings(
            policy=SCRIPTED, q_models={"there@v1": str(saved), "here@v1": str(saved)}, vllm_trunks={"there": trunk}
        )
        client = serve(settings)
        there, here = (act(client, turns(40), q_model=name) for name in ("there", "here"))
    assert there["window"] == here["window"]
    expected = [c["q_value"] for c in here["candidates"]]
    assert [c["q_value"] for c in there["candidates"]] == pytest.approx(expected, abs=1e-4)


def judged(url: str, **judge: Any) -> Settings:
    upstream = Upstream.model_validate({"url": url, "model": "fake-1", "retries": 0})
    return Settings(
        policy="demo",
        upstreams={"demo": upstream},
        q_models={"q": "judge:demo"},
        judges={"q": JudgeSettings.model_validate(judge)},
        long_history="window",
    )


def test_a_judge_with_a_context_is_asked_about_a_window(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(judged(address[1], context=800))
    answer = act(client, turns(40), long_history=None)
    assert answer["window"]["left_out_messages"] > 0
    questions = [
        body["messages"][1]["content"] for body in upstream.asked if "The proposal:" in body["messages"][-1]["content"]
    ]
    assert len(questions) == 3
    assert all(TASK["content"] in question for question in questions)
    assert all('"go to desk 39"' in question for question in questions)
    assert not any('"go to desk 1"' in question for question in questions)


def test_a_judge_without_a_context_says_what_is_missing(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault, upstream.faults_after = "context", 1
    client = serve(judged(address[1]))
    said = refused(client, turns(2), fallback="error")
    assert "give a judge a `context` in QGUIDE_JUDGES" in said


def test_too_small_a_part_of_a_history_is_out_of_domain(tiny: TestClient) -> None:
    messages = turns(120)
    answer = act(tiny, messages)
    assert (answer["guided"], answer["reason"]) == (False, "fallback")
    assert "of the history, and guides from 10% on (least_read, QGUIDE_LEAST_READ)" in answer["unguided_reason"]
    assert [candidate["q_value"] for candidate in answer["candidates"]] == [None], "no choice is drawn in vain"
    assert 'qguide_out_of_domain_total{q_model="tiny@' in tiny.get("/metrics").text
    for more in ({"least_read": 0.01}, {"out_of_domain": "guide"}):
        assert act(tiny, messages, **more)["guided"] is True
    assert act(tiny, turns(12), least_read=0.99)["guided"] is False

    item = {"messages": messages, "candidates": ["go to desk", "take mug"], "long_history": "window"}
    scores = tiny.post("/v1/score", json=item).raise_for_status().json()
    window = scores["window"]
    share = window["read_tokens"] / (window["read_tokens"] + window["left_out_tokens"])
    assert scores["unguided_reason"].startswith(f"this Q model reads {share:.1%}")
    assert all(one["q_value"] is not None for one in scores["scores"])


def test_the_record_says_at_which_steps_too_little_was_read(serve: Serve, tmp_path: Path) -> None:
    client = serve(SCORERS["qnet"](tmp_path).model_copy(update={"episodes_dir": tmp_path / "episodes"}))
    asked: list[tuple[int, Body]] = [(12, {}), (120, {}), (120, {"out_of_domain": "guide"}), (120, {"least_read": 0})]
    for number, (count, options) in enumerate(asked):
        act(client, turns(count), episode_id=f"e{number}", **options)
        client.post(f"/v1/episodes/e{number}/outcome", json={"reward": 1.0}).raise_for_status()
    [file] = (tmp_path / "episodes").glob("offers-*.jsonl")
    rows = [OfferRow.model_validate_json(line) for line in file.read_text().splitlines()]
    assert [row.out_of_domain for row in rows] == [False, True, None, None], "nothing is refused, so nothing was asked"


def test_the_window_stays_where_it_begins_until_it_is_full(tiny: TestClient) -> None:
    answers = [act(tiny, turns(count)) for count in range(3, 40)]
    windows = [answer.get("window") for answer in answers]
    first = next(i for i, window in enumerate(windows) if window)
    assert first > 0
    assert all(windows[first:])
    left_out = [window["left_out_messages"] for window in windows[first:] if window]
    moves = sum(before != now for before, now in pairwise(left_out))
    assert left_out == sorted(left_out)
    assert 1 <= moves < len(left_out) // 2
    still = [
        answer for answer, (before, now) in zip(answers[first + 1 :], pairwise(left_out), strict=True) if before == now
    ]
    # Where the window did not move, the step before has left everything but the new turn.
    assert all(answer["usage"]["cached_tokens"] > CONTEXT // 4 for answer in still)


def test_tool_calls_stay_with_their_results(serve: Serve, tmp_path: Path) -> None:
    client = serve(SCORERS["qnet"](tmp_path).model_copy(update={"long_history": "window"}))
    messages = [TASK]
    for number in range(30):
        call = CALL | {"id": f"c{number}"}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": SAW})
    body = {"messages": messages, "qguide": {"num_candidates": 3, "least_read": 0}}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    assert answer["qguide"]["guided"] is True
    assert answer["qguide"]["window"]["left_out_messages"] % 2 == 0


def test_a_stream_and_other_dialects_say_that_a_window_was_read(serve: Serve, tmp_path: Path) -> None:
    client = serve(SCORERS["qnet"](tmp_path).model_copy(update={"long_history": "window"}))
    streamed = client.post("/v1/chat/completions", json={"messages": turns(40), "stream": True}).text
    assert '"left_out_messages"' in streamed
    responses = client.post("/v1/responses", json={"input": turns(40)}).raise_for_status().json()
    body = {"messages": turns(40), "max_tokens": 50, "model": "default"}
    messages = client.post("/v1/messages", json=body).raise_for_status().json()
    for answer in (responses, messages):
        assert set(answer["qguide"]["window"]) == WINDOW


def test_without_a_window_the_error_names_the_three_choices(tiny: TestClient) -> None:
    said = refused(tiny, turns(40), long_history=None)
    assert "QGUIDE_LONG_HISTORY" in said
    assert all(choice in said for choice in ("'window'", "'first'", "'error'"))
    near = refused(tiny, turns(16), long_history="error")  # refused by the scorer itself
    assert "QGUIDE_LONG_HISTORY" in near


def test_the_first_candidate_is_all_that_is_drawn_where_no_q_can_be_had(tiny: TestClient) -> None:
    for wish in ({"long_history": "first"}, {"long_history": None, "fallback": "first"}):
        answer = act(tiny, turns(40), **wish)
        assert (answer["guided"], answer["reason"]) == (False, "fallback")
        assert len(answer["candidates"]) == 1
        assert "QGUIDE_LONG_HISTORY" in answer["unguided_reason"]


LONG_TASK: Body = {"role": "system", "content": " ".join(WORDS * 40)}


def test_a_task_that_does_not_fit_is_an_error_before_anything_is_drawn(
    serve: Serve, tmp_path: Path, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    served = Upstream.model_validate({"url": address[1], "model": "fake-1", "retries": 0})
    settings = SCORERS["qnet"](tmp_path)
    client = serve(settings.model_copy(update={"upstreams": {"demo": served}, "policy": "demo"}))
    said = refused(client, [LONG_TASK, *turns(2)], fallback="error")
    assert "no window of it fits: its task (the system and first user messages) has" in said
    assert "QGUIDE_FALLBACK" in said
    assert upstream.asked == []


@pytest.mark.parametrize("dense", ["你好世界" * 900, "7x9Q_" * 800])
def test_a_dense_text_is_counted_before_anything_is_drawn(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, dense: str
) -> None:
    served = Upstream.model_validate({"url": address[1], "model": "fake-1", "retries": 0})
    client = serve(Settings(policy="demo", upstreams={"demo": served}, q_models={"embedded": EMBEDDED}))
    refused(client, [{"role": "user", "content": dense}], long_history="error")
    assert upstream.asked == []


def test_an_error_names_only_what_its_endpoint_takes(serve: Serve, tmp_path: Path) -> None:
    client = serve(SCORERS["qnet"](tmp_path).model_copy(update={"long_history": "window"}))
    item = {"candidates": ["go to desk", "take mug"], "long_history": "error"}
    query = " ".join(WORDS * 40)
    for path, body, named, unnamed in (
        ("/v1/score", item | {"messages": turns(40)}, "'window'", "'first'"),
        (
            "/v1/score",
            item | {"messages": [LONG_TASK, *turns(2)], "long_history": "window"},
            "a longer context",
            "'first'",
        ),
        ("/v1/rerank", {"query": query, "documents": ["a", "b"]}, "shorten", "long_history"),
        ("/score", {"text_1": query, "text_2": "a"}, "shorten", "long_history"),
    ):
        response = client.post(path, json=body)
        assert response.status_code == 400, response.text
        said = str(response.json()["error"]["message"])
        assert named in said, said
        assert unnamed not in said, said


def test_a_task_that_does_not_fit_is_unguided_where_the_operator_says_so(serve: Serve, tmp_path: Path) -> None:
    more = {"long_history": "window", "fallback": "first"}
    client = serve(SCORERS["qnet"](tmp_path).model_copy(update=more))
    answer = act(client, [LONG_TASK, *turns(2)], long_history=None)
    assert (answer["guided"], len(answer["candidates"])) == (False, 1)
    assert "no window of it fits" in answer["unguided_reason"]


def test_the_callers_own_candidates_are_scored_after_a_window_too(tiny: TestClient) -> None:
    item = {"messages": turns(40), "candidates": ["go to desk", "take mug"]}
    one = tiny.post("/v1/score", json=item | {"long_history": "window"}).raise_for_status().json()
    batch = {"items": [item, item | {"messages": turns(1)}], "long_history": "window"}
    both = tiny.post("/v1/score/batch", json=batch).raise_for_status().json()["items"]
    assert both[0]["window"] == one["window"]
    assert "window" not in both[1]
    response = tiny.post("/v1/score", json=item)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "history_too_long")


def test_a_window_is_counted_and_recorded(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    settings = SCORERS["qnet"](tmp_path).model_copy(update={"episodes_dir": folder})
    client = serve(settings)
    window = act(client, turns(40), episode_id="e")["window"]
    client.post("/v1/episodes/e/outcome", json={"reward": 1}).raise_for_status()
    [file] = folder.glob("offers-*.jsonl")
    row = OfferRow.model_validate_json(file.read_text())
    assert row.left_out_messages == window["left_out_messages"]
    assert row.left_out_tokens == window["left_out_tokens"]
    metrics = client.get("/metrics").text
    assert 'qguide_windows_total{q_model="tiny@' in metrics
    tokens = next(line for line in metrics.splitlines() if line.startswith("qguide_left_out_tokens_total"))
    assert float(tokens.rpartition(" ")[2]) == window["left_out_tokens"]


def test_an_agent_of_an_upstream_gets_a_window_or_the_first_candidate_by_default(
    serve: Serve, tmp_path: Path, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    served = Upstream.model_validate({"url": address[1], "model": "fake-1", "retries": 0})
    settings = SCORERS["qnet"](tmp_path).model_copy(update={"upstreams": {"demo": served}, "policy": "demo"})
    client = serve(settings)
    answer = act(client, turns(40), long_history=None)
    assert (answer["guided"], answer["window"]["left_out_messages"] > 0) == (True, True)
    answer = act(client, [LONG_TASK, *turns(2)], long_history=None)
    assert (answer["guided"], len(answer["candidates"])) == (False, 1)
    assert "no window of it fits" in answer["unguided_reason"]
    strict = serve(settings.model_copy(update={"fallback": "error"}))
    refused(strict, turns(40), long_history=None)
