"""The expert as a policy: right at temperature 0, mistaken above it, always deterministic."""

from dataclasses import replace
from random import Random

import pytest

from qguide.qnet.types import Message, SampleRequest, Sampling
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert, misreading
from qguide.training.environments.alfworld.expert.memory import HouseMemory
from qguide.training.environments.alfworld.expert.policy import ExpertPolicy
from qguide.training.environments.alfworld.game.generator import generate_game
from qguide.training.rollouts.models import Inference, build_policy
from qguide.training.trajectory import parse_action

COLD, HOT = Sampling(0.0), Sampling(1.0, seed=3)


def test_cold_it_plays_like_the_expert() -> None:
    environment, expert, policy = PythonEnvironment(generate_game(0)), AlfWorldExpert(), ExpertPolicy()
    history = [Message("user", environment.reset())]
    won = False
    while not won:
        ((drawn,),) = policy.sample_batch([SampleRequest(tuple(history), 1, COLD)])
        assert drawn.message.content == expert.reply(history[-1].content)
        result = environment.step(parse_action(drawn.message.content))
        history += [drawn.message, Message("user", result.observation)]
        won = result.terminated
    assert len(history) > 3


def test_hot_it_errs_and_the_seed_says_how() -> None:
    start = (Message("user", PythonEnvironment(generate_game(1)).reset()),)
    requests = [SampleRequest(start, 6, HOT), SampleRequest(start, 6, HOT)]
    first, second = ExpertPolicy().sample_batch(requests)
    assert [c.message for c in first] == [c.message for c in second]
    assert len({c.message for c in first}) > 1


def test_it_recovers_from_what_another_agent_did() -> None:
    environment = PythonEnvironment(generate_game(2))
    start = Message("user", environment.reset())
    strange = Message("assistant", "Action: dance")
    answer = Message("user", environment.step("dance").observation)
    histories = [(start,), (start, strange, answer)]
    before, after = ExpertPolicy().sample_batch([SampleRequest(h, 1, COLD) for h in histories])
    assert before == after


def test_a_job_names_it() -> None:
    assert isinstance(build_policy("expert", Inference(), AlfWorldConfig()), ExpertPolicy)


def test_a_misreading_claims_what_is_not_there_and_overlooks_what_is() -> None:
    room = "Looking quickly around you, you see a desk 1, and a shelf 1."
    memory = HouseMemory(f"{room}\n\nYour task is to: put some cup on shelf.")
    for seen, claim in (("nothing", "cup"), ("a cup 1", "Not here.")):
        memory.read("go to desk 1", f"You arrive at loc 1. On the desk 1, you see {seen}.", deliberate=True)
        assert misreading(memory, Random(0)).seen.startswith(claim)


def test_what_it_has_answered_before_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qguide.training.environments.alfworld.expert.policy.MOST_EXPERTS", 3)
    asked, kept = [], ExpertPolicy()
    for seed in range(3):
        environment = PythonEnvironment(generate_game(seed))
        history = [Message("user", environment.reset())]
        for step in range(8):
            for sampling in (HOT, COLD, replace(HOT, seed=step)):
                asked.append(SampleRequest(tuple(history), 2, sampling))
            ((drawn, _),) = kept.sample_batch(asked[-1 - step % 2 :][:1])
            observation = environment.step(parse_action(drawn.message.content)).observation
            history += [drawn.message, Message("user", observation)]
    alone = [ExpertPolicy().sample_batch([request])[0] for request in asked]
    assert kept.sample_batch(asked) == alone
    assert kept.sample_batch(asked[::-1]) == alone[::-1]
