"""Learning while serving: a scripted agent against a server whose fits are real."""

import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.models.manifest import MANIFEST, read_manifest
from qguide.qnet.records import TreeRow
from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.learning import limited_process
from qguide.server.learning.service import LEARNING
from qguide.server.settings.learning import KEYLESS
from qguide.server.settings.settings import Settings
from qguide.training.guidance_report.build import build_report
from tests.support import redaction_hooks
from tests.unit.server.conftest import Serve
from tests.unit.server.learning.scripted_agent import (
    PATIENCE_S,
    REPLIES,
    lines_of,
    offers,
    play,
    play_to_trial,
    settings_of,
    state,
    wait_for_fit,
    wait_until,
)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, address: tuple[FakeUpstream, str]) -> Path:
    """A folder with 120 episodes and the version that was fitted to them."""
    folder, chance = tmp_path_factory.mktemp("fitted"), Random(9)
    address[0].replies = REPLIES
    with TestClient(create_app(settings_of(folder, address[1])), "http://127.0.0.1") as client:
        assert state(client)["sentence"] == "no episode has ended yet; the first fit in 120 more"
        for number in range(120):
            play(client, number, chance)
        found = wait_for_fit(client)
        assert (found["phase"], found["version"], found["shadow"]["version"]) == ("collecting", None, 1), found
    return folder


@pytest.fixture
def after_fit(fitted: Path, tmp_path: Path, settings: Settings) -> Settings:
    """A server that goes on with them, in a folder of its own."""
    shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
    return settings


def test_a_server_learns_tries_and_goes_on_after_a_restart(serve: Serve, after_fit: Settings, tmp_path: Path) -> None:
    client, numbers, chance = serve(after_fit), count(120), Random(0)
    found = state(client)
    assert (found["phase"], found["version"], found["shadow"]["version"]) == ("collecting", None, 1), found
    assert found["fit"]["episodes"] == 120
    collected = offers(tmp_path)
    explored = [offer for offer in collected if offer.reason == "explored"]
    assert 0.02 < len(explored) / len(collected) < 0.25
    assert {offer.propensity for offer in explored} == {1 / 3}
    trees = [TreeRow.model_validate_json(line) for line in lines_of(tmp_path, "trees-*")]
    drawn = [one for tree in trees for node in tree.nodes for one in node.drawn]
    assert len(drawn) == 3 * len(explored)
    assert {one.propensity for one in drawn} == {1 / 3}
    assert {offer.arm for offer in collected} == {"unguided"}
    assert all(len(offer.candidates) == 1 for offer in collected if offer not in explored)

    assert play_to_trial(client, numbers, chance) == 20
    in_shadow = offers(tmp_path)[120:]
    assert {offer.arm for offer in in_shadow} == {"unguided"}
    assert all(offer.shadow_chosen and len(offer.candidates) > 1 for offer in in_shadow)
    assert "20 decisions" in state(client)["reason"]

    for _ in range(40):
        play(client, next(numbers), chance)
    tried = state(client)
    assert tried["version"] == 1
    by_arm = Counter(offer.arm for offer in offers(tmp_path)[140:])
    assert by_arm == {"guided": tried["guided"]["episodes"], "unguided": tried["unguided"]["episodes"]}
    assert tried["guided"]["mean"] == 1.0
    assert tried["unguided"]["mean"] < 0.8
    assert tried["cost"]["tokens"] > 0
    guided = [offer for offer in offers(tmp_path) if offer.arm == "guided"]
    assert {(offer.q_model, offer.propensity) for offer in guided} == {("learned@1", 1.0)}

    [trial] = build_report([tmp_path]).trials
    assert trial.trial == tried["trial"] == 1
    for told, reported in [("guided", trial.guided), ("unguided", trial.unguided)]:
        figures = {name: tried[told][name] for name in ("episodes", "mean", "tokens")}
        assert reported.model_dump() == figures
    interval = {"low": trial.low, "estimate": trial.difference, "high": trial.high}
    assert interval == tried["difference"]

    again = serve(after_fit)
    assert state(again) | {"cost": 0, "sentence": ""} == tried | {"cost": 0, "sentence": ""}
    curve = client.get("/v1/learning/curve").json()
    assert curve == again.get("/v1/learning/curve").json()
    assert sum(point["episodes"] for point in curve["guided"]) == by_arm["guided"]
    assert sum(point["episodes"] for point in curve["unguided"]) == 140 + by_arm["unguided"]
    first = curve["changes"][0]
    assert (first["episode"], first["event"]) == (140, "trial_begun")
    play(again, next(numbers), chance)
    assert state(again)["episodes"] == 181


