"""Every error has one shape, a code for programs and a remedy for people."""

from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

import pytest
import structlog
import torch
from fastapi.testclient import TestClient

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.errors import (
    HistoryTooLongError,
    InvalidCandidatesError,
    InvalidRequestError,
    MalformedHistoryError,
    RenderingError,
    ScorerUnavailableError,
    UnknownModelError,
)
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.server.http.error_table import TABLE
from qguide.server.q_models.build import build_runtime
from qguide.server.q_models.registry import Models
from qguide.server.settings.settings import Settings
from tests.support.gated_scorer import GatedScorer
from tests.unit.server.conftest import FAKES, Serve, models_of

USER = {"role": "user", "content": "look"}
AGENT = {"role": "assistant", "content": "Action: look"}
SYSTEM = {"role": "system", "content": "You are in a house."}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": f"call_{k}", "type": "function", "function": {"name": "go", "arguments": "{}"}} for k in (1, 2)
    ],
}
RESULT = {"role": "tool", "content": "you are there", "tool_call_id": "call_1"}
OTHER_RESULT = {"role": "tool", "content": "", "tool_call_id": "call_2"}
DEVELOPER = {"role": "developer", "content": "Be brief."}


class BrokenScorer(ScriptedScorer):
    """Fails with a secret."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Fail."""
        raise ZeroDivisionError("the secret of " + requests[0].history[0].content)


def served(scorer: ScriptedScorer, thread: DeviceThread | None = None) -> Any:
    def build(_: Settings) -> Models:
        return models_of(ScriptedPolicy(), scorer, thread or DeviceThread())

    return build


def act(client: TestClient, messages: object, **more: Any) -> Any:
    return client.post("/v1/act", json={"messages": messages} | more)


def test_special_errors_stand_before_general_ones() -> None:
    kinds = list(TABLE)
    for i, kind in enumerate(kinds):
        assert not any(issubclass(later, kind) for later in kinds[i + 1 :])


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (UnknownModelError, 404),
        (HistoryTooLongError, 400),
        (InvalidCandidatesError, 400),
        (MalformedHistoryError, 400),
        (InvalidRequestError, 400),
        (RenderingError, 400),
        (ScorerUnavailableError, 503),
    ],
)
def test_the_table_says_whose_fault_it_is(kind: Any, status: int) -> None:
    assert TABLE[kind][0] == status


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages is empty; send at least the task"),
        ([USER, AGENT], "the last message has the role 'assistant'"),
        ([SYSTEM], "the last message has the role 'system'"),
        ([USER, AGENT, AGENT, USER], "messages[1] and messages[2] are both the assistant's"),
        ([USER, AGENT, SYSTEM], "the last message has the role 'system'"),
        ([USER, CALLS], "the last message has the role 'assistant'"),
        ([USER, CALLS, USER], "the tool calls 'call_1', 'call_2' have no result"),
        ([USER, CALLS, RESULT], "the tool calls 'call_2' have no result"),
        ([USER, CALLS, RESULT, RESULT], "messages[3] is the result of the tool call 'call_1'"),
        ([USER, AGENT, RESULT], "messages[2] is the result of the tool call 'call_1'"),
        ([RESULT], "messages[0] is the result of the tool call 'call_1'"),
        ([CALLS | {"role": "user"}], "messages[0] (user) has tool_calls, which only an assistant message may have"),
        ([USER | {"tool_call_id": "call_1"}], "messages[0] (user) has a tool_call_id"),
        ([{"role": "user"}], "messages[0] (user) is empty"),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "the user message has a content part of type 'input_audio'; Q models read only text",
        ),
        ([SYSTEM, AGENT, USER], "the first message has the role 'assistant'"),
        ([{"role": "user", "content": "  "}], "messages[0] (user) is empty"),
    ],
)
def test_messages_that_make_no_sense_are_explained(client: TestClient, messages: list[Any], said: str) -> None:
    response = act(client, messages)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "malformed_history"
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "messages",
    [
        [USER, USER],
        [SYSTEM, DEVELOPER, USER],
        [USER, AGENT, SYSTEM, USER, DEVELOPER],
        [USER, CALLS, RESULT, OTHER_RESULT],
        [USER, CALLS, OTHER_RESULT, RESULT, SYSTEM],
        [USER, CALLS, RESULT, OTHER_RESULT, AGENT, USER],
    ],
)
def test_what_real_agents_send_is_a_history(tiny_client: TestClient, messages: list[Any]) -> None:
    response = act(tiny_client, messages, max_tokens=2, num_candidates=2)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("field", "path", "served_names"),
    [("q_model", "/v1/act", "demo, other"), ("policy", "/v1/act", "scripted"), ("q_model", "/v1/score", "demo, other")],
)
def test_an_unknown_model_is_404_and_names_those_served(
    client: TestClient, field: str, path: str, served_names: str
) -> None:
    body: dict[str, Any] = {"messages": [USER], field: "gpt-9"}
    if path == "/v1/score":
        body["candidates"] = ["go"]
    response = client.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "unknown_model")
    assert "gpt-9" in error["message"]
    assert served_names in error["message"]


