"""Collect decision groups: every distinct candidate of played episodes, valued by playing on.

    qguide groups --config training/configs/alfworld/embedded/groups.toml

reads a policy and, to guide it, a Q model; writes one row per episode. Values come from the
environment's expert, from roll-outs of the policy (as in the papers), or from roll-outs of the
guided policy. Many episodes are played in parallel, so that the policy samples in batches. The seed
of a draw is derived from (seed, task, step), so neither `parallel` nor a resume changes a row.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Self

from pydantic import Field, model_validator

from qguide.qnet.records import TreeRow
from qguide.qnet.types import Sampling
from qguide.training.data.decision_groups import ContinuationBy, decisions_of, outcomes_differ, read_groups
from qguide.training.environment import EnvironmentBundle, Expert, Task
from qguide.training.evaluation.methods import Play, q_guided
from qguide.training.exploration.decision_groups import (
    Continuing,
    Decisions,
    decided_row,
    expert_continuing,
    play_decisions,
)
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import Agent, derived_seed, first_reply, seeded
from qguide.training.rollouts.harness import PlayableTask, Rollouts
from qguide.training.rollouts.method import JobModels, Method, MethodConfig, PlayedTask, play_job
from qguide.training.rollouts.models import EMBEDDED, expert_builder
from qguide.training.rollouts.rollout import RolloutTask


class Continuation(JobOptions):
    """Options for the continuations that value a candidate.

    Attributes:
        by: the environment's "expert", the "policy", or the policy "guided" by `qnet`.
        repetitions: roll-outs of each candidate; must be 1 for an expert or a greedy policy, whose
            roll-outs would all be equal.
        first: roll-outs of each candidate that come first; the other repetitions only in states where
            the outcomes of these vary. None plays all everywhere.
        temperature: sampling temperature of a roll-out; 0 is greedy.
        candidates: M of the guided policy.
    """

    by: ContinuationBy = "expert"
    repetitions: int = Field(default=1, ge=1)
    first: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.7, ge=0)
    candidates: int = Field(default=5, ge=2)

    @model_validator(mode="after")
    def _repetitions_differ(self) -> Self:
        alike = self.by == "expert" or (self.by == "policy" and self.temperature == 0)
        if alike and self.repetitions > 1:
            raise ValueError(
                f"repetitions is {self.repetitions}, but all of them would be equal; set "
                'repetitions to 1, or by to "policy" and a temperature above 0'
            )
        if self.first is not None and self.first >= self.repetitions:
            raise ValueError(
                f"first is {self.first} and repetitions {self.repetitions}; raise repetitions, or leave out first"
            )
        return self


class GroupsConfig(MethodConfig):
    """Configuration of `qguide groups`.

    Attributes:
        policy: the policy that draws the candidates: "embedded", a folder, "upstream:NAME", an
            address with "#" and a model, or "random" or "scripted", which need no model.
        qnet: "embedded" or a Q model's folder, if `decisions.go_on` or `continuation.by` is
            "guided"; "" for none.
        decisions: how an episode is played and its candidates are drawn.
        continuation: how each candidate is valued.
        differing: number of states whose candidates differ in their mean outcomes after which no further
            state is valued, those of earlier starts included; None values all.
    """

    policy_fields = ("policy",)
    q_field = "qnet"

    policy: str = EMBEDDED
    qnet: str = ""
    decisions: Decisions = Decisions()
    continuation: Continuation = Continuation()
    differing: int | None = Field(default=None, ge=1)

    @property
    def is_guided(self) -> bool:
        """True if a Q model is needed."""
        return "guided" in (self.decisions.go_on, self.continuation.by)

    @model_validator(mode="after")
    def _guided_by_a_qnet(self) -> Self:
        if self.is_guided != bool(self.qnet):
            raise ValueError(
                f"qnet is {self.qnet!r}, decisions.go_on {self.decisions.go_on!r} and "
                f"continuation.by {self.continuation.by!r}; name a qnet if one of the two is "
                '"guided", and only then'
            )
        return self


def _continuing(config: GroupsConfig, task: Task, build_expert: Callable[[], Expert] | None) -> Continuing:
    """The agents that play on, each with a seed of its own."""
    if build_expert is not None:
        return expert_continuing(build_expert)
    sampling = Sampling(config.continuation.temperature, config.decisions.max_tokens)
    play = Play(candidates=config.continuation.candidates, sampling=sampling)

    def continuing(*place: int) -> Agent:
        seed = derived_seed(config.seed, task.id, "on", *place)
        if config.continuation.by == "guided":
            return q_guided(play, seed, task.id)
        return first_reply(seeded(sampling, seed), role="rollout")

    return continuing


class Groups(Method[GroupsConfig]):
    """Plays each task's episode, with the candidates of each of its states."""

    job, unit, rate = "groups", "episodes", "states"
    needs_branches = True

    def __init__(self, config: GroupsConfig, run: Rollouts, models: JobModels) -> None:
        super().__init__(config, run, models)
        run.budget.wanted = config.differing
        if config.differing is not None and run.folder.rows.exists():
            run.budget.found = sum(map(outcomes_differ, chain(*map(decisions_of, read_groups(run.folder.rows)))))
        self._build_expert: Callable[[], Expert] | None = None
        if config.continuation.by == "expert":
            self._build_expert = partial(expert_builder(config.environment), forgetful=True)

    def play(self, playable: PlayableTask) -> RolloutTask[PlayedTask]:
        """Play the decisions of one task."""
        config = self.config
        played = yield from play_decisions(
            playable.game(config.seed),
            config.decisions,
            _continuing(config, playable.task, self._build_expert),
            source=self.source,
            repetitions=config.continuation.repetitions,
            first=config.continuation.first,
            budget=self.run.budget,
        )
        row = decided_row(playable.task, config.environment.name, playable.environment.chat.system, played)
        return PlayedTask([row], groups_figures(row, playable.environment))

    def note(self, summary: Mapping[str, float]) -> str:
        """See `Method`."""
        return f"{summary['states']:,.0f} states  {summary['states_per_s']:.1f}/s"


run_groups = partial(play_job, Groups)


def groups_figures(row: TreeRow, environment: EnvironmentBundle[Any]) -> dict[str, float]:
    """Counts of one episode, to be summed over episodes."""
    decisions = decisions_of(row)
    last = decisions[-1].taken  # its reward is the episode's, also if that was cut off
    succeeded = environment.is_success(last.reward, last.terminated is not False)
    return {
        "won": succeeded,
        "states": len(decisions),
        "differing": sum(map(outcomes_differ, decisions)),
        "choices": sum(len(decision.candidates) > 1 for decision in decisions),
        "candidates": len(row.nodes),
        "invalid_candidates": sum(not node.valid for node in row.nodes),
        "continuations": sum(len(node.rollouts) for node in row.nodes),
        "completion_tokens": row.completion_tokens,
    }
