"""Rerank, score, classify and pooling requests as other servers' clients send them."""

from functools import partial
from threading import current_thread
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import Texts
from qguide.server.rerank.jina_cohere import relevance
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import FAKES, Serve

QUERY = "You see a desk. Your task is to: take the mug."
DOCUMENTS = ["Action: look", "Action: go to desk 1", "Action: dance", "Action: inventory"]
Q_VALUES = [0.5, 0.75, 0.0, 0.25]
BEST_FIRST = [1, 0, 3, 2]
CONVERSATION = [
    {"role": "user", "content": QUERY},
    {"role": "assistant", "content": "Action: look"},
    {"role": "user", "content": "you see a mug"},
    {"role": "assistant", "content": "Action: go to desk 1"},
]


def post(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.parametrize("raw", [False, True])
def test_tei_gets_a_plain_list_sorted_by_score(client: TestClient, path: str, raw: bool) -> None:
    rows = post(client, path, query=QUERY, texts=DOCUMENTS, raw_scores=raw, return_text=True)
    expected = [Q_VALUES[i] if raw else relevance(Q_VALUES[i]) for i in BEST_FIRST]
    assert [row["index"] for row in rows] == BEST_FIRST
    assert [row["score"] for row in rows] == pytest.approx(expected)
    assert [row["text"] for row in rows] == [DOCUMENTS[i] for i in BEST_FIRST]
    bare = post(client, path, query=QUERY, texts=DOCUMENTS, truncate=True)
    assert all(set(row) == {"index", "score"} for row in bare)


def test_voyages_shape_has_data_and_obeys_top_k(client: TestClient) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "model": "demo", "truncation": True}
    answer = post(client, "/v1/rerank", **body, top_k=2)
    assert (answer["object"], answer["model"]) == ("list", "demo@0")
    assert [row["index"] for row in answer["data"]] == BEST_FIRST[:2]
    assert answer["usage"]["total_tokens"] > 0
    everything = post(client, "/v1/rerank", **body, top_k=None, return_documents=True)
    assert [row["document"] for row in everything["data"]] == [DOCUMENTS[i] for i in BEST_FIRST]


def test_infinitys_documents_are_texts_and_its_scores_raw_if_wanted(client: TestClient) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "return_documents": True}
    answer = post(client, "/rerank", **body, raw_scores=True)
    assert answer["object"] == "rerank"
    assert [row["relevance_score"] for row in answer["results"]] == [0.75, 0.5, 0.25, 0.0]
    assert [row["document"] for row in answer["results"]] == [DOCUMENTS[i] for i in BEST_FIRST]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0


def test_vllms_activation_is_obeyed(client: TestClient) -> None:
    raw = {"query": QUERY, "documents": DOCUMENTS, "use_activation": False}
    rows = post(client, "/rerank", **raw)["results"]
    assert [row["relevance_score"] for row in rows] == [0.75, 0.5, 0.25, 0.0]
    pairs = {"data_1": QUERY, "data_2": DOCUMENTS}
    for path in ("/score", "/v1/score"):
        scores = [row["score"] for row in post(client, path, **pairs)["data"]]
        assert scores == Q_VALUES
    mapped = post(client, "/score", **pairs, use_activation=True)["data"]
    assert [row["score"] for row in mapped] == pytest.approx([relevance(q) for q in Q_VALUES])


@pytest.mark.parametrize("flag", ["use_activation", "activation"])
def test_classify_and_pooling_score_the_last_action(client: TestClient, flag: str) -> None:
    for given, expected in (({flag: False}, 0.75), ({flag: True}, relevance(0.75))):
        body = {"model": "demo", "messages": CONVERSATION} | given
        classified = post(client, "/classify", **body)
        [row] = classified["data"]
        assert (row["label"], row["num_classes"]) == ("LABEL_0", 1)
        assert row["probs"] == pytest.approx([expected])
        pooled = post(client, "/pooling", **body)
        assert (pooled["data"][0]["object"], pooled["model"]) == ("pooling", "demo@0")
        assert pooled["data"][0]["data"] == pytest.approx([expected])
        assert pooled["usage"]["prompt_tokens"] > 0
    assert post(client, "/classify", messages=CONVERSATION)["data"][0]["probs"][0] < 0.7


@pytest.mark.parametrize(
    ("answer", "threshold", "escalates"), [(0, 0.6, True), (1, 0.6, False), (1, 0.75, False), (2, 0.1, True)]
)
def test_a_semantic_router_escalates_below_its_threshold(
    client: TestClient, answer: int, threshold: float, escalates: bool
) -> None:
    body = {"question": QUERY, "answer": DOCUMENTS[answer], "threshold": threshold}
    for context in ({}, {"context": "One room."}):
        verdict = post(client, "/verify", **body, **context)
        assert verdict == {
            "confidence": Q_VALUES[answer],
            "should_escalate": escalates,
            "threshold": threshold,
            "out_of_domain": None,
            "q_value": Q_VALUES[answer],
            "model": "demo@0",
        }
    assert client.get("/health").status_code == 200  # which the router asks before


