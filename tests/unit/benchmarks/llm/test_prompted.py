"""A language model in place of a mock: its examples, its lines, and its draws."""

from dataclasses import replace

import pytest

from benchmarks.llm.prompted import ActionLines, PromptedLlm
from benchmarks.strangers.catalogue import EVERY, Stranger
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.types import History, Message, SampleRequest, Sampling
from qguide.training.trajectory import reply_key

LONG = {"letters", "shell"}
"""Environments whose replies take several lines."""
short = [stranger for stranger in EVERY.values() if stranger.name not in LONG]
every = pytest.mark.parametrize("stranger", short, ids=lambda stranger: stranger.name)


def first_state(stranger: Stranger, *, new: bool = True) -> History:
    suite = stranger.suite(new=new)
    environment = suite.make(suite.tasks[0])
    system = Message("system", suite.environment.chat.system or "")
    return system, Message("user", environment.reset())


@every
def test_a_mocks_reply_is_read_back_from_its_line(stranger: Stranger) -> None:
    """Unless it is ill-formed, and its arguments are in the order of the tool."""
    lines = ActionLines(stranger.suite(new=True).environment.chat)
    [drawn] = stranger.policy().sample_batch([SampleRequest(first_state(stranger), 32, Sampling(1.0, seed=0))])
    replies = {reply_key(one.message): one.message for one in drawn}
    read = {key: reply_key(lines.reply(lines.line(reply))) for key, reply in replies.items()}
    assert sum(key == found for key, found in read.items()) >= 0.7 * len(read), read


def test_tools_are_told_and_examples_are_of_another_world() -> None:
    stranger = replace(EVERY["errands"], llm=embedded_path("policy"))
    policy = stranger.policy()
    assert isinstance(policy, PromptedLlm)
    system, task, *turns = policy.beginning
    assert "- open fridge/drawer/shelf" in system.content
    assert task.content.startswith("New task: Bring the ")
    assert [turn.content.split()[0] for turn in turns if turn.role == "assistant"][:3] == ["open", "take", "bring"]
    assert sum(turn.content.startswith("New task: ") for turn in turns) == 3


def test_lines_of_unknown_tools_are_replies_in_words() -> None:
    lines = ActionLines(EVERY["errands"].suite(new=True).environment.chat)
    assert lines.reply("open fridge\nand more").tool_calls[0].arguments == '{"place": "fridge"}'
    assert lines.reply("look around") == Message("assistant", "look around")


def test_a_model_draws_what_its_seed_says() -> None:
    policy = replace(EVERY["errands"], llm=embedded_path("policy")).policy()
    state = first_state(EVERY["errands"])
    first, again, other = (
        policy.sample_batch([SampleRequest(state, 3, Sampling(temperature=None, seed=seed))])[0] for seed in (1, 1, 2)
    )
    assert [one.message for one in first] == [one.message for one in again]
    assert [one.message for one in first] != [one.message for one in other]
    assert all("\n" not in one.message.content for one in first)
