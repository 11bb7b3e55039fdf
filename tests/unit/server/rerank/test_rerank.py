"""POST /v1/rerank, /v2/rerank and /score: foreign shapes, our Q."""

import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.rerank.jina_cohere import best_first, relevance
from tests.unit.server.conftest import FAKES, Serve

QUERY = "You see a desk. Your task is to: take the mug."
DOCUMENTS = ["Action: look", "Action: go to desk 1", "Action: dance", "Action: inventory"]
Q_VALUES = [0.5, 0.75, 0.0, 0.25]
BEST_FIRST = [1, 0, 3, 2]
MESSAGES = [
    {"role": "user", "content": QUERY},
    {"role": "assistant", "content": "Action: look"},
    {"role": "user", "content": "you see a mug"},
]
SHAPES = ["/v1/rerank", "/v2/rerank", "/score"]


def post(client: TestClient, path: str, **body: Any) -> Any:
    """An answer that was given, as JSON."""
    given = {"documents": DOCUMENTS} | body
    if "messages" not in given:
        given.setdefault("queries" if path == "/score" else "query", QUERY)
    response = client.post(path, json=given)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: TestClient, path: str, body: dict[str, Any]) -> tuple[int, str, str]:
    response = client.post(path, json=body)
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


def test_jinas_shape_is_sorted_by_q(client: TestClient) -> None:
    answer = post(client, "/v1/rerank", model="demo")
    assert set(answer) == {"id", "object", "model", "results", "usage"}
    assert answer["model"] == "demo@0"
    assert [row["index"] for row in answer["results"]] == BEST_FIRST
    assert [row["q_value"] for row in answer["results"]] == sorted(Q_VALUES, reverse=True)
    assert all(set(r) == {"index", "relevance_score", "q_value"} for r in answer["results"])
    words = len(QUERY.split()) + sum(len(text.split()) for text in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": words, "total_tokens": words, "cached_tokens": 0}


def test_jinas_documents_may_be_objects_and_come_back_if_asked_for(client: TestClient) -> None:
    objects = [{"text": text} for text in DOCUMENTS]
    answer = post(client, "/v1/rerank", documents=objects, return_documents=True, top_n=2)
    assert [row["document"]["text"] for row in answer["results"]] == [DOCUMENTS[1], DOCUMENTS[0]]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_coheres_rank_fields_are_read_in_their_order(client: TestClient, path: str) -> None:
    objects = [{"id": n, "thought": "x", "action": text} for n, text in enumerate(DOCUMENTS)]
    answer = post(client, path, documents=objects, rank_fields=["action"])
    assert [row["index"] for row in answer["results"]] == BEST_FIRST
    plain = [f"x\n{text}\n{n}" for n, text in enumerate(DOCUMENTS)]
    ordered = post(client, path, documents=objects, rank_fields=["thought", "action", "id"])["results"]
    expected = post(client, path, documents=plain)["results"]
    assert [row["q_value"] for row in ordered] == [row["q_value"] for row in expected]


def test_a_documents_other_fields_come_back(client: TestClient) -> None:
    objects = [{"id": n, "action": text} for n, text in enumerate(DOCUMENTS)]
    answer = post(client, "/v1/rerank", documents=objects, rank_fields=["action"], return_documents=True)
    assert [row["document"] for row in answer["results"]] == [objects[index] for index in BEST_FIRST]


def test_a_document_without_any_of_the_fields_is_refused(client: TestClient) -> None:
    body = {"query": QUERY, "documents": [DOCUMENTS[0], {"title": "go"}]}
    for more, named in (({}, "text"), ({"rank_fields": ["body", "name"]}, "body, name")):
        response = client.post("/v2/rerank", json=body | more)
        assert response.status_code == 400
        assert f"documents[1] has no text in {named}" in response.json()["error"]["message"]


def test_coheres_shape_has_an_id_and_meta(client: TestClient) -> None:
    answer = post(client, "/v2/rerank", top_n=3)
    assert [row["index"] for row in answer["results"]] == BEST_FIRST[:3]
    assert answer["id"]
    assert answer["model"] == "demo@0"
    meta = answer["meta"]
    assert (meta["api_version"], meta["billed_units"]) == ({"version": "2"}, {"search_units": 1})
    assert "warnings" not in meta


def test_a_limit_on_documents_is_not_obeyed_in_silence(client: TestClient) -> None:
    answer = post(client, "/v2/rerank", max_tokens_per_doc=1)
    assert answer["meta"]["warnings"] == [
        "max_tokens_per_doc was ignored: documents are actions and are never truncated"
    ]


def test_relevance_is_the_logistic_function_of_q(client: TestClient) -> None:
    for row in post(client, "/v2/rerank")["results"]:
        assert row["relevance_score"] == pytest.approx(1 / (1 + math.exp(-row["q_value"])))


def test_relevance_stays_in_range_and_in_order_for_any_q() -> None:
    q_values = [-1e308, -800.0, -3.0, -1e-9, 0.0, 1e-9, 3.0, 800.0, 1e308]
    scores = [relevance(q) for q in q_values]
    assert scores == sorted(scores)
    assert (scores[0], scores[4], scores[-1]) == (0.0, 0.5, 1.0)


def test_equal_q_values_keep_the_callers_order() -> None:
    assert best_first([0.0, 1.0, 0.0, 1.0]) == [1, 3, 0, 2]


def test_vllms_shape_holds_raw_q_in_the_callers_order(client: TestClient) -> None:
    answer = post(client, "/score")
    assert (answer["object"], answer["model"]) == ("list", "demo@0")
    assert answer["data"] == [{"index": i, "object": "score", "score": q} for i, q in enumerate(Q_VALUES)]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 0
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "body",
    [
        {"text_1": QUERY, "text_2": DOCUMENTS},
        {"queries": [QUERY], "items": DOCUMENTS},
        {"queries": [QUERY] * 4, "documents": DOCUMENTS},
    ],
)
def test_vllms_names_and_pairings_mean_the_same(client: TestClient, path: str, body: Any) -> None:
    answer = client.post(path, json=body).json()
    assert answer["object"] == "list"
    assert [row["score"] for row in answer["data"]] == Q_VALUES


