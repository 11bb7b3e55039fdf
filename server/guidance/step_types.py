"""The request of a guided step, and its result."""

from dataclasses import dataclass

from qguide.qnet.decision.decision import Decision
from qguide.qnet.errors import (
    HistoryTooLongError,
    InvalidRequestError,
    MalformedHistoryError,
    UnknownModelError,
)
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
        too_long: the history is too long for the Q model, and so is every window that may be read.
        no_q_model: no Q model is named, and why.
        explore: see `qguide.qnet.decision.decide.Guidance`.
        shadowed: all candidates are drawn for a version in the shadow, whatever is chosen.
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
    too_long: HistoryTooLongError | None = None
    no_q_model: UnknownModelError | None = None
    explore: int | None = None
    shadowed: bool = False
    agent_session: str = ""

    @property
    def has_tools(self) -> bool:
        """True if the policy may call tools."""
        given = self.sampling.parameters
        return bool(given.get("tools") or given.get("functions"))

    @property
    def obstacle(self) -> InvalidRequestError | None:
        """Reason why no candidate can be judged for this history; None if they can."""
        unreadable = self.unreadable if self.view is None else None
        return self.no_q_model or self.too_long or unreadable

    @property
    def blind(self) -> bool:
        """True if no Q model can judge candidates for this history."""
        return self.obstacle is not None

    @property
    def chooses(self) -> bool:
        """True if something chooses among several candidates."""
        return not self.blind or self.explore is not None or self.shadowed


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
