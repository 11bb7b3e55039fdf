"""Policies composed of other policies, and those that play what an environment lists."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from qguide.qnet.chat_messages import ACTION_PREFIX
from qguide.qnet.decision.decide import decide
from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.features.words import listed_choices
from qguide.qnet.models.manifest import PriorSection
from qguide.qnet.types import BatchPolicy, Candidate, History, Message, SampleRequest, ToolCall
from qguide.training.environments.registry import SelectedSuite
from qguide.training.rollouts.episode import derived_seed, with_prior
from qguide.training.rollouts.hosted import HostedPolicy
from qguide.training.rollouts.rollout import RolloutRequest, RolloutTask, answered_by
from qguide.training.trajectory import Action, text_reply

T = TypeVar("T")
_SHOWN: Final = 80
"""Characters of an observation in an error."""


class PolicyWithRollouts:
    """One policy for the agent's own actions and for branches, another for roll-outs.

    For example, a small policy proposes the mistakes that it makes, and an expert plays on after
    each. Then a tree costs one drawn action per branch, and its Q measures the cost of a mistake to
    an agent that knows the way back, not how often the policy happens to find it.
    """

    def __init__(self, branching: BatchPolicy | HostedPolicy, rollouts: BatchPolicy | HostedPolicy) -> None:
        self.name = branching.name
        self.branching, self.rollouts = branching, rollouts

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order; where one of them is hosted, the driver asks that one itself."""
        is_rollout = [request.role == "rollout" for request in requests]
        answers: dict[bool, Iterator[list[Candidate]]] = {}
        for rollout in sorted(set(is_rollout)):
            policy = self.rollouts if rollout else self.branching
            assert not isinstance(policy, HostedPolicy)
            own = [r for r, flag in zip(requests, is_rollout, strict=True) if flag == rollout]
            answers[rollout] = iter(policy.sample_batch(own))
        return [next(answers[flag]) for flag in is_rollout]


JobPolicy = BatchPolicy | HostedPolicy
"""Any policy that a job can draw from."""


def policies_of(policy: JobPolicy) -> tuple[JobPolicy, JobPolicy]:
    """The one that draws, and the one that plays roll-outs."""
    return (policy.branching, policy.rollouts) if isinstance(policy, PolicyWithRollouts) else (policy, policy)


def is_any_hosted(policy: JobPolicy | None) -> bool:
    """True if some draws are an upstream's."""
    return policy is not None and any(isinstance(one, HostedPolicy) for one in policies_of(policy))


def guide_actions(task: RolloutTask[T], *, num_candidates: int, prior: PriorSection | None = None) -> RolloutTask[T]:
    """The same task with guided actions: each is chosen by Q among candidates of the policy.

    With it, the paths of a tree lead through states that the guided agent reaches, and the branches
    are the candidates between which the agent must choose there.

    Args:
        task: a rollout task whose draws for the role "act" are of one candidate.
        prior: weighed against Q; None is the argmax of Q.
    """

    def guided(request: RolloutRequest) -> Generator[RolloutRequest, Any, Any]:
        if not (isinstance(request, SampleRequest) and request.role == "act"):
            return (yield request)
        guidance = with_prior(Guidance(num_candidates, request.sampling), prior)
        return [_best((yield from decide(request.history, guidance)))]

    return answered_by(task, guided)


def _best(decision: Decision) -> Candidate:
    """The chosen candidate, charged with the tokens of all candidates."""
    chosen = decision.candidates[decision.chosen]
    return replace(chosen, completion_tokens=decision.usage.completion_tokens)


class ListedPolicy:
    """Actions that the environment lists, drawn at random; or its solutions, with such mistakes.

    A solution is followed as long as the episode has followed it. Each draw at a temperature above
    0 is a random action with a probability that equals the temperature.
    """

    def __init__(self, suite: SelectedSuite, *, scripted: bool) -> None:
        """Check that there are actions, or solutions."""
        self.name = "scripted" if scripted else "random"
        self._suite = suite
        self._gold = suite.require_gold() if scripted else None
        self._unsolved = iter(suite.tasks)
        self._solutions: dict[str, list[Message]] = {}
        if not scripted:
            with closing(suite.make(suite.tasks[0])) as episode:
                self._listed(self._suite.environment.chat.history(episode.reset(), ()))

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, which depend only on its history and seed."""
        return [self._draw(request) for request in requests]

    def _draw(self, request: SampleRequest) -> list[Candidate]:
        sampling, history = request.sampling, request.history
        rng = Random(derived_seed(sampling.seed, *(message.text for message in history)))
        solved = self._solved(history)
        replies: list[Message] = []
        for number in range(request.n):
            greedy = sampling.first_greedy and number == 0
            if solved is not None and (greedy or rng.random() >= (sampling.temperature or 0.0)):
                replies.append(solved)
            else:
                replies.append(rng.choice(self._listed(history)))
        return [Candidate(reply, completion_tokens=0) for reply in replies]

    def _listed(self, history: History) -> list[Message]:
        if lists := self._suite.environment.actions:
            actions = lists(history)
        else:  # an answer to what was not understood lists nothing, and the choices are still those before
            seen = (message.text for message in reversed(history) if message.role != "assistant")
            actions = next(filter(None, (tuple(listed_choices(text)) for text in seen)), ())
        if not actions:
            raise ConfigError(
                f"the policy is {self.name!r}, and {self._suite.environment.name} lists no actions after "
                f"{history[-1].text[:_SHOWN]!r}; give its bundle `actions`, or set "
                "environment.actions for one of another interface"
            )
        return [self._reply(action) for action in actions]

    def _reply(self, action: Action) -> Message:
        if isinstance(action, ToolCall):
            return Message("assistant", "", tool_calls=(replace(action, id=action.id or "call"),))
        return text_reply(action if self._suite.environment.chat.parse_action(action) else f"{ACTION_PREFIX} {action}")

    def _solved(self, history: History) -> Message | None:
        """The solution's next reply; None where the episode has left it, or there is none."""
        if self._gold is None:
            return None
        chat = self._suite.environment.chat
        start = len(chat.examples) + (chat.system is not None)
        first = history[start].content
        while first not in self._solutions:
            if (task := next(self._unsolved, None)) is None:
                raise EnvironmentFailureError(
                    f"no task begins with {first[:_SHOWN]!r} when it is played again; solutions need the same start"
                )
            with closing(self._gold.make(task)) as episode:
                self._solutions[episode.reset()] = [text_reply(reply) for reply in self._gold.gold_replies(task)]
        solution = self._solutions[first]
        said = [message for message in history[start:] if message.role == "assistant"]
        follows = all(chat.actions_of(a) == chat.actions_of(b) for a, b in zip(said, solution, strict=False))
        return solution[len(said)] if follows and len(said) < len(solution) else None