def test_a_version_that_leaves_the_shadow_while_a_step_is_drawn_still_chooses_in_it(
    serve: Serve, after_fit: Settings, upstream: FakeUpstream, tmp_path: Path
) -> None:
    client, asked_before = serve(after_fit), len(upstream.asked)
    upstream.delay_s = 0.5
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(play, client, 120, Random(0))
        wait_until(lambda: len(upstream.asked) > asked_before)
        for order in ("promote", "roll_back"):
            assert client.post("/v1/learning", json={"order": order}).status_code == 200
        step.result()
    assert offers(tmp_path)[-1].shadow_chosen


def test_outcomes_of_a_task_are_expected_of_its_next_episodes(
    serve: Serve, after_fit: Settings, tmp_path: Path
) -> None:
    client = serve(after_fit)
    for order in ("pin", "promote"):
        client.post("/v1/learning", json={"order": order})
    recorded = len(offers(tmp_path))
    outcomes = {"Find the ring.": 1.0, "Find a unicorn.": 0.0}
    for number, (task, reward) in enumerate([*outcomes.items()] * 15):
        message = {"role": "user", "content": task}
        body = {"model": "default", "messages": [message], "qguide": {"episode_id": f"again{number}"}}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        client.post(f"/v1/episodes/again{number}/outcome", json={"reward": reward})

    played = offers(tmp_path)[recorded:]
    ring, unicorn = played[::2], played[1::2]
    assert (ring[0].trial_guess, unicorn[0].trial_guess) == (None, None)
    assert (ring[-1].trial_guess or 0.0) > 0.8
    assert (unicorn[-1].trial_guess or 0.0) < 0.3

    [trial] = build_report([tmp_path]).trials
    found = state(client)["difference"]
    assert found == {"low": trial.low, "estimate": trial.difference, "high": trial.high}


def test_scores_and_rankings_of_a_key_are_by_what_guides(serve: Serve, after_fit: Settings) -> None:
    client = serve(after_fit)
    candidates = list(REPLIES)
    find = "Find the ring of guest 7."
    body = {"messages": [{"role": "user", "content": find}], "candidates": candidates}
    assert client.post("/v1/score", json=body).status_code == 404
    client.post("/v1/learning", json={"order": "promote"})

    scored = client.post("/v1/score", json=body).json()
    assert (scored["q_model"], scored["q_model_version"]) == ("learned", "1")
    best = max(scored["scores"], key=lambda score: score["q_value"])
    assert candidates[best["index"]] == "Action: open the red drawer"
    ranked = client.post("/v1/rerank", json={"query": find, "documents": candidates}).json()
    assert ranked["results"][0]["index"] == best["index"]
    batch = {"items": [body, body | {"candidates": candidates[::-1]}]}
    both = client.post("/v1/score/batch", json=batch).json()
    assert (both["q_model"], both["q_model_version"]) == ("learned", "1")
    assert both["items"][0]["scores"] == scored["scores"]
    wrong = body | {"counts": [1, 1, 1], "greedy": 3}
    answer = client.post("/v1/score", json=wrong)
    assert answer.status_code == 400
    assert "greedy is 3, but there are 3 candidates" in answer.text


def test_what_an_agent_forgets_is_told(serve: Serve, settings: Settings) -> None:
    client = serve(settings)
    body: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "Find the ring."}]}
    client.post("/v1/chat/completions", json=body)
    assert "of this process's steps 1 named no episode" in state(client)["sentence"]

    client.post("/v1/chat/completions", json=body | {"qguide": {"episode_id": "e"}})
    client.post("/v1/episodes/e/outcome", json={"reward": 80})
    sentence = state(client)["sentence"]
    assert "named no episode" not in sentence
    assert "1 of the rewards lay outside 0 to 1" in sentence


