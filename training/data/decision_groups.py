"""Decision groups: a played episode with the value of every distinct candidate at every step.

    groups, rro ─▶ TreeRow ─▶ train-qnet, pairs, choice-regret

An exploration tree holds examples that a Q model may learn from. A decision group holds exactly
what it must choose between: the candidates that the policy draws in states it reaches itself. In
the tree they are the children of one state, and one of them was taken. Rows hold outcomes and steps
only; labels are computed when the rows are read.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import Field

from qguide.qnet.errors import RecordError
from qguide.qnet.records import ROOT_ID, NodeRow, RolloutRow, TreeRow, messages_of
from qguide.qnet.types import Candidate, History, Message
from qguide.training.algorithms.choice_quality import (
    Ending,
    ScoredChoice,
    ValueScale,
    discounted_value,
    linear_value,
    steps_left,
)
from qguide.training.algorithms.tree import Node
from qguide.training.data.records import node_row
from qguide.training.data.runs import read_rows
from qguide.training.options import JobOptions
from qguide.training.trajectory import Step, observation_message, parse_action, reply_key

ContinuationBy = Literal["expert", "policy", "guided"]
"""The agent that plays on after a candidate: the environment's expert, the policy alone, or the
policy guided by a Q model."""


class GroupLabels(JobOptions):
    """Options for computing a candidate's label from its roll-outs.

    Attributes:
        scale: "linear" in steps, or "discounted", which is outcome_reward * gamma^steps.
        step_cost: cost of a step; for "linear" only.
        gamma: discount per step; for "discounted" only.
        horizon: steps counted for a failed roll-out, and at most for any other.
        noop_cost_steps: extra cost, in steps, of an action without effect that follows another one.
            It costs an expert one step, but a policy may be caught in a loop.
    """

    scale: ValueScale = "linear"
    step_cost: float = Field(default=0.02, gt=0)
    gamma: float = Field(default=0.9, gt=0, le=1)
    horizon: int = Field(default=40, ge=1)
    noop_cost_steps: float = Field(default=4.0, ge=0)


@dataclass(frozen=True, slots=True)
class CandidateLabel:
    """Label of a candidate.

    Attributes:
        steps: to the goal after it; fewer are better.
    """

    value: float
    steps: float


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """One state's candidates and the one with which the episode went on.

    Attributes:
        candidates: distinct by `reply_key`, in the order in which they were first drawn; a single
            one if all draws agreed. In a state that was not valued there is only the taken one,
            whose roll-out is the rest of the episode itself.
        greedy: index of the policy's greedy reply; None if it was not among the draws.
        after_noop: the environment did not understand the action before it.
    """

    candidates: tuple[NodeRow, ...]
    chosen: int
    greedy: int | None = None
    history: History = ()
    after_noop: bool = False

    @property
    def taken(self) -> NodeRow:
        """The candidate that the episode took."""
        return self.candidates[self.chosen]

    def labels(self, options: GroupLabels) -> list[CandidateLabel]:
        """The label of each candidate, on the scale of `options`."""
        return [self._label(candidate, options) for candidate in self.candidates]

    def choice(self, labels: Sequence[CandidateLabel], *, task: str) -> ScoredChoice:
        """The candidates with their labels, before a scorer has read them."""
        return ScoredChoice(
            q_values=(),
            steps=tuple(label.steps for label in labels),
            valid=tuple(candidate.valid for candidate in self.candidates),
            draws=tuple(candidate.count for candidate in self.candidates),
            greedy=self.greedy,
            values=tuple(label.value for label in labels),
            logprobs=tuple(candidate.logprob for candidate in self.candidates),
            task=task,
        )

    def _label(self, candidate: NodeRow, options: GroupLabels) -> CandidateLabel:
        endings = [Ending(r.outcome_reward, r.steps - 1) for r in candidate.rollouts]
        stuck = self.after_noop and not candidate.valid
        extra_steps = options.noop_cost_steps if stuck else 0.0
        steps = steps_left(endings, horizon=options.horizon, extra_steps=extra_steps)
        if options.scale == "linear":
            value = linear_value(steps, step_cost=options.step_cost)
        else:
            value = discounted_value(endings, gamma=options.gamma, extra_steps=extra_steps)
        return CandidateLabel(value, steps)


def candidate_node(
    candidate: Candidate, count: int, step: Step, rollouts: Sequence[RolloutRow], *, source: str
) -> NodeRow:
    """A candidate of a decision; `decided_nodes` gives it its place."""
    # What was drawn beside it are its siblings.
    row = node_row(Node(1, ROOT_ID, 1, replace(step, drawn=()), source))
    drawn = {"count": count, "logprob": candidate.logprob, "rollouts": tuple(rollouts)}
    return row.model_copy(update=drawn)


def decided_nodes(decisions: Sequence[GroupDecision]) -> tuple[NodeRow, ...]:
    """The nodes of a played episode; the candidates of a state stand together, as they were drawn."""
    nodes: list[NodeRow] = []
    parent = ROOT_ID
    for depth, decision in enumerate(decisions, start=1):
        first = len(nodes) + 1
        for index, candidate in enumerate(decision.candidates):
            place = {"id": first + index, "parent": parent, "depth": depth}
            marks = {"taken": index == decision.chosen, "greedy": index == decision.greedy}
            nodes.append(candidate.model_copy(update=place | marks))
        parent = first + decision.chosen
    return tuple(nodes)


def decisions_of(row: TreeRow) -> list[GroupDecision]:
    """The decisions of an episode, one for each of its steps."""
    children: dict[int, list[NodeRow]] = defaultdict(list)
    for node in row.nodes:
        children[node.parent].append(node)
    system = () if row.system is None else (Message("system", row.system),)
    first = messages_of(row.opening) or (observation_message(row.first_observation),)
    history: History = (*system, *first)
    found: list[GroupDecision] = []
    at, after_noop = ROOT_ID, False
    while candidates := children.pop(at, None):
        chosen = _chosen(candidates, row)
        greedy = next((i for i, node in enumerate(candidates) if node.greedy), None)
        found.append(GroupDecision(tuple(candidates), chosen, greedy, history, after_noop))
        taken = found[-1].taken
        history = (*history, taken.message, *taken.answer)
        at, after_noop = taken.id, not taken.valid
    if children or at == ROOT_ID:
        raise _no_groups(row)
    return found


def choices_of(row: TreeRow) -> list[GroupDecision]:
    """The decisions of an episode between at least two distinct candidates."""
    return [decision for decision in decisions_of(row) if len(decision.candidates) > 1]


def _chosen(candidates: Sequence[NodeRow], row: TreeRow) -> int:
    keys = [_key_of(node.message) for node in candidates]
    if repeated := {key for key in keys if keys.count(key) > 1}:
        raise RecordError(
            f"the tree of {row.task_id} has {sorted(repeated)[0]!r} among the candidates of node "
            f"{candidates[0].parent} twice; count equal draws in one candidate"
        )
    taken = [index for index, node in enumerate(candidates) if node.taken]
    if len(taken) != 1 or not all(node.rollouts for node in candidates):
        raise _no_groups(row)
    return taken[0]


def _key_of(reply: Message) -> str:
    """The text by which candidates differed in older rows, too: any but an action's, all of it."""
    if reply.tool_calls:
        return reply_key(reply)
    return parse_action(reply.content) or reply.content.strip()


def _no_groups(row: TreeRow) -> RecordError:
    return RecordError(
        f"the tree of {row.task_id} holds no decision groups, in which one candidate of each state "
        "is taken and all are played on; name a run folder of `qguide groups`"
    )


def holds_groups(folder: Path) -> bool:
    """True if the first row of a run folder or file is the tree of an episode's decision groups."""
    try:
        return any(row.is_decided for row in islice(read_rows(folder, TreeRow), 1))
    except RecordError:  # a recording of that name, or a flaw that its reader tells
        return False


def read_groups(folder: Path) -> Iterator[TreeRow]:
    """The decision groups in a run folder or a file of rows."""
    for row in read_rows(folder, TreeRow):
        decisions_of(row)
        yield row


def outcomes_differ(decision: GroupDecision) -> bool:
    """True if playing on from its candidates led to different mean outcomes: there is something to learn."""
    means = {fmean(rollout.outcome_reward for rollout in node.rollouts) for node in decision.candidates}
    return len(means) > 1
