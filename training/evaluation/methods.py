"""The methods that are compared, as agents (QLASS, algorithm 4 and section 5).

An agent sees only the history and the models' answers: no reward ever reaches this code, so the
guided agent cannot use it. Best-of-n and q-guided-n peek at the true reward, after their
trajectories are over, and are labelled accordingly. Methods that execute candidates and then choose
by Q are in `search` and `beam_search`.

All methods except greedy and best-of-n derive their seeds from the same parts, so methods with
equal histories choose among the same candidates.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from qguide.qnet.decision.decision import Guidance
from qguide.qnet.decision.early_stop import UntilDecided
from qguide.qnet.decision.selection import DEFAULT_TAU, PriorBy
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.manifest import PriorSection
from qguide.qnet.packages import import_named, raised_text
from qguide.qnet.types import Candidate, History, SampleRequest, Sampling
from qguide.training.rollouts.episode import (
    Agent,
    AgentStep,
    derived_seed,
    first_reply,
    guided_agent,
    seeded,
    with_prior,
)
from qguide.training.rollouts.rollout import ModelRequest
from qguide.training.trajectory import reply_key


@dataclass(frozen=True, slots=True)
class Play:
    """Options of an episode; see `EvaluateConfig`.

    Attributes:
        sampling: sampling of the candidates; its seed is replaced at every step.
    """

    candidates: int = 5
    sampling: Sampling = field(default_factory=Sampling)
    greedy_candidate: bool = False
    max_steps: int = 40
    tau: float = DEFAULT_TAU
    prior: PriorBy = "votes"
    greedy_weight: float = 0.0
    until: UntilDecided | None = None

    @property
    def drawing(self) -> Sampling:
        """Sampling of the M candidates of a step."""
        return replace(self.sampling, first_greedy=self.greedy_candidate)


def greedy(play: Play, *_: int | str) -> Agent:
    """M = 1 at temperature 0, whatever seed and task."""
    return first_reply(lambda step: replace(play.sampling, temperature=0.0, seed=None))


def sample(play: Play, seed: int, task_id: str) -> Agent:
    """M = 1 at the sampling temperature."""
    return first_reply(seeded(play.sampling, seed, task_id))


def random_of_m(play: Play, seed: int, task_id: str) -> Agent:
    """A random one of the M draws, so that a reply drawn twice is twice as likely."""
    return _choosing(play, seed, task_id, lambda history, drawn, rng: rng.choice(drawn))


def random_distinct(play: Play, seed: int, task_id: str) -> Agent:
    """A random one of the distinct candidates: q-guided with a Q model that knows nothing.

    An argmax takes a reply that was drawn once as readily as one that was drawn four times, so
    this is its null hypothesis, and `random_of_m` is not.
    """
    return _choosing(play, seed, task_id, lambda history, drawn, rng: rng.choice(_distinct(drawn)))


def no_repeat(play: Play, seed: int, task_id: str, *, void_observation: str) -> Agent:
    """A random one of the distinct candidates, without the actions that have just failed.

    Args:
        void_observation: the environment's answer to an action that it does not understand; if it
            is "", no candidate is left out.
    """

    def pick(history: History, drawn: Sequence[Candidate], rng: Random) -> Candidate:
        failed = _failed_actions(history, void_observation)
        distinct_ones = _distinct(drawn)
        fresh = [c for c in distinct_ones if reply_key(c.message) not in failed]
        return rng.choice(fresh or distinct_ones)

    return _choosing(play, seed, task_id, pick)


def self_consistency(play: Play, seed: int, task_id: str) -> Agent:
    """The most frequent action among the M draws, whatever the thought; ties go to the earliest.

    (Self-consistency of Wang et al., 2023, with one action as the answer.)
    """

    def pick(history: History, drawn: Sequence[Candidate], rng: Random) -> Candidate:
        keys = [reply_key(candidate.message) for candidate in drawn]
        return max(drawn, key=lambda c: keys.count(reply_key(c.message)))

    return _choosing(play, seed, task_id, pick)


def likeliest(play: Play, seed: int, task_id: str) -> Agent:
    """The candidate that the policy finds most likely; ties go to the earliest."""

    def pick(history: History, drawn: Sequence[Candidate], rng: Random) -> Candidate:
        return max(drawn, key=_logprob)

    return _choosing(play, seed, task_id, pick)


Pick = Callable[[History, Sequence[Candidate], Random], Candidate]
"""Chooses from (history, all M candidates, random generator)."""


def _choosing(play: Play, seed: int, task_id: str, pick: Pick) -> Agent:
    """An agent that draws the same candidates as q-guided and chooses without a Q model."""
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        candidates: list[Candidate] = yield SampleRequest(history, play.candidates, sampling_at(step))
        rng = Random(derived_seed(seed, task_id, step, "pick"))
        return AgentStep(
            message=pick(history, candidates, rng).message,
            completion_tokens=sum(candidate.completion_tokens for candidate in candidates),
            distinct_candidates=len({candidate.message for candidate in candidates}),
        )

    return choose


def _distinct(drawn: Sequence[Candidate]) -> list[Candidate]:
    return list({candidate.message: candidate for candidate in reversed(drawn)}.values())[::-1]


def _failed_actions(history: History, void_observation: str) -> set[str]:
    """The actions since the last observation that was not void; each would fail again here."""
    failed: set[str] = set()
    for reply, observation in zip(history[-2::-2], history[::-2], strict=False):
        if not void_observation or observation.content.strip() != void_observation:
            break
        failed.add(reply_key(reply))
    return failed


def _logprob(candidate: Candidate) -> float:
    if candidate.logprob is None:
        raise ConfigError(
            "the policy reports no log-probabilities for its candidates; leave out the method "
            "`likeliest`, or use a policy that runs in this process"
        )
    return candidate.logprob


def q_guided(
    play: Play,
    seed: int,
    task_id: str,
    *,
    trajectory: int = 0,
    explored: float = 0.0,
    prior: PriorSection | None = None,
) -> Agent:
    """The distinct candidate of highest Q (QLASS, algorithm 4).

    The server's own code makes the decision (`qguide.qnet.decision.decide`); a step whose
    candidates are all the same needs no Q and is not scored.

    Args:
        trajectory: number of the trajectory of q-guided-n; 0 is the only one of q-guided.
        explored: share of the steps that take a random one of their candidates.
        prior: weighed against Q, as a server does with a Q model that has one.
    """
    parts = ("q-guided-n", trajectory) if trajectory else ()
    sampling_at = seeded(play.drawing, seed, task_id, *parts)

    def guidance(step: int) -> Guidance:
        luck = derived_seed("explored", seed, task_id, step)
        explore = luck if Random(luck).random() < explored else None
        return with_prior(Guidance(play.candidates, sampling_at(step), explore=explore), prior)

    return guided_agent(guidance)


def q_posterior(play: Play, seed: int, task_id: str) -> Agent:
    """The candidate of highest Q / tau + log prior, among the candidates of q-guided (ours).

    The server decides the same with `"selection": "posterior"`, and `"until_decided": true` where
    draws end once decided.
    """
    sampling_at = seeded(play.drawing, seed, task_id)
    return guided_agent(
        lambda step: Guidance(
            play.candidates,
            sampling_at(step),
            selection="posterior",
            tau=play.tau,
            prior=play.prior,
            greedy_weight=play.greedy_weight,
            until=play.until,
        )
    )


def adaptive(play: Play, seed: int, task_id: str) -> Agent:
    """q-guided with at most M candidates: it draws until Q is above the previous step's.

    The first step draws all M. The server decides the same with `"adaptive": true`.
    """
    sampling_at = seeded(play.drawing, seed, task_id)
    previous_q: float | None = None

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        nonlocal previous_q
        guidance = Guidance(play.candidates, sampling_at(step), rise_over=previous_q, always_score=True)
        choice = yield from guided_agent(lambda _: guidance)(history, step)
        assert choice.decision is not None, "a guided agent decides"
        assert choice.decision.q_values is not None, "every candidate is scored"
        previous_q = choice.decision.q_values[choice.decision.chosen]
        return choice

    return choose


Method = Callable[[Play, int, str], Agent]
"""The agent of an episode, by (play, seed, task's id)."""

AGENTS: Final[Mapping[str, Method]] = {
    "greedy": greedy,
    "sample": sample,
    "random-of-m": random_of_m,
    "random-distinct": random_distinct,
    "self-consistency": self_consistency,
    "likeliest": likeliest,
    "q-guided": q_guided,
    "q-posterior": q_posterior,
    "adaptive": adaptive,
}
"""Methods that play one episode and know nothing of the environment."""


def method_of(name: str) -> Method:
    """The method of ours, or the one that an import path names."""
    if name in AGENTS:
        return AGENTS[name]
    if ":" not in name:
        known = ", ".join(AGENTS)
        raise ConfigError(f"no function alone is the method {name!r}; name one of {known}, or package.module:name")
    try:
        found = import_named(name)
    except Exception as error:
        raise ConfigError(
            f"method {name!r} cannot be imported: {raised_text(error)}; it has to be installed, or in "
            "the current folder"
        ) from error
    if not callable(found):
        raise ConfigError(f"method {name!r} is {found!r}; name a function of (play, seed, task_id) that gives an agent")
    method: Method = found
    return method