@pytest.mark.parametrize("more", [{}, {"candidates": ["go"]}])
def test_a_history_over_the_models_context_is_refused(tiny_client: TestClient, more: dict[str, Any]) -> None:
    path = "/v1/score" if more else "/v1/act"
    long = {"role": "user", "content": "go to desk " * 300}
    response = tiny_client.post(path, json={"messages": [long]} | more)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "history_too_long")
    assert "takes 256" in error["message"]
    assert "shorten the history" in error["message"]


def test_more_turns_than_the_operator_allows_are_refused(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"max_history_messages": 2}))
    response = act(client, [USER, AGENT, USER])
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "history_too_long")
    assert "has 3 entries; this server takes 2" in error["message"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_413(serve: Serve, announced: bool) -> None:
    client = serve(FAKES.model_copy(update={"max_body_bytes": 1024}))
    content: Any = b" " * 2000 if announced else iter([b" " * 1000, b" " * 1000])
    response = client.post("/v1/act", content=content)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "body_too_large")
    assert "larger than 1,024 bytes" in error["message"]


@pytest.mark.parametrize(("path", "code"), [("/v2", 404), ("/v1/act", 405)])
def test_a_wrong_address_has_the_same_shape(client: TestClient, path: str, code: int) -> None:
    response = client.get(path)
    assert response.status_code == code
    assert set(response.json()["error"]) == {"code", "message", "request_id"}


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/v1/nope", "not_found", "there is no path '/v1/nope'; /docs lists all paths"),
        ("/v1/embeddings", "not_found", "there is no path '/v1/embeddings'; the operator may pass it on"),
        ("/v1/learning", "not_found", "there is no path '/v1/learning'; a server with QGUIDE_LEARN has it"),
        ("/v1/chat/nope", "not_found", "there is no path '/v1/chat/nope'"),
        ("/v1/models/nope", "model_not_found", "there is no single model 'nope'"),
    ],
)
def test_what_openais_api_lacks_here_is_told_in_openais_format(
    client: TestClient, path: str, code: str, said: str
) -> None:
    response = client.get(path)
    error = response.json()["error"]
    assert response.status_code == 404
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/v1/chat/completions", "paths of the API begin with /v1/ or /v1beta/"),
        ("/x/v1beta/models", "paths of the API begin with /v1/ or /v1beta/"),
        ("/chat/complete", "/docs lists all paths"),
    ],
)
def test_a_wrong_base_url_is_told_where_the_api_is(client: TestClient, path: str, said: str) -> None:
    response = client.post(path, json={})
    assert response.status_code == 404
    assert response.json()["error"]["message"].startswith(f"there is no path '{path}'; {said}")


def test_paths_of_anthropics_and_googles_apis_that_are_not_here_answer_in_their_formats(client: TestClient) -> None:
    batches = client.get("/v1/messages/batches")
    assert (batches.status_code, batches.json()["error"]["type"]) == (404, "not_found_error")
    embedded = client.post("/v1/models/default:batchEmbedContents", json={})
    assert (embedded.status_code, embedded.json()["error"]["code"]) == (405, 405)
    assert "does not take POST; it takes GET" in embedded.json()["error"]["message"]


@pytest.mark.parametrize("order", ["load", "alias"])
def test_an_operators_route_that_is_off_names_its_setting(client: TestClient, order: str) -> None:
    response = client.post(f"/v1/models/{order}", json={})
    assert response.status_code == 405
    assert response.json()["error"]["message"] == (
        f"'/v1/models/{order}' does not take POST; the operator's routes need QGUIDE_ADMIN"
    )


@pytest.mark.parametrize("path", ["/v1/episodes/e1", "/v1/episodes"])
def test_an_agent_that_mistakes_where_an_episode_ends_is_told_where(client: TestClient, path: str) -> None:
    response = client.post(path, json={"reward": 1.0})
    assert response.status_code == 404
    assert "POST /v1/episodes/{episode_id}/outcome ends an episode" in response.json()["error"]["message"]
    assert "ADMIN" not in client.get("/v1/episodes/e1/outcome").text


