"""The scripted policy says its script."""

from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.types import Message, SampleRequest, Sampling

TASK = (Message("user", "go"),)


async def test_candidates_follow_the_script_and_the_turn() -> None:
    policy = ScriptedPolicy(["a", "b b", "c"])
    first = await policy.sample(TASK, n=2, sampling=Sampling())
    later = (*TASK, first[0].message, Message("user", "ok"))
    second = await policy.sample(later, n=4, sampling=Sampling())
    assert [c.message.content for c in first] == ["a", "b b"]
    assert [c.message.content for c in second] == ["b b", "c", "a", "b b"]
    assert [c.completion_tokens for c in first] == [1, 2]


async def test_a_batch_is_what_single_requests_are() -> None:
    policy = ScriptedPolicy()
    [batched] = policy.sample_batch([SampleRequest(TASK, 3)])
    assert batched == await policy.sample(TASK, n=3, sampling=Sampling())
