"""One episode of any agent, as a rollout task.

An agent gets the history and may ask the policy and the scorer, nothing else. It has no access to
the environment, so no reward can reach it before the episode is over.
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from qguide.qnet.decision.decide import decide
from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.models.manifest import PriorSection
from qguide.qnet.types import Candidate, DrawRole, History, Message, SampleRequest, Sampling
from qguide.training.environment import Environment, StepResult, take
from qguide.training.rollouts.rollout import EnvironmentCall, ModelRequest, RolloutTask
from qguide.training.trajectory import REACT, ChatFormat, Drawn, Step, drawn_of, observation_message, step_messages

_OVER = "The episode is over."


@dataclass(frozen=True, slots=True)
class AgentStep:
    """An agent's reply and its cost.

    Attributes:
        mistaken: the reply is a mistake that must not be imitated.
        drawn: the different candidates of the policy; empty if that tells nothing.
    """

    message: Message
    completion_tokens: int
    distinct_candidates: int = 1
    scored_tokens: int = 0
    mistaken: bool = False
    decision: Decision | None = None
    drawn: tuple[Drawn, ...] = ()

    @property
    def reply(self) -> str:
        """The reply as text, tool calls as lines of `Message.text`."""
        return self.message.text


Agent = Callable[[History, int], Generator[ModelRequest, Any, AgentStep]]
"""Generator function from (history, index of the step) to the next reply."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A played episode.

    Attributes:
        steps: all steps, including replayed ones.
        choices: the agent's own steps, without replayed ones.
        too_long: the history outgrew the context of the policy or the Q model, which ended it.
    """

    first_observation: str
    steps: tuple[Step, ...]
    choices: tuple[AgentStep, ...]
    invalid_actions: int
    too_long: bool = False
    chat: ChatFormat = REACT

    @property
    def reward(self) -> float:
        """The outcome reward; if the episode was cut off, the reward of its last step."""
        return self.steps[-1].reward if self.steps else 0.0

    @property
    def terminated(self) -> bool:
        """True if the environment ended the episode, not a limit."""
        return bool(self.steps) and self.steps[-1].terminated is not False

    @property
    def messages(self) -> History:
        """The whole chat, the last observation included."""
        return self.chat.history(self.first_observation, self.steps)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated for every candidate of every step."""
        return sum(choice.completion_tokens for choice in self.choices)

    @property
    def scored_tokens(self) -> int:
        """Tokens that went through the Q model's trunk."""
        return sum(choice.scored_tokens for choice in self.choices)


def play_episode(
    make: Callable[[], Environment],
    choose: Agent,
    *,
    max_steps: int,
    prefix: Sequence[Message] = (),
    chat: ChatFormat = REACT,
) -> RolloutTask[Episode]:
    """Play to the end, from the start or from the state to which the replies of `prefix` lead.

    Args:
        choose: the agent; its step index also counts the replayed steps.
    """
    environment: Environment = yield EnvironmentCall(make)
    steps: list[Step] = []
    choices: list[AgentStep] = []
    too_long = False
    try:
        first_observation: str = yield EnvironmentCall(environment.reset)
        for reply in prefix[:max_steps]:
            if steps and steps[-1].ended:  # it did not end here before: `new_steps` says so
                break
            steps.append((yield from _act(environment, reply, chat)))
        history = chat.history(first_observation, steps)
        while len(steps) < max_steps and not (steps and steps[-1].ended):
            choice = yield from choose(history, len(steps))
            choices.append(choice)
            step = yield from _act(environment, choice.message, chat)
            steps.append(replace(step, drawn=choice.drawn))
            history += step_messages(steps[-1])
    except HistoryTooLongError:
        too_long = True
    finally:
        environment.close()
    invalid_actions = sum(not step.valid for step in steps[len(prefix) :])
    return Episode(first_observation, tuple(steps), tuple(choices), invalid_actions, too_long, chat)


def _act(environment: Environment, reply: Message, chat: ChatFormat) -> RolloutTask[Step]:
    """The step of a reply; the results of its tool calls answer them one by one."""
    results: list[StepResult] = []
    actions = chat.actions_of(reply)
    for action in actions:
        if results and results[-1].ended:  # every call needs an answer, or upstreams refuse it
            results.append(replace(results[-1], observation=_OVER))
            continue
        results.append((yield EnvironmentCall(partial(take, environment, action))))
    last = results[-1]
    if not (chat.tools and reply.tool_calls):
        reply = Message("assistant", reply.content)
        observed: History = (observation_message(last.observation),)
    else:
        observed = tuple(
            Message("tool", result.observation, tool_call_id=call.id)
            for call, result in zip(reply.tool_calls, results, strict=True)
        )
    return Step.of_messages(
        reply,
        observed,
        reward=last.reward,
        terminated=last.terminated,
        valid=all(result.valid for result in results),
        truncated=last.truncated,
    )


def first_reply(sampling_at: Callable[[int], Sampling], *, role: DrawRole = "act") -> Agent:
    """The unguided agent, which draws one candidate per step and takes it."""

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        sampling = sampling_at(step)
        candidates: list[Candidate] = yield SampleRequest(history, 1, sampling, role)
        message = candidates[0].message
        drawn = drawn_of([message], first_greedy=sampling.first_is_greedy)
        return AgentStep(message, candidates[0].completion_tokens, drawn=drawn)

    return choose


def guided_agent(guidance_at: Callable[[int], Guidance]) -> Agent:
    """The agent that `/v1/act` serves: it takes the one of highest Q of M candidates per step."""

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        guidance = guidance_at(step)
        decision = yield from decide(history, guidance)
        own = [candidate.message for candidate in decision.own_candidates]
        return AgentStep(
            message=decision.action,
            completion_tokens=decision.usage.completion_tokens,
            distinct_candidates=decision.distinct_candidates,
            scored_tokens=decision.usage.scored_tokens,
            decision=decision,
            drawn=drawn_of(own, first_greedy=guidance.sampling.first_is_greedy),
        )

    return choose


def with_prior(guidance: Guidance, prior: PriorSection | None) -> Guidance:
    """The guidance of a server whose Q model has this prior; without one, by the argmax of Q."""
    if prior is None:
        return guidance
    return replace(guidance, selection="posterior", tau=prior.tau, prior=prior.by, greedy_weight=prior.greedy_weight)


def derived_seed(*parts: object) -> int:
    """A seed below 2**63 that depends only on the parts, not on the order of play."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def seeded(sampling: Sampling, *parts: object) -> Callable[[int], Sampling]:
    """A function from the step to `sampling` with a seed derived from `parts` and the step."""

    def at(step: int) -> Sampling:
        return replace(sampling, seed=derived_seed(*parts, step))

    return at