def test_no_verdict_is_made_of_values_that_only_rank(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"q_models": {"rule": "votes"}}))
    refused = client.post("/verify", json={"question": QUERY, "answer": DOCUMENTS[0]})
    assert refused.status_code == 400, refused.text
    assert "ranks the candidates of one step" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"input": "a text"}, 422, "a Q model reads a conversation; send messages"),
        ({"messages": CONVERSATION[:1]}, 400, "no message has the role 'assistant'"),
        ({"messages": CONVERSATION[:3]}, 400, "observation"),
        ({"messages": CONVERSATION[1:2]}, 400, "messages is empty"),
    ],
)
@pytest.mark.parametrize("path", ["/classify", "/pooling"])
def test_a_conversation_without_a_last_action_is_explained(
    client: TestClient, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    refused = client.post(path, json=body)
    assert refused.status_code == status, refused.text
    assert said in refused.json()["error"]["message"]


def test_unknown_names_are_the_default_where_the_operator_says_so(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"unknown_models": "default"}))
    for path, body in (
        ("/v2/rerank", {"query": QUERY, "documents": DOCUMENTS}),
        ("/rerank", {"query": QUERY, "texts": DOCUMENTS}),
        ("/score", {"data_1": QUERY, "data_2": DOCUMENTS}),
        ("/pooling", {"messages": CONVERSATION}),
        ("/v1/chat/completions", {"messages": CONVERSATION[:1]}),
    ):
        answer = post(client, path, model="text-ranker-9", **body)
        assert isinstance(answer, list) or answer["model"] in ("demo@0", "scripted")
    ours = {"messages": CONVERSATION[:1], "candidates": DOCUMENTS, "q_model": "text-ranker-9"}
    assert client.post("/v1/score", json=ours).status_code == 404, "a typo in an option of ours"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_a_missing_field_is_named_without_the_shape(client: TestClient, path: str) -> None:
    refused = client.post(path, json={"texts": DOCUMENTS}).json()["error"]
    assert refused["message"].startswith("body.query: Field required")


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.parametrize("own", [{"top_n": 1}, {"raw_scores": False}, {"use_activation": True}])
def test_jinas_fields_are_obeyed_beside_voyages_truncation(client: TestClient, path: str, own: dict[str, Any]) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "truncation": True} | own
    rows = post(client, path, **body)["results"]
    assert [row["index"] for row in rows] == BEST_FIRST[: own.get("top_n")]
    history = {"messages": CONVERSATION[:1], "documents": DOCUMENTS, "truncation": True}
    assert post(client, path, **history)["results"][0]["index"] == BEST_FIRST[0]
    theirs = post(client, path, query=QUERY, documents=DOCUMENTS, truncation=True, top_n=None)
    assert theirs["object"] == "list"


def test_tei_s_info_tells_of_the_default_q_model_and_the_limits(client: TestClient) -> None:
    told = client.get("/info").json()
    assert (told["model_id"], told["auto_truncate"]) == ("demo@0", False)
    assert told["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    assert told["max_client_batch_size"] == 8


def test_a_q_model_without_a_tokenizer_splits_no_text(client: TestClient) -> None:
    refused = client.post("/tokenize", json={"inputs": "a mug"})
    assert refused.status_code == 400
    assert "'demo@0' has no tokenizer in this server" in refused.json()["error"]["message"]


def test_tei_s_tokens_say_where_they_stand_by_bytes(serve: Serve) -> None:
    client = serve(Settings(q_models={"q": "embedded"}))
    text = "Öl on desk 1"
    (tokens,) = post(client, "/tokenize", inputs=text, add_special_tokens=False)
    assert all(set(token) == {"id", "text", "special", "start", "stop"} for token in tokens)
    assert not any(token["special"] for token in tokens)
    whole = text.encode()
    for token in tokens:
        assert whole[token["start"] : token["stop"]].decode() == token["text"]
    assert tokens[-1]["stop"] == len(whole)
    pair = post(client, "/tokenize", inputs=[text, "desk 1"], model="q")
    assert len(pair) == 2
    assert client.get("/info").json()["max_input_length"] == 2048


def test_tokens_are_written_in_the_tokenizers_thread(serve: Serve) -> None:
    client = serve(Settings(q_models={"q": "embedded"}))
    models: Models = cast("Any", client.app).state.models

    def write(texts: Texts) -> tuple[str, int]:
        return current_thread().name, sum(len(list(pieces)) for pieces in texts)

    assert client.portal is not None
    with models.q_models.hold("q") as held:
        split = partial(held.model.pieces, ["a mug", "desk 1"], special=False, write=write)
        found = client.portal.call(split)
    assert found is not None
    assert found[0].startswith("qguide-tokenizer")
    assert found[1] >= 2


@pytest.mark.parametrize(
    ("inputs", "reason"), [([], "send 1 to 8"), (["a"] * 9, "there are 9 inputs"), ("a" * 2000, "2,000 bytes")]
)
def test_too_much_to_tokenize_is_refused(serve: Serve, inputs: Any, reason: str) -> None:
    client = serve(FAKES.model_copy(update={"max_text_bytes": 1000}))
    refused = client.post("/tokenize", json={"inputs": inputs})
    assert refused.status_code == 400
    assert reason in refused.json()["error"]["message"]
