"""Files that episodes leave."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.records import ROOT_ID, OfferRow, TreeRow
from qguide.server.app import create_app
from qguide.server.episodes.archive import EpisodeArchive
from qguide.training.algorithms.backups import labels_of_actions
from qguide.training.data.runs import read_rows
from qguide.training.data.task_trees import TaskTrees
from qguide.training.guidance_report.build import build_report
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from qguide.training.learning.sources import read_learnable
from qguide.training.recordings.fields import Fields
from tests.support import redaction_hooks
from tests.support.redaction_hooks import HANGS, SECRET
from tests.unit.server.conftest import FAKES, Serve
from tests.unit.server.episodes.conftest import TASK, act, end, play, recording, rows, then
from tests.unit.server.http.test_sessions import DIALECTS

HOOKS = redaction_hooks.__name__


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
    assert [node.observation for node in tree.nodes] == ["observation 0", "observation 1", "You won!"]
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


def test_an_open_episode_goes_on_after_a_restart(tmp_path: Path) -> None:
    settings = recording(tmp_path)
    with TestClient(create_app(settings), "http://127.0.0.1") as client:
        action = act(client, [TASK])["action"]
    with TestClient(create_app(settings), "http://127.0.0.1") as client:
        act(client, then([TASK], action, "It is open."))
        assert end(client).json()["recorded"]
    (tree,) = rows(tmp_path, "trees")
    first, _ = tree["nodes"]
    assert first["action"] == action


def test_with_a_redactor_open_episodes_of_before_go_on_and_none_is_on_the_disk(tmp_path: Path) -> None:
    task = TASK | {"content": f"Find {SECRET}."}
    with TestClient(create_app(recording(tmp_path)), "http://127.0.0.1") as client:
        action = act(client, [task])["action"]
    assert list(tmp_path.glob("*.open"))
    redacted = recording(tmp_path, episodes_redact=f"{HOOKS}:hide")
    with TestClient(create_app(redacted), "http://127.0.0.1") as client:
        act(client, then([task], action, "It is open."))
        assert not list(tmp_path.glob("*.open*"))
        assert end(client).json()["recorded"]
    (tree,) = rows(tmp_path, "trees")
    assert (len(tree["nodes"]), SECRET in str(tree)) == (2, False)


def test_an_episode_that_a_killed_server_wrote_and_did_not_mark_is_read_once(serve: Serve, tmp_path: Path) -> None:
    served = tmp_path / "served"
    client = serve(recording(served))
    play(client, steps=2)
    end(client)
    for path in list(served.glob("*.jsonl")):  # as the next start leaves them
        (served / f"{path.stem}-again.jsonl").write_bytes(path.read_bytes())

    trees = sorted(served.glob("trees-*.jsonl"))
    assert len(trees) == 2
    assert len(read_learnable(trees, Fields(), skip_bad=False)) == 1
    assert len(read_learnable([served], Fields(), skip_bad=False)) == 1
    assert run_import(ImportConfig(source=served, output=tmp_path / "imported")).episodes == 1
    assert build_report([served]).episodes == 1
    [listed], _ = EpisodeArchive(served).newest(limit=9)
    assert [step.depth for step in listed.steps] == [1, 2]


def test_what_was_earned_on_the_way_is_told_apart_from_the_outcome(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    messages = [TASK]
    for step, earned in enumerate((None, 0.25, None, 0.5)):
        more = {} if earned is None else {"earned": earned}
        action = act(client, messages, **more)["action"]
        messages = then(messages, action, f"observation {step}")
    end(client, 0.75)
    (path,) = tmp_path.glob("trees-*.jsonl")
    (tree,) = read_rows(path, TreeRow)
    (episode,) = read_learnable([path], Fields(), skip_bad=False)

    assert [node.reward for node in tree.nodes] == [0, 0, 0, 0.75]
    assert tree.values == {"earned": (0.25, None, 0.5, None)}
    assert (episode.reward, episode.rewards) == (0.75, (0.25, 0.25, 0.5, 0.75))


@pytest.mark.parametrize("path", DIALECTS)
def test_every_dialect_tells_what_was_earned_by_a_header(serve: Serve, tmp_path: Path, path: str) -> None:
    client = serve(recording(tmp_path))
    named = {"X-QGuide-Earned": "0.25", "X-Session-ID": "e"}
    assert client.post(path, json=DIALECTS[path], headers=named).status_code == 200
    followed = then([TASK], "Action: look", "It is open.")
    answer = client.post("/v1/act", json={"messages": followed}, headers=named)
    assert answer.status_code == 200, answer.text
    end(client)
    found = [row.get("values") for row in rows(tmp_path, "trees")]
    assert found == [{"earned": [0.25, None]}]


@pytest.mark.parametrize(("path", "more"), [("/v1/act", {}), ("/v1/score", {"candidates": ["Action: go"]})])
def test_the_header_of_what_was_earned_takes_precedence(
    serve: Serve, tmp_path: Path, path: str, more: dict[str, list[str]]
) -> None:
    client = serve(recording(tmp_path))
    followed = then([TASK], act(client, [TASK])["action"], "It is open.")
    body = {"messages": followed, "episode_id": "e", "earned": 0.75} | more
    answer = client.post(path, json=body, headers={"X-QGuide-Earned": "0.25"})
    assert answer.status_code == 200, answer.text
    end(client)
    assert [row["values"] for row in rows(tmp_path, "trees")] == [{"earned": [0.25, None]}]


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("headers", [{}, {"X-Session-ID": "e"}])
def test_earnings_of_no_episode_and_others_than_numbers_are_refused(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    said = "much" if headers else "0.5"
    refused = client.post(path, json=DIALECTS[path], headers={"X-QGuide-Earned": said} | headers)
    assert refused.status_code == 400, refused.text
    assert said in refused.text


def test_a_retry_of_a_step_tells_again_what_was_earned(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    messages = then([TASK], act(client, [TASK])["action"], "It is open.")
    for body in ({"earned": 0.25}, {"earned": 0.5}, {}):
        act(client, messages, **body)
    end(client)
    assert [row["values"] for row in rows(tmp_path, "trees")] == [{"earned": [0.5, None]}]


@pytest.mark.parametrize("earned", [101, -101])
def test_earnings_have_the_bounds_of_outcomes(serve: Serve, tmp_path: Path, earned: int) -> None:
    client = serve(recording(tmp_path))
    body = {"messages": [TASK], "episode_id": "e", "earned": earned}
    refused = client.post("/v1/act", json=body)
    assert refused.status_code == 400
    assert f"earned is {earned}" in refused.json()["error"]["message"]


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


def test_what_the_agent_did_stands_in_the_tree_not_what_was_chosen(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    act(client, [TASK])
    act(client, then([TASK], "Action: my own", "odd"))
    end(client, 0, action="Action: give up", terminated=False)
    ((tree),) = rows(tmp_path, "trees")
    assert [node["action"] for node in tree["nodes"]] == ["Action: my own", "Action: give up"]
    assert {node["source"] for node in tree["nodes"]} == {"agent"}
    assert not tree["nodes"][-1]["terminated"]
    assert [offer["taken"] for offer in rows(tmp_path, "offers")] == ["Action: my own", "Action: give up"]


@pytest.mark.parametrize(("terminated", "worth"), [(True, 0.5), (False, 0.0)])
def test_an_outcome_without_a_last_observation_is_an_end_unless_a_limit_was(
    serve: Serve, tmp_path: Path, terminated: bool, worth: float
) -> None:
    client = serve(recording(tmp_path))
    act(client, [TASK])
    end(client, 1.0, action="Action: ask", terminated=terminated)
    for messages in ([TASK], then([TASK], "Action: ask", "No.")):
        act(client, messages, episode_id="other")
    end(client, 0.0, episode="other")
    (task,) = TaskTrees(list(tmp_path.glob("trees-*.jsonl")), min_reward=0, max_reward=1)
    values = labels_of_actions(task.tree, task.labels(target="avg", gamma=1.0, normalized=False))
    assert {values[node_id] for node_id in task.tree.children[ROOT_ID]} == {worth}


def test_the_callers_own_candidates_are_steps_too(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    for body in (["Action: look", "Action: wait"], ["Action: inventory"]):
        given = {"messages": [TASK], "candidates": body, "episode_id": "e"}
        assert client.post("/v1/score", json=given).status_code == 200
    assert end(client).json()["steps"] == 1
    (offer,) = rows(tmp_path, "offers")
    assert [c["content"] for c in offer["candidates"]] == ["Action: look", "Action: wait", "Action: inventory"]
    assert offer["policy"] == "agent"


def test_a_history_that_was_rewritten_is_no_record(serve: Serve, tmp_path: Path) -> None:
    client = serve(recording(tmp_path))
    act(client, [TASK])
    act(client, [{"role": "user", "content": "A summary."}])
    answer = end(client).json()
    assert (answer["recorded"], answer["steps"]) == (False, 2)
    assert "the history of step 2 does not continue that of step 1" in answer["reason"]
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
    assert "qguide_distinct_candidates_count 2.0" in client.get("/metrics").text, "nothing was drawn"
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
        ("hang", "the redaction hook took longer than 0.5 s (QGUIDE_EPISODES_REDACT_TIMEOUT_S)"),
    ],
)
def test_nothing_is_written_where_redaction_fails(serve: Serve, tmp_path: Path, hook: str, reason: str) -> None:
    options = {"episodes_redact": f"{HOOKS}:{hook}", "episodes_redact_timeout_s": 0.5 if hook == "hang" else 60}
    client = serve(recording(tmp_path, **options))
    play(client, first=({"role": "user", "content": HANGS},))
    answer = end(client)
    assert (answer.status_code, answer.json()["reason"]) == (200, reason)
    assert not any(path.read_bytes() for path in tmp_path.iterdir())  # the lock of servers that start is empty


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
