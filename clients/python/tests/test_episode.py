"""An episode carries its own history, and a step that failed has not happened."""

import json
from typing import Any

import httpx
import pytest
from qguide_client import AsyncQGuide, Decision, QGuide, Scores, errors

from clients.python.tests.conftest import client_of


def test_steps_make_a_history_that_the_server_accepts(client: QGuide) -> None:
    with client.episode(num_candidates=2, system="You are an agent.") as episode:
        first = episode.act("You see a desk. Your task is to: look.")
        second = episode.choose("Nothing happens.", ["Action: look", "Action: go to desk 1"])
    assert second == "Action: go to desk 1"
    assert [(m["role"], m["content"]) for m in episode.messages] == [
        ("system", "You are an agent."),
        ("user", "You see a desk. Your task is to: look."),
        ("assistant", first),
        ("user", "Nothing happens."),
        ("assistant", second),
    ]
    assert isinstance(episode.last, Scores)


async def test_the_async_episode_does_the_same(async_client: AsyncQGuide) -> None:
    async with async_client.episode(num_candidates=2) as episode:
        first = await episode.act("You see a desk. Your task is to: look.")
        assert isinstance(episode.last, Decision)
        assert len(episode.last.candidates) == 2
        second = await episode.choose("Nothing happens.", ["Action: look"])
    assert [m["content"] for m in episode.messages[1::2]] == [first, second]
    with pytest.raises(errors.EpisodeError):
        await episode.act("You are back.")


def test_a_step_tells_the_server_what_was_earned_before_it(client: QGuide) -> None:
    with client.episode(num_candidates=2) as episode:
        episode.act("You see a desk. Your task is to: look.")
        for step in (episode.act, lambda o, **told: episode.choose(o, ["Action: look"], **told)):
            with pytest.raises(errors.RefusedError, match=r"earned is 1e\+09; .* -100 to 100; .*QGUIDE_MAX_REWARD"):
                step("Nothing happens.", earned=1e9)
            step("Nothing happens.", earned=0.5)
        assert episode.finish(0.75).reward == 0.75


def test_every_step_bears_the_episodes_id_and_options() -> None:
    bodies: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(418)

    with client_of(answer) as client:
        episode = client.episode(episode_id="e1", q_model="shop", num_candidates=2)
        with pytest.raises(errors.RefusedError):
            episode.act("task", num_candidates=3)
        with pytest.raises(errors.RefusedError):
            episode.choose("task", ["a", "b"])
    task = [{"role": "user", "content": "task"}]
    common = {"messages": task, "episode_id": "e1", "q_model": "shop"}
    assert bodies == [common | {"num_candidates": 3}, common | {"candidates": ["a", "b"]}]


def test_a_router_finds_the_episode_in_a_header() -> None:
    sent: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("X-Session-ID"))
        return httpx.Response(418)

    with client_of(answer) as client:
        for episode_id in ("tasks/apple 7", None):
            with pytest.raises(errors.RefusedError):
                client.act([{"role": "user", "content": "task"}], episode_id=episode_id)
        with pytest.raises(errors.RefusedError):
            client.models()
    assert sent == ["tasks%2Fapple%207", None, None]


def test_a_chosen_tool_call_and_its_result_become_turns(client: QGuide) -> None:
    def call(name: str, number: int) -> dict[str, Any]:
        function = {"name": name, "arguments": "{}"}
        return {"role": "assistant", "tool_calls": [{"id": f"call_{number}", "function": function}]}

    with client.episode() as episode:
        calls = [call("look", 1), call("inventory", 2)]
        chosen = episode.choose("Your task is to: look.", calls)
        assert chosen in calls
        result = {"role": "tool", "content": "a desk 1", "tool_call_id": "call_1"}
        assert episode.choose([result], ["Action: look", "Action: go to desk 1"])
    assert episode.messages[1:3] == (chosen, result)


def test_a_deadline_of_the_episode_is_that_of_every_step() -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["X-QGuide-Timeout-S"])
        assert "deadline_s" not in json.loads(request.content)
        return httpx.Response(418)

    with client_of(answer) as client:
        episode = client.episode(deadline_s=7.0)
        with pytest.raises(errors.RefusedError):
            episode.act("task")
        with pytest.raises(errors.RefusedError):
            episode.choose("task", ["a", "b"])
        with pytest.raises(errors.RefusedError):
            episode.choose("task", ["a", "b"], deadline_s=3.0)
    assert [round(float(one)) for one in sent] == [7, 7, 3]


def test_episodes_that_are_not_named_differ(client: QGuide) -> None:
    assert client.episode().episode_id != client.episode().episode_id


def test_a_step_that_failed_can_be_taken_again(client: QGuide) -> None:
    with client.episode() as episode:
        with pytest.raises(errors.UnknownModelError):
            episode.act("Your task is to: look.", q_model="nobody")
        assert episode.messages == ()
        episode.act("Your task is to: look.")
        assert len(episode.messages) == 2


def test_no_step_comes_after_the_end(client: QGuide) -> None:
    with client.episode() as episode:
        episode.act("Your task is to: look.")
    with pytest.raises(errors.EpisodeError, match="ended; begin"):
        episode.act("You are back.")


def test_the_history_that_is_shown_is_a_copy(client: QGuide) -> None:
    episode = client.episode()
    episode.act("Your task is to: look.")
    episode.messages[0]["content"] = "something else"
    assert episode.messages[0]["content"] == "Your task is to: look."


def test_finish_tells_the_outcome_and_ends_the_episode() -> None:
    sent: list[tuple[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.raw_path.decode(), json.loads(request.content)))
        body = {"episode_id": "a/b", "reward": 0.5, "steps": 3, "recorded": True, "reason": None}
        return httpx.Response(200, json=body)

    with client_of(answer) as client, client.episode(episode_id="a/b") as episode:
        assert episode.finish(0.5, observation="You win.").recorded
        with pytest.raises(errors.EpisodeError):
            episode.finish(0.5)
    body = {"reward": 0.5, "observation": "You win."}
    assert sent == [("/v1/episodes/a%2Fb/outcome", body)]


def test_an_outcome_that_was_refused_can_be_told_again() -> None:
    with client_of(lambda _: httpx.Response(404)) as client, client.episode() as episode:
        for _ in range(2):
            with pytest.raises(errors.NotFoundError):
                episode.finish(1.0)


def test_the_attempt_of_the_highest_value_goes_on_and_the_other_ends(client: QGuide) -> None:
    attempts = client.attempts(2)
    poor, good = attempts.episodes
    poor.choose("Your task is to: look.", ["Action: look"])
    good.choose("Your task is to: look.", ["Action: go to desk 1"])
    assert attempts.narrow() == attempts.running == [good]
    assert attempts.last is not None
    assert [one.verdict for one in attempts.last.attempts] == ["behind", "best"]
    with pytest.raises(errors.EpisodeError):
        poor.choose("Nothing happens.", ["Action: look"])
    good.choose("You are there.", ["Action: look"])
    again = attempts.narrow({good.episode_id: "You see it."}, go_on=2)
    assert (again, [one.verdict for one in attempts.last.attempts]) == ([good], ["ended", "best"])


async def test_async_attempts_do_the_same(async_client: AsyncQGuide) -> None:
    attempts = async_client.attempts(2, num_candidates=1)
    poor, good = attempts.episodes
    await poor.choose("Your task is to: look.", ["Action: look"])
    await good.choose("Your task is to: look.", ["Action: go to desk 1"])
    assert await attempts.narrow(go_on=1) == [good]