def test_a_learned_model_has_no_name(serve: Serve, after_fit: Settings) -> None:
    client = serve(after_fit)
    assert wait_for_fit(client)["fit"]["version"] == 1

    assert "learned" not in client.get("/v1/models").text
    messages = [{"role": "user", "content": "Find the ring."}]
    body = {"model": "default", "messages": messages, "qguide": {"q_model": "learned@1"}}
    assert client.post("/v1/chat/completions", json=body).status_code == 404


def test_a_fit_over_its_limits_has_failed_and_the_server_goes_on(
    serve: Serve, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine gives its time to everything else first.
    monkeypatch.setattr("qguide.server.learning.fitting._WALL_PER_CPU", PATIENCE_S)
    # A fast one may fit five episodes within the second, if it has all of it.
    spend = "import runpy, time\nwhile time.process_time() < 0.9: pass\n"
    (tmp_path / "spent.py").write_text(f"{spend}runpy.run_path({limited_process.__file__!r}, run_name='__main__')")
    monkeypatch.setattr("qguide.server.learning.limited_process.__file__", str(tmp_path / "spent.py"))
    client = serve(settings.model_copy(update={"learn_every": 5, "learn_cpu_s": 1}))
    chance = Random(4)
    for number in range(5):
        play(client, number, chance)
    found = wait_for_fit(client)
    assert not found["fit"]["licensed"]
    assert "1 s of CPU time (QGUIDE_LEARN_CPU_S)" in found["fit"]["reason"]
    assert not list((tmp_path / LEARNING / KEYLESS / "versions").iterdir())
    play(client, 5, chance)


def test_a_deleted_episode_leaves_the_next_fit(serve: Serve, settings: Settings, tmp_path: Path) -> None:
    client = serve(settings.model_copy(update={"learn_every": 20}))
    chance = Random(5)
    for number in range(19):
        play(client, number, chance)
    [trees] = tmp_path.glob("trees-*")
    lines = trees.read_text().splitlines(keepends=True)
    trees.write_text("".join(lines[10:]))
    play(client, 19, chance)
    wait_for_fit(client)
    manifest = tmp_path / LEARNING / KEYLESS / "versions" / "1" / "manifest.json"
    assert json.loads(manifest.read_text())["metrics"]["episodes"] == 10


def test_a_step_whose_caller_names_a_q_model_has_no_part(serve: Serve, settings: Settings, tmp_path: Path) -> None:
    client = serve(settings)
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Find the ring."}],
        "qguide": {"episode_id": "mine", "q_model": "none"},
    }
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    client.post("/v1/episodes/mine/outcome", json={"reward": 1.0})
    [offer] = offers(tmp_path)
    assert (offer.arm, offer.propensity) == ("", None)
    assert state(client)["unguided"]["episodes"] == 0
    assert state(client)["learnable"] == 1


def test_replicas_with_one_folder_share_what_is_learned(serve: Serve, settings: Settings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"learn_every": 40})
    one, other = serve(settings), serve(settings)
    chance = Random(6)
    for number in range(40):
        play(one if number % 2 else other, number, chance)
    wait_for_fit(one)
    wait_for_fit(other)
    assert play_to_trial(one, count(40), chance) == 20
    wait_until(lambda: state(other)["phase"] == "trial")
    for number in range(60, 70):
        play(one if number % 2 else other, number, chance)

    wait_until(lambda: state(one) == state(other))
    assert state(one)["guided"]["episodes"] + state(one)["unguided"]["episodes"] == 10
    lines = (tmp_path / LEARNING / KEYLESS / "ledger.jsonl").read_text().splitlines()
    kinds = Counter(json.loads(line)["kind"] for line in lines)
    del kinds["spent"]
    assert kinds == {"episode": 70, "fit": 1, "phase": 1}
    guided = Counter(offer.q_model for offer in offers(tmp_path) if offer.arm == "guided")
    assert set(guided) == {"learned@1"}