def test_the_two_shapes_of_v1_score_are_told_apart_by_their_fields(client: TestClient) -> None:
    ours = client.post("/v1/score", json={"messages": MESSAGES, "candidates": DOCUMENTS}).json()
    theirs = client.post("/v1/score", json={"messages": MESSAGES, "documents": DOCUMENTS}).json()
    assert [row["q_value"] for row in ours["scores"]] == Q_VALUES
    assert [row["score"] for row in theirs["data"]] == Q_VALUES


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"candidates": DOCUMENTS}, "body.messages: Field required"),
        ({"text_1": QUERY}, "body.messages: Field required"),
        ({"text_1": QUERY, "text_2": 3}, "body.text_2: "),
        ({"text_2": DOCUMENTS}, "give either queries (or text_1 or data_1) or messages"),
        ([], "body: "),
    ],
)
def test_a_defect_is_said_of_the_shape_that_was_meant(client: TestClient, body: Any, said: str) -> None:
    status, code, message = refusal(client, "/v1/score", body)
    assert (status, code) == (422, "malformed_body")
    assert said in message


def test_the_document_has_every_name_of_vllms(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    pairs = schemas["PairScoreRequest"]
    documents = ("documents", "items", "text_2", "data_2")
    assert {"queries", "text_1", "data_1", *documents} <= set(pairs["properties"])
    assert pairs["anyOf"] == [{"required": [n]} for n in documents]


def test_vllms_bare_rerank_is_jinas(client: TestClient) -> None:
    bare, versioned = post(client, "/rerank"), post(client, "/v1/rerank")
    assert bare.pop("id") != versioned.pop("id")
    assert bare == versioned


def test_one_text_against_one(client: TestClient) -> None:
    answer = client.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS[1]}).json()
    assert [row["score"] for row in answer["data"]] == [0.75]


def test_each_pair_is_scored_after_its_own_query(tiny_client: TestClient) -> None:
    queries = ["you see a desk", "you see a mug", "you see a desk"]
    documents = ["go to desk", "go to desk", "take mug"]
    both = {"queries": queries, "documents": documents}
    pairs = [row["score"] for row in tiny_client.post("/score", json=both).json()["data"]]
    alone = [
        tiny_client.post("/score", json={"text_1": q, "text_2": d}).json()["data"][0]["score"]
        for q, d in zip(queries, documents, strict=True)
    ]
    assert pairs == pytest.approx(alone, abs=1e-5)
    assert abs(pairs[0] - pairs[1]) > 1e-6


