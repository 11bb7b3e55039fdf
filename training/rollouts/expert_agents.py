"""Agents that play the expert's replies, alone or in turn with a policy (DAgger)."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from qguide.qnet.types import Candidate, History, SampleRequest, Sampling
from qguide.training.environment import Expert
from qguide.training.rollouts.episode import Agent, AgentStep, derived_seed
from qguide.training.rollouts.rollout import ModelRequest
from qguide.training.trajectory import text_reply


def expert_agent(expert: Expert, *, mistakes: float = 0.0, seed: int = 0) -> Agent:
    """An agent that plays the expert's replies and asks no model."""
    rng = Random(seed)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        yield from ()
        reply = expert.reply(history[-1].content)
        if rng.random() < mistakes:
            return AgentStep(text_reply(expert.deviate(rng)), completion_tokens=0, mistaken=True)
        return AgentStep(text_reply(reply), completion_tokens=0)

    return choose


def replaying_agent(replies: Sequence[str]) -> Agent:
    """An agent that plays known replies and asks no model; it has none after the last."""

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        yield from ()
        return AgentStep(text_reply(replies[step]), completion_tokens=0)

    return choose


def corrected_agent(expert: Expert, *, policy_share: float, sampling: Sampling, seed: int) -> Agent:
    """An agent that plays the expert's replies at some steps and the policy's at the others.

    Args:
        policy_share: probability that the policy plays a step. Its reply counts as a mistake
            unless it equals the expert's word for word.
        sampling: sampling of the policy; its seed is replaced at every step.
    """
    rng = Random(seed)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        wanted = expert.reply(history[-1].content)
        if rng.random() >= policy_share:
            return AgentStep(text_reply(wanted), completion_tokens=0)
        drawn = replace(sampling, seed=derived_seed(seed, step))
        candidates: list[Candidate] = yield SampleRequest(history, 1, drawn)
        reply = candidates[0].message
        expert.follow(reply.text)
        mistaken = reply.text != wanted
        return AgentStep(reply, candidates[0].completion_tokens, mistaken=mistaken)

    return choose