def test_a_version_that_cannot_be_loaded_yet_is_tried_again_and_needs_no_licence(
    serve: Serve, after_fit: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qguide.server.learning.service._AFTER_FAILURE_S", 0.0)
    client, chance, numbers = serve(after_fit), Random(8), count(120)
    play_to_trial(client, numbers, chance)
    version = tmp_path / LEARNING / KEYLESS / "versions" / "1"
    version.rename(tmp_path / "aside")
    replica = serve(after_fit)
    play(replica, next(numbers), chance)
    assert state(replica)["share"] == 0
    assert "version 1 cannot be loaded" in state(replica)["sentence"]

    manifest = read_manifest(tmp_path / "aside")
    assert manifest is not None
    assert manifest.licence is not None
    refused = manifest.licence.model_copy(update={"granted": False})
    unlicensed = manifest.model_copy(update={"licence": refused})
    (tmp_path / "aside" / MANIFEST).write_text(unlicensed.model_dump_json())
    (tmp_path / "aside").rename(version)
    wait_until(lambda: state(replica)["share"] == 0.5)


def test_a_version_with_features_of_another_release_is_rolled_back(
    serve: Serve, after_fit: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, chance, numbers = serve(after_fit), Random(8), count(120)
    play_to_trial(client, numbers, chance)
    monkeypatch.setattr("qguide.qnet.models.feature_q.FEATURES_VERSION", 99)
    later = serve(after_fit)
    play(later, next(numbers), chance)
    wait_until(lambda: state(later)["phase"] == "collecting")
    last = (tmp_path / LEARNING / KEYLESS / "ledger.jsonl").read_text().splitlines()
    [change] = [line for line in last if "this version makes 99" in line]
    assert json.loads(change)["event"] == "rolled_back"


def test_the_prompt_and_the_tools_of_an_episode_are_known_by_a_hash(
    serve: Serve, settings: Settings, tmp_path: Path
) -> None:
    client = serve(settings)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    instructed = {"role": "system", "content": "A secret."}
    for number, (system, tools) in enumerate([([], []), ([instructed], []), ([], [tool])] * 2):
        body = {
            "model": "default",
            "messages": [*system, {"role": "user", "content": f"Find the ring of {number}."}],
            "qguide": {"episode_id": f"e{number}"},
        }
        answer = client.post("/v1/chat/completions", json=body | ({"tools": tools} if tools else {}))
        assert answer.status_code == 200, answer.text
        client.post(f"/v1/episodes/e{number}/outcome", json={"reward": 1.0})
    text = (tmp_path / LEARNING / KEYLESS / "ledger.jsonl").read_text()
    prompts = [json.loads(line)["arm"]["prompt"] for line in text.splitlines()]
    assert len(set(prompts)) == 3
    assert prompts[:3] == prompts[3:]
    assert "secret" not in text


def test_without_learning_there_is_no_route(serve: Serve, settings: Settings) -> None:
    assert serve(settings.model_copy(update={"learn": False})).get("/v1/learning").status_code == 404


def test_a_history_that_was_rewritten_is_told_by_the_sentence(serve: Serve, settings: Settings) -> None:
    client = serve(settings)
    for task in ("Find the ring. It is 9:00.", "Find the ring. It is 9:01."):
        body = {"model": "default", "messages": [{"role": "user", "content": task}], "qguide": {"episode_id": "e"}}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert client.post("/v1/episodes/e/outcome", json={"reward": 1}).json()["recorded"] is False
    assert "not recorded: the history of step 2 does not continue that of step 1" in state(client)["sentence"]


def test_a_redaction_that_fails_is_told_by_the_sentence(serve: Serve, settings: Settings) -> None:
    client = serve(settings.model_copy(update={"episodes_redact": f"{redaction_hooks.__name__}:fail"}))
    body = {"model": "default", "messages": [{"role": "user", "content": "Go."}], "qguide": {"episode_id": "e"}}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert client.post("/v1/episodes/e/outcome", json={"reward": 1}).json()["recorded"] is False
    assert "not recorded: the redaction hook failed" in state(client)["sentence"]