@pytest.mark.parametrize("path", SHAPES)
def test_the_whole_history_may_stand_in_the_querys_place(tiny_client: TestClient, path: str) -> None:
    candidates = ["go to desk", "take mug", "open shelf"]
    ours = {"messages": MESSAGES, "candidates": candidates}
    expected = [s["q_value"] for s in tiny_client.post("/v1/score", json=ours).json()["scores"]]
    answer = post(tiny_client, path, messages=MESSAGES, documents=candidates)
    if path == "/score":
        q_values = [row["score"] for row in answer["data"]]
    else:
        q_of = {row["index"]: row["q_value"] for row in answer["results"]}
        q_values = [q_of[i] for i in range(3)]
    assert q_values == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("path", SHAPES)
def test_repeated_documents_get_equal_scores(client: TestClient, path: str) -> None:
    answer = post(client, path, documents=[DOCUMENTS[1], DOCUMENTS[0], DOCUMENTS[1]])
    rows = answer["data"] if path == "/score" else answer["results"]
    assert sorted(row.get("q_value", row.get("score")) for row in rows) == [0.5, 0.75, 0.75]


@pytest.mark.parametrize("path", SHAPES)
def test_parameters_that_only_their_servers_know_are_passed_over(client: TestClient, path: str) -> None:
    assert post(client, path, truncation=True, priority=3, user="me")


@pytest.mark.parametrize("path", SHAPES)
@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([], "there are 0 documents; send 1 to 8 (QGUIDE_MAX_CANDIDATES)"),
        (["x"] * 9, "there are 9 documents; send 1 to 8 (QGUIDE_MAX_CANDIDATES)"),
        (["x", " "], "documents[1] is empty; remove it"),
    ],
)
def test_documents_that_cannot_be_scored_are_explained(
    client: TestClient, path: str, documents: list[str], said: str
) -> None:
    body = {"query": QUERY, "queries": QUERY, "documents": documents}
    assert refusal(client, path, body) == (400, "invalid_candidates", said)


@pytest.mark.parametrize("path", SHAPES)
def test_an_empty_query_is_no_task(client: TestClient, path: str) -> None:
    body = {"query": " ", "queries": " ", "documents": DOCUMENTS}
    said = "messages[0] (user) is empty; remove it"
    assert refusal(client, path, body) == (400, "malformed_history", said)


@pytest.mark.parametrize("path", SHAPES)
@pytest.mark.parametrize("given", [{}, {"query": "a", "queries": "a", "messages": MESSAGES}])
def test_query_and_messages_exclude_each_other(client: TestClient, path: str, given: dict[str, Any]) -> None:
    status, code, said = refusal(client, path, given | {"documents": DOCUMENTS})
    assert (status, code) == (422, "malformed_body")
    assert "give either quer" in said


@pytest.mark.parametrize("path", SHAPES)
def test_an_unknown_model_is_404(client: TestClient, path: str) -> None:
    body = {"query": "a", "queries": "a", "documents": ["b"], "model": "rerank-v9"}
    status, code, said = refusal(client, path, body)
    assert (status, code) == (404, "unknown_model")
    assert "this server has default, demo, other" in said


def test_an_alias_gives_a_foreign_models_name_a_meaning(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"aliases": {"rerank-v3.5": "other"}}))
    assert post(client, "/v2/rerank", model="rerank-v3.5")["model"] == "other@0"


@pytest.mark.parametrize("queries", [[], [QUERY] * 3])
def test_queries_that_pair_with_no_document_are_refused(client: TestClient, queries: list[str]) -> None:
    status, code, said = refusal(client, "/score", {"queries": queries, "documents": DOCUMENTS[:2]})
    assert (status, code) == (400, "invalid_candidates")
    assert said.startswith(f"{len(queries)} queries and 2 documents cannot be paired")


@pytest.mark.parametrize("top_n", [0, -1])
def test_top_n_is_at_least_one(client: TestClient, top_n: int) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": top_n}
    assert refusal(client, "/v2/rerank", body)[:2] == (422, "malformed_body")