def test_no_setting_is_named_that_is_on(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"admin": True, "learn": True, "pass_through": {"files": "up"}}))
    for path in ("/v1/learning/nope", "/v1/files/a/b", "/v1/episodes/a/b"):
        assert client.get(path).json()["error"]["message"] == f"there is no path {path!r}; /docs lists all paths"
    for path in ("/v1/learning", "/v1/models/load", "/v1/episodes"):
        refused = client.delete(path)
        assert refused.status_code == 405
        assert "QGUIDE_" not in refused.text
    assert "QGUIDE_PASS_THROUGH" in client.get("/v1/batches").text


def test_a_wrong_method_is_told_the_right_ones(client: TestClient) -> None:
    response = client.get("/v1/act")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/v1/act/", "/v1/models/", "/docs/", "/healthz/"])
def test_no_address_is_mended_by_a_redirect(client: TestClient, path: str) -> None:
    """It would be built from the Host header, which the caller chooses."""
    response = client.get(path, follow_redirects=False)
    assert response.status_code in (404, 405)
    assert "location" not in response.headers


def test_an_unforeseen_failure_tells_nothing_but_its_id(serve: Serve) -> None:
    client = serve(build=served(BrokenScorer({})))
    # Captured, because structlog's renderer for terminals takes seconds for a traceback.
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logged:
        response = client.post("/v1/act", json={"messages": [USER]}, headers={"X-Request-ID": "find-me"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "find-me"
    assert response.json()["error"]["code"] == "internal_error"
    assert response.json()["error"]["request_id"] == "find-me"
    assert "secret" not in response.text
    assert "ZeroDivision" not in response.text
    (failure,) = (line for line in logged if line["event"] == "request_failed")
    assert failure["request_id"] == "find-me"
    assert isinstance(failure["exc_info"], ZeroDivisionError)
    failures = 'qguide_requests_total{route="/v1/act",status="500"} 1.0'
    assert failures in client.get("/metrics").text


def test_a_dead_device_is_503_and_says_when_to_come_back(serve: Serve) -> None:
    thread = DeviceThread()
    client = serve(build=served(ScriptedScorer({}), thread))
    assert client.get("/readyz").status_code == 200
    thread.close()
    response = act(client, [USER])
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["code"] == "scorer_unavailable"
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 503  # only another process helps


class LostScorer(ScriptedScorer):
    """On a device that is of no more use."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Fail as CUDA does."""
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lost_device_is_a_dead_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: LostScorer({}).score([]))
    client = serve(build=served(LostScorer({}), build_runtime(FAKES).thread))
    assert client.get("/healthz").status_code == 200
    response = act(client, [USER])
    assert (response.status_code, response.json()["error"]["code"]) == (503, "scorer_unavailable")
    patience = monotonic() + 60
    while client.get("/healthz").status_code == 200 and monotonic() < patience:
        sleep(0.01)
    assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [503, 503]


def test_a_decision_that_takes_too_long_is_503(serve: Serve) -> None:
    scorer = GatedScorer()
    client = serve(FAKES.model_copy(update={"timeout_s": 1.0}), served(scorer))
    try:
        response = act(client, [USER])
    finally:
        scorer.gate.set()
    assert response.status_code == 503
    error = response.json()["error"]
    assert error["code"] == "deadline_exceeded"
    assert "within 1 s, candidates were still being scored" in error["message"]
    assert act(client, [USER]).status_code == 200


@pytest.mark.parametrize("wanted_s", ["0.05", "30"])
def test_a_caller_may_want_an_answer_sooner_but_not_later(serve: Serve, wanted_s: str) -> None:
    scorer = GatedScorer()
    client = serve(FAKES.model_copy(update={"timeout_s": 0.1}), served(scorer))
    body = {"messages": [USER], "candidates": ["a", "b"]}
    headers = {"X-QGuide-Timeout-S": wanted_s}
    try:
        response = client.post("/v1/score", json=body, headers=headers)
    finally:
        scorer.gate.set()
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    said = f"no answer within {min(float(wanted_s), 0.1)} s, candidates were still being scored"
    assert said in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("wanted_s", ["0", "-1", "nan", "inf", "soon"])
def test_a_deadline_is_a_number_of_seconds(client: TestClient, wanted_s: str) -> None:
    body = {"messages": [USER], "candidates": ["a", "b"]}
    response = client.post("/v1/score", json=body, headers={"X-QGuide-Timeout-S": wanted_s})
    assert response.status_code == 422
    assert "X-QGuide-Timeout-S: " in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "é" * 51}], "candidates": ["a"]},
        {"messages": [USER], "candidates": ["a" * 50, {"role": "assistant", "content": "b" * 51}]},
    ],
)
def test_more_text_than_the_operator_allows_is_refused(serve: Serve, body: Any) -> None:
    client = serve(FAKES.model_copy(update={"max_text_bytes": 100}))
    response = client.post("/v1/score", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "history_too_long")
    assert "bytes of text; this server takes 100" in error["message"]
