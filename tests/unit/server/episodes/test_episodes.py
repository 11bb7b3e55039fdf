"""Episodes over HTTP: previous Q, adaptive M, outcomes and the files that they leave."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from qnet.errors import QGuideError
from qnet.records import OfferRow, TreeRow
from server.access.keys import create_key
from server.settings.settings import Settings
from tests.support import redaction_hooks
from tests.support.redaction_hooks import HANGS, SECRET
from tests.unit.server.conftest import FAKES, Serve
from training.data.runs import read_rows
from training.guidance_report.build import build_report

HOOKS = redaction_hooks.__name__
TASK = {"role": "user", "content": "You see a desk. Your task is to: take the mug."}


def recording(folder: Path, **more: Any) -> Settings:
    return FAKES.model_copy(update={"episodes_dir": folder} | more)


def act(client: TestClient, messages: list[Any], **body: Any) -> Any:
    given = {"messages": messages, "episode_id": "e", "num_candidates": 3} | body
    response = client.post("/v1/act", json=given)
    assert response.status_code == 200, response.text
    return response.json()


def end(client: TestClient, reward: Any = 1.0, *, episode: str = "e", **more: Any) -> Any:
    return client.post(f"/v1/episodes/{episode}/outcome", json={"reward": reward} | more)


def then(messages: list[Any], action: str, observation: str) -> list[Any]:
    return [
        *messages,
        {"role": "assistant", "content": action},
        {"role": "user", "content": observation},
    ]


def play(client: TestClient, *, steps: int = 3, first: Any = (TASK,)) -> list[str]:
    """Take what is chosen; returns the actions."""
    messages, actions = list(first), []
    for step in range(steps):
        actions.append(act(client, messages)["action"])
        messages = then(messages, actions[-1], f"observation {step}")
    return actions


def rows(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_adaptive_m_draws_until_q_rises_over_the_previous_steps(client: TestClient) -> None:
    first = act(client, [TASK], adaptive=True, num_candidates=6)
    assert (len(first["candidates"]), first["draws_saved"]) == (6, 0)
    messages = then([TASK], first["action"], "a desk")
    # The previous Q is 0.75, the highest there is: nothing rises over it.
    assert act(client, messages, adaptive=True, num_candidates=6)["draws_saved"] == 0
    lower = act(client, messages, adaptive=True, num_candidates=6, previous_q=0.6)
    assert (len(lower["candidates"]), lower["draws_saved"]) == (2, 4)
    assert "qguide_draws_saved_total 4.0" in client.get("/metrics").text


def test_a_state_that_is_asked_for_again_is_not_its_own_predecessor(client: TestClient) -> None:
    act(client, [TASK], num_candidates=1, adaptive=True)  # Q 0.5
    messages = then([TASK], "Action: look", "a desk")
    drawn = [act(client, messages, adaptive=True, num_candidates=6) for _ in range(2)]
    assert [len(answer["candidates"]) for answer in drawn] == [2, 2]


def test_another_q_models_value_is_no_previous_q(client: TestClient) -> None:
    assert act(client, [TASK], num_candidates=1, adaptive=True)["candidates"][0]["q_value"] == 0.5
    messages = then([TASK], "Action: look", "a desk")
    answer = act(client, messages, adaptive=True, num_candidates=6, q_model="other")
    assert answer["draws_saved"] == 0


def test_a_choice_that_no_q_was_read_for_is_no_previous_q(client: TestClient) -> None:
    assert act(client, [TASK], num_candidates=1)["candidates"][0]["q_value"] is None
    messages = then([TASK], "Action: look", "a desk")
    assert act(client, messages, adaptive=True, num_candidates=6)["draws_saved"] == 0


def test_adaptive_m_without_anything_to_rise_over_is_refused(client: TestClient) -> None:
    response = client.post("/v1/act", json={"messages": [TASK], "adaptive": True})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert "neither episode_id nor previous_q" in error["message"]


def test_perturbation_without_a_paraphraser_names_the_setting(client: TestClient) -> None:
    response = client.post("/v1/act", json={"messages": [TASK], "perturb": True})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert "set QGUIDE_PARAPHRASER" in error["message"]


def test_perturbed_candidates_are_counted_and_their_cost_is_said(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"paraphraser": "scripted"}))
    answer = act(client, [TASK], perturb=True)
    assert (answer["perturbed"], answer["warnings"]) == (2, [])
    assert answer["usage"]["paraphrase_tokens"] > 0
    assert answer["timings_ms"]["paraphrase"] > 0
    again = act(client, [TASK], perturb=True, adaptive=True)
    assert again["usage"]["paraphrase_tokens"] == 0
    assert act(client, [TASK])["perturbed"] == 0
    misplaced = client.post(
        "/v1/act", json={"messages": [TASK], "perturb": True, "task": "take the cup"}
    )
    assert (misplaced.status_code, misplaced.json()["error"]["code"]) == (400, "invalid_request")


def test_a_paraphraser_is_loaded_as_a_policy_is(serve: Serve, tmp_path: Path) -> None:
    settings = FAKES.model_copy(update={"paraphraser": str(tmp_path / "nowhere")})
    with pytest.raises(QGuideError, match="nowhere"):
        serve(settings)


def test_an_outcome_closes_an_episode_once(client: TestClient) -> None:
    play(client)
    first, again = end(client, 0.5), end(client, 0.5)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert (first.json()["steps"], first.json()["recorded"]) == (3, False)
    assert "QGUIDE_EPISODES_DIR" in first.json()["reason"]
    other = end(client, 1.0)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "episode_closed")
    assert "ended with a reward of 0.5, not 1.0" in other.json()["error"]["message"]


@pytest.mark.parametrize("field", ["action", "observation"])
def test_half_a_character_is_no_text(client: TestClient, field: str) -> None:
    play(client, steps=1)
    response = client.post(
        "/v1/episodes/e/outcome",
        content=json.dumps({"reward": 1, field: "a\ud800"}),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 422
    assert field in response.json()["error"]["message"]


def test_a_key_cannot_push_out_anothers_open_episodes(serve: Serve, tmp_path: Path) -> None:
    ada, eve = ({"X-API-Key": create_key(tmp_path / "keys.json", name)} for name in ("ada", "eve"))
    client = serve(
        recording(tmp_path, keys_file=tmp_path / "keys.json", episodes_memory_bytes=20_000)
    )
    body = {"messages": [TASK], "num_candidates": 1}
    assert client.post("/v1/act", json=body | {"episode_id": "e"}, headers=ada).status_code == 200
    for number in range(100):
        given = body | {"episode_id": f"flood {number}"}
        assert client.post("/v1/act", json=given, headers=eve).status_code == 200
    answers = [
        client.post(f"/v1/episodes/{episode}/outcome", json={"reward": 1}, headers=key).status_code
        for key, episode in ((ada, "e"), (eve, "flood 0"), (eve, "flood 99"))
    ]
    assert answers == [200, 404, 200]


@pytest.mark.parametrize("episode_id", ["a\nb", "\n", "a\x00", "\x7f", "a\r"])
def test_an_id_that_no_address_can_name_is_refused(client: TestClient, episode_id: str) -> None:
    """Otherwise the episode would begin and could never end."""
    user = {"role": "user", "content": "look"}
    for path, more in (("/v1/act", {}), ("/v1/score", {"candidates": ["go"]})):
        body = {"messages": [user], "episode_id": episode_id} | more
        response = client.post(path, json=body)
        assert response.status_code == 422
        assert "episode_id" in response.json()["error"]["message"]


@pytest.mark.parametrize("episode_id", ["a/b", "a b", "a?b#c", "é", "…", "a/outcome", "\u2028"])
def test_every_id_that_begins_an_episode_can_end_it(client: TestClient, episode_id: str) -> None:
    body = {"messages": [{"role": "user", "content": "look"}], "episode_id": episode_id}
    assert client.post("/v1/act", json=body).status_code == 200
    path = f"/v1/episodes/{quote(episode_id, safe='')}/outcome"
    assert client.post(path, json={"reward": 1.0}).status_code == 200


def test_an_outcome_without_an_episode_is_404(client: TestClient) -> None:
    response = end(client, episode="never/seen")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_episode")


@pytest.mark.parametrize("episode_id", ["a\nb", "\n", "a\r\n", "a\x00", "\x85"])
def test_an_id_with_a_control_character_is_unknown_like_any_other(
    client: TestClient, episode_id: str
) -> None:
    """A line break in it missed the route, and its 404 was in another shape."""
    answer = client.post(f"/v1/episodes/{quote(episode_id, safe='')}/outcome", json={"reward": 1.0})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "unknown_episode")
    assert set(error) == {"code", "message", "request_id"}


@pytest.mark.parametrize("reward", ["NaN", "Infinity", '"1"', "true", "null"])
def test_a_reward_is_a_finite_number(client: TestClient, reward: str) -> None:
    play(client, steps=1)
    response = client.post(
        "/v1/episodes/e/outcome",
        content=f'{{"reward": {reward}}}',
        headers={"content-type": "application/json"},
    )
    assert (response.status_code, response.json()["error"]["code"]) == (422, "malformed_body")


@pytest.mark.parametrize("reward", [1e308, -1e308, 100.5, -101])
def test_a_reward_out_of_bounds_is_refused_and_the_episode_stays_open(
    client: TestClient, reward: float
) -> None:
    play(client, steps=1)
    for _ in range(2):
        error = end(client, reward).json()["error"]
        assert error["code"] == "invalid_request"
        assert f"reward is {reward:g}; this server takes -100 to 100" in error["message"]
    assert end(client, -100).status_code == 200
    rewards = [line for line in client.get("/metrics").text.splitlines() if "reward_total{" in line]
    assert {float(line.split()[-1]) for line in rewards} == {0.0, 100.0}


def test_the_bounds_of_rewards_are_the_operators(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"min_reward": 0.0, "max_reward": 1.0}))
    play(client, steps=1)
    assert end(client, 1.5).status_code == end(client, -0.5).status_code == 400
    assert end(client, 1.0).status_code == 200


@pytest.mark.parametrize("path", ["/v1/act", "/v1/score", "/v1/rerank"])
def test_an_ended_episode_takes_no_more_steps(client: TestClient, path: str) -> None:
    play(client)
    end(client)
    body: dict[str, Any] = {"messages": [TASK], "episode_id": "e"}
    body |= {"/v1/score": {"candidates": ["go"]}, "/v1/rerank": {"documents": ["go"]}}.get(path, {})
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "episode_closed")
    assert "another episode_id" in response.json()["error"]["message"]


def test_the_replica_is_named_where_the_operator_named_it(serve: Serve, client: TestClient) -> None:
    assert "x-qguide-replica" not in client.get("/healthz").headers
    named = serve(FAKES.model_copy(update={"replica": "gpu-3"}))
    assert named.get("/healthz").headers["x-qguide-replica"] == "gpu-3"


def test_an_episode_becomes_a_tree_and_its_offers(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    system = {"role": "system", "content": "You are in a house."}
    actions = play(client, first=(system, TASK))
    answer = end(client, 0.5, observation="You won!").json()
    assert (answer["recorded"], answer["reason"]) == (True, None)
    (path,) = tmp_path.glob("trees-*.jsonl")
    (tree,) = read_rows(path, TreeRow)
    assert (tree.system, tree.first_observation) == (system["content"], TASK["content"])
    assert [node.action for node in tree.nodes] == actions
    assert [node.observation for node in tree.nodes] == [
        "observation 0",
        "observation 1",
        "You won!",
    ]
    assert [node.reward for node in tree.nodes] == [0, 0, 0.5]
    assert [node.terminated for node in tree.nodes] == [False, False, True]
    assert {node.source for node in tree.nodes} == {"scripted"}
    assert tree.completion_tokens > 0
    offers = rows(tmp_path, "offers")
    assert [offer["depth"] for offer in offers] == [1, 2, 3]
    assert [offer["taken"] for offer in offers] == actions
    assert {offer["task_id"] for offer in offers} == {tree.task_id}
    assert sorted(c["q_value"] for c in offers[0]["candidates"]) == [0.25, 0.5, 0.75]
    assert {offer["outcome_reward"] for offer in offers} == {0.5}
    assert len({offer["episode"] for offer in offers}) == 1
    assert {offer["reason"] for offer in offers} <= {"highest_q", "tied_highest_q"}
    assert sum(offer["completion_tokens"] for offer in offers) == tree.completion_tokens
    assert all(offer["duration_ms"] > 0 for offer in offers)
    assert [c["count"] for c in offers[0]["candidates"]] == [1, 1, 1]
    (file,) = tmp_path.glob("offers-*.jsonl")
    assert len(list(read_rows(file, OfferRow))) == 3


def test_two_episodes_of_one_task_stay_apart_in_the_records(serve: Serve, tmp_path: Path) -> None:
    for _ in "12":
        client = serve(recording(tmp_path))
        play(client)
        end(client)
    offers = rows(tmp_path, "offers")
    assert len({offer["task_id"] for offer in offers}) == 1
    assert len({offer["episode"] for offer in offers}) == 2


def test_the_guidance_report_reads_what_the_server_recorded(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    for number in range(24):
        task = {"role": "user", "content": f"You see desk {number}. Your task is to: sit."}
        guided = number % 2
        body = {"episode_id": str(number), "num_candidates": 3 if guided else 1}
        act(client, [task], **body)
        end(client, float(guided), episode=str(number))
    report = build_report([tmp_path])
    assert {arm.name.partition("@")[0] for arm in report.arms} == {"one candidate", "demo"}
    assert [arm.episodes for arm in report.arms] == [12, 12]
    assert [comparison.finding for comparison in report.comparisons] == ["helps"]
    assert report.agreement.with_choice == 12
    assert all(arm.tokens.mean and arm.ms.mean for arm in report.arms)


def test_what_the_agent_did_stands_in_the_tree_not_what_was_chosen(
    serve: Serve, tmp_path: Path
) -> None:
    client = serve(recording(tmp_path))
    act(client, [TASK])
    act(client, then([TASK], "Action: my own", "odd"))
    end(client, 0, action="Action: give up", terminated=False)
    ((tree),) = rows(tmp_path, "trees")
    assert [node["action"] for node in tree["nodes"]] == ["Action: my own", "Action: give up"]
    assert {node["source"] for node in tree["nodes"]} == {"agent"}
    assert not tree["nodes"][-1]["terminated"]
    assert [offer["taken"] for offer in rows(tmp_path, "offers")] == [
        "Action: my own",
        "Action: give up",
    ]


def test_the_callers_own_candidates_are_steps_too(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    for body in (["Action: look", "Action: wait"], ["Action: inventory"]):
        given = {"messages": [TASK], "candidates": body, "episode_id": "e"}
        assert client.post("/v1/score", json=given).status_code == 200
    assert end(client).json()["steps"] == 1
    (offer,) = rows(tmp_path, "offers")
    assert [c["content"] for c in offer["candidates"]] == [
        "Action: look",
        "Action: wait",
        "Action: inventory",
    ]
    assert offer["policy"] == "agent"


def test_a_history_that_was_rewritten_is_no_record(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    act(client, [TASK])
    act(client, [{"role": "user", "content": "A summary."}])
    answer = end(client).json()
    assert (answer["recorded"], answer["steps"]) == (False, 2)
    assert answer["reason"] == "the history of step 2 does not continue that of step 1"
    assert rows(tmp_path, "trees") == []


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"episode_max_steps": 2}, "at most 2 steps (QGUIDE_EPISODE_MAX_STEPS)"),
        ({"episode_max_bytes": 1_000}, "and 1,000 bytes (QGUIDE_EPISODE_MAX_BYTES)"),
    ],
)
def test_an_episode_that_is_full_takes_no_step_and_is_recorded(
    serve: Serve, tmp_path: Path, limit: dict[str, int], said: str
) -> None:
    client = serve(recording(tmp_path, **limit))
    play(client, steps=2)
    body = {"messages": then([TASK], "Action: look", "a desk"), "episode_id": "e"}
    for path, more in (("/v1/act", {}), ("/v1/score", {"candidates": ["go"]})):
        error = client.post(path, json=body | more).json()["error"]
        assert error["code"] == "episode_full"
        assert "episode 'e' has 2 steps of " in error["message"]
        assert said in error["message"]
        assert "report its outcome and use another episode_id" in error["message"]
    assert "qguide_distinct_candidates_count 2.0" in client.get("/metrics").text, (
        "nothing was drawn"
    )
    act(client, [TASK], episode_id="another")
    assert end(client).json()["recorded"]
    assert len(rows(tmp_path, "offers")) == 2


def test_an_episode_of_which_nothing_is_kept_has_no_limit(serve: Serve, tmp_path: Path) -> None:
    limits = {"episode_max_steps": 1, "episode_max_bytes": 1}
    play(serve(FAKES.model_copy(update=limits)), steps=3)
    client = serve(recording(tmp_path, episode_max_steps=2))
    for text in ("task", "a summary", "another one", "a third one"):  # no record after the second
        act(client, [{"role": "user", "content": text}])


def test_several_messages_may_open_an_episode(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    act(client, [TASK, TASK])
    assert end(client).json()["recorded"]
    (tree,) = rows(tmp_path, "trees")
    assert [message["content"] for message in tree["opening"]] == [TASK["content"]] * 2


def test_every_text_is_redacted_before_it_is_written(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path, episodes_redact=f"{HOOKS}:hide"))
    act(client, [{"role": "user", "content": f"The password is {SECRET}."}])
    end(client, action=f"Action: say {SECRET}", observation=f"{SECRET} was right")
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert SECRET not in written
    assert "The password is ***." in written


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        ("fail", "the redaction hook failed"),
        ("nothing", "the redaction hook failed"),
        ("leave", "the redaction hook failed"),
        ("hang", "the redaction hook took longer than 3 s (QGUIDE_EPISODES_REDACT_TIMEOUT_S)"),
    ],
)
def test_nothing_is_written_where_redaction_fails(
    serve: Serve, tmp_path: Path, hook: str, reason: str
) -> None:
    options = {"episodes_redact": f"{HOOKS}:{hook}", "episodes_redact_timeout_s": 3}
    client = serve(recording(tmp_path, **options))
    play(client, first=({"role": "user", "content": HANGS},))
    answer = end(client)
    assert (answer.status_code, answer.json()["reason"]) == (200, reason)
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_written_is_written_when_told_again(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    folder.write_text("in the way")
    client = serve(recording(folder))
    play(client)
    answer = end(client).json()
    assert (answer["recorded"], answer["reason"]) == (
        False,
        "the file could not be written; the server's log has the reason",
    )
    folder.unlink()
    assert [end(client).json()["recorded"] for _ in range(2)] == [True, True]
    assert len(rows(folder, "trees")) == 1


def test_full_files_are_left_and_the_oldest_go(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path, episodes_file_bytes=1, episodes_max_files=2))
    for number in range(4):
        act(client, [{"role": "user", "content": f"task {number}"}], episode_id=str(number))
        assert end(client, episode=str(number)).json()["recorded"]
    assert [row["first_observation"] for row in rows(tmp_path, "trees")] == ["task 2", "task 3"]
    assert len(list(tmp_path.glob("offers-*.jsonl"))) == 2


def test_small_episodes_share_a_file(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    for number in "12":
        act(client, [TASK], episode_id=number)
        end(client, episode=number)
    (path,) = tmp_path.glob("trees-*.jsonl")
    assert len(path.read_text().splitlines()) == 2
