"""The request of a guided step, and its result."""

from dataclasses import dataclass

from qguide.qnet.decision.decision import Decision
from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.types import History, Sampling
from qguide.server.guidance.readable_view import ReadableView
from qguide.server.messages.schemas import StepOptions
from qguide.server.q_models.policies import ServedPolicy


@dataclass(frozen=True, slots=True)
class GuidedStepRequest:
    """A validated request for an action.

    Attributes:
        num_candidates: M.
        n: number of candidates that the caller wants, best first.
        unreadable: why Q models cannot read this history as it is (the policy can); None if they
            can.
        view: what Q models can read of such a history; None if they can read nothing of it.
        warnings: what could not be passed on to the policy, and why.
        agent_session: the session that the body names (`prompt_cache_key`), "" for none; once the
            step is in an episode, the session that named it.
    """

    policy: ServedPolicy
    history: History
    sampling: Sampling
    num_candidates: int
    options: StepOptions
    n: int = 1
    unreadable: MalformedHistoryError | None = None
    view: ReadableView | None = None
    warnings: tuple[str, ...] = ()
    agent_session: str = ""

    @property
    def has_tools(self) -> bool:
        """True if the policy may call tools."""
        given = self.sampling.parameters
        return bool(given.get("tools") or given.get("functions"))

    @property
    def read_history(self) -> History:
        """The history as Q models read it."""
        return self.view.history if self.view else self.history


@dataclass(frozen=True, slots=True)
class GuidedStepResult:
    """The decision of a guided step, its models, its duration and its episode.

    Attributes:
        judge: the Q model is a judge.
        action_policies: the policy of each action below the threshold.
    """

    decision: Decision
    policy: str
    q_model: str
    q_model_version: str
    total_ms: float
    episode_id: str | None = None
    judge: bool = False
    action_policies: tuple[str, ...] = ()
