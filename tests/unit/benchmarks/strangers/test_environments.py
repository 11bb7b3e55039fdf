"""The strangers' environments: contract, determinism, disjoint tasks, and the mocks' mistakes."""

import json
import threading
import urllib.request
from collections import Counter
from functools import partial
from typing import get_args

import pytest

from benchmarks.strangers.catalogue import EVERY, STRANGERS, Mock, Stranger
from benchmarks.strangers.mock_policy import Mistake, MockPolicy, merged
from benchmarks.strangers.served_model import build_server
from qguide.qnet.contract import Check, NotCheckedError
from qguide.qnet.types import History, SampleRequest, Sampling
from qguide.training.environments.contract import CHECKS, Subject
from qguide.training.environments.registry import SelectedSuite, build_selected_suite, environment_config
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import Episode, first_reply, play_episode, seeded
from qguide.training.trajectory import reply_key

OWN = [stranger for stranger in EVERY.values() if stranger.name != "errands"]
own = pytest.mark.parametrize("stranger", OWN, ids=lambda stranger: stranger.name)
every = pytest.mark.parametrize("stranger", EVERY.values(), ids=lambda stranger: stranger.name)


def played(stranger: Stranger, suite: SelectedSuite, mock: Mock, times: int = 1) -> list[Episode]:
    """Unguided episodes of the first tasks of a suite."""
    tasks = [
        play_episode(
            partial(suite.make, task),
            first_reply(seeded(Sampling(temperature=1.0), task.id, time)),
            max_steps=stranger.max_steps,
            chat=suite.environment.chat,
        )
        for task in suite.tasks[:24]
        for time in range(times)
    ]
    return run_together(tasks, policy=mock)


@every
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.rule)
def test_it_keeps_to_the_contract(check: Check[Subject], stranger: Stranger) -> None:
    suite = stranger.suite(new=False)
    table = {"name": stranger.environment, "count": 2, **dict(stranger.settings)}
    config = environment_config(table)
    try:
        check.run(Subject(config, build_selected_suite(config), suite.environment.harmless))
    except NotCheckedError as reason:
        pytest.skip(str(reason))


@every
def test_episodes_follow_from_their_seeds(stranger: Stranger) -> None:
    first, second = (played(stranger, stranger.suite(new=False), stranger.policy()) for _ in range(2))
    assert [episode.messages for episode in first] == [episode.messages for episode in second]
    assert len({episode.reward for episode in first}) > 1


@every
def test_new_tasks_are_not_recorded_but_share_their_words(stranger: Stranger) -> None:
    def words(suite: SelectedSuite) -> tuple[set[str], set[str]]:
        starts = {suite.make(task).reset() for task in suite.tasks}
        return starts, {word.strip('.,:?"{}') for start in starts for word in start.split()}

    recorded, known = words(stranger.suite(new=False))
    aside, new = words(stranger.suite(new=True))
    assert len(recorded) == stranger.recorded
    assert len(aside) == stranger.aside
    assert not recorded & aside
    unknown = {word for word in new - known if not word.isdigit()}
    assert unknown == set()  # order numbers alone are new


@every
def test_another_world_has_other_secrets(stranger: Stranger) -> None:
    def effects(world: int) -> Counter[str]:
        suite = stranger.suite(new=False, world=world)
        episodes = played(stranger, suite, stranger.policy(0), times=2)
        return Counter(step.observation for episode in episodes for step in episode.steps)

    assert effects(0) != effects(1)


@own
def test_its_mock_makes_mistakes_of_every_kind(stranger: Stranger) -> None:
    mock = stranger.policy()
    assert isinstance(mock, MockPolicy)
    made = Counter[str]()
    for episode in played(stranger, stranger.suite(new=False), mock, times=5):
        for number, step in enumerate(episode.steps):
            history = episode.chat.history(episode.first_observation, episode.steps[:number])
            options = merged(mock.options(history))
            kinds = {reply_key(option.reply): option.mistake for option in options}
            made[kinds[reply_key(step.message)]] += 1
    assert set(made) == set(get_args(Mistake))
    assert min(made.values()) >= 2


@own
def test_a_mock_knows_the_likelihood_of_its_draws(stranger: Stranger) -> None:
    mock, suite = stranger.policy(), stranger.suite(new=False)
    assert isinstance(mock, MockPolicy)
    chat = suite.environment.chat
    history = chat.history(suite.make(suite.tasks[0]).reset(), ())
    options = {reply_key(o.reply): o.weight for o in merged(mock.options(history))}
    [drawn] = mock.sample_batch([_request(history, 4000, 1.0)])
    counts = Counter(reply_key(each.message) for each in drawn)
    total = sum(options.values())
    for action, weight in options.items():
        assert counts[action] / 4000 == pytest.approx(weight / total, abs=0.035)
    [greedy] = mock.sample_batch([_request(history, 1, 0.0)])
    assert reply_key(greedy[0].message) == max(options, key=lambda action: options[action])


def test_a_mock_is_served_as_an_openai_model() -> None:
    stranger = STRANGERS["helpdesk"]
    suite = stranger.suite(new=False)
    server = build_server(stranger.policy())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        messages = [
            {"role": "system", "content": suite.environment.chat.system},
            {"role": "user", "content": suite.make(suite.tasks[0]).reset()},
        ]
        body = {"model": "m", "messages": messages, "n": 3, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            choices = json.load(answer)["choices"]
    finally:
        server.shutdown()
        server.server_close()
    calls = [choice["message"]["tool_calls"][0]["function"]["name"] for choice in choices]
    assert len(calls) == 3
    assert len(set(calls)) == 1
    assert calls[0].startswith("find_")


def _request(history: History, n: int, temperature: float) -> SampleRequest:
    return SampleRequest(history, n, Sampling(temperature=temperature, seed=1))
