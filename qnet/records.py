"""Rows that the server and the offline jobs share, one JSON object per line.

    /v1/act, outcome ─┐
    explore, import ──┴▶ TreeRow ─▶ label
    groups, rro ───────▶ TreeRow ─▶ train-qnet, pairs, choice-regret
    /v1/act, outcome ──▶ OfferRow

A row that does not match is refused, never repaired. The version rises whenever an older reader
would misread a new row.
"""

from collections.abc import Iterable
from functools import partial
from operator import eq
from statistics import fmean
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, model_validator

from qguide.qnet.trial_statistics import ALPHA
from qguide.qnet.types import ActionOutcome, Message, Role, ThresholdAction, ToolCall

ROOT_ID: Final = 0
"""The task before any action. It is not among a tree's nodes."""
MAX_REWARD: Final = 1e6
"""Largest magnitude of a reward in any row: sums of squares stay finite and exact enough."""
JUDGED: Final = "judge:"
"""Beginning of the column of a judge's scores, before its `name@version`."""
EARNED: Final = "earned"
"""Column of the outcome if the episode had ended after each action."""

NonEmpty = Annotated[str, Field(min_length=1)]
Reward = Annotated[FiniteFloat, Field(ge=-MAX_REWARD, le=MAX_REWARD)]


def _omitted(default: object) -> Any:
    """A field that is not written where it has this value."""
    # In C: it is asked for every such field of every row that is written.
    return Field(default=default, exclude_if=partial(eq, default))


class Row(BaseModel, frozen=True, extra="forbid"):
    """Base of all rows."""


class ToolCallRow(Row):
    """One call of a tool; `arguments` is the text that the model wrote, a function's as JSON."""

    name: str
    arguments: str
    id: str = ""
    kind: Literal["function", "custom"] = _omitted("function")


class MessageRow(Row):
    """One chat message; the tool-call fields are written only if they are set."""

    role: Role
    content: str
    tool_calls: tuple[ToolCallRow, ...] = _omitted(())
    tool_call_id: str = _omitted("")

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """The message as a row."""
        calls = [ToolCallRow(name=c.name, arguments=c.arguments, id=c.id, kind=c.kind) for c in message.tool_calls]
        return cls(
            role=message.role, content=message.content, tool_calls=tuple(calls), tool_call_id=message.tool_call_id
        )

    def to_message(self) -> Message:
        """The row as a message."""
        calls = [ToolCall(c.name, c.arguments, c.id, c.kind) for c in self.tool_calls]
        return Message(self.role, self.content, tuple(calls), self.tool_call_id)


def rows_of(messages: Iterable[Message]) -> tuple[MessageRow, ...]:
    """A history as rows."""
    return tuple(MessageRow.from_message(message) for message in messages)


def messages_of(rows: Iterable[MessageRow]) -> tuple[Message, ...]:
    """Rows as a history."""
    return tuple(row.to_message() for row in rows)


class TaskRow(Row):
    """Task that a row belongs to."""

    task_id: NonEmpty
    kind: str
    environment: NonEmpty


class DrawnRow(Row):
    """A candidate that the policy drew in the state before an action.

    Attributes:
        action: the candidate's text, as in `NodeRow`.
        count: how often it was drawn.
        greedy: whether it is the policy's greedy reply; None if that is unknown.
        reply: the candidate as a message, if it calls tools.
        propensity: probability with which a random choice took it; None if none was made.
    """

    action: str
    count: Annotated[int, Field(ge=1)]
    greedy: bool | None = _omitted(None)
    propensity: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = _omitted(None)
    reply: MessageRow | None = _omitted(None)


class RolloutRow(Row):
    """One roll-out from a state to the end of its episode.

    Attributes:
        outcome_reward: reward at the end, whether the environment or a step limit ended it.
        steps: environment steps to the end or the limit; after an action, with that action.
        terminated: False if a step limit cut it off.
    """

    outcome_reward: Reward
    steps: Annotated[int, Field(ge=1)]
    terminated: bool


class NodeRow(Row):
    """One action of a tree and its effect.

    Attributes:
        id: its place in the tree's `nodes`, counted from 1 (0 is the root).
        parent: the id of the node it follows, smaller than its own.
        depth: actions from the root, this one included.
        action: the whole reply ("Thought: … Action: …"), tool calls as lines of `Message.text`.
        observation: all that was observed, as one text.
        reply: the reply as a message, if it calls tools; null if `action` is all of it.
        observed: the messages after the reply, if they are not one user message of the text
            `observation`; null if they are.
        drawn: the different candidates that the policy drew before the action; empty if unknown.
        reward: the outcome reward on a trajectory's last action, 0 on the others.
        terminated: the environment ended the episode here; null if a recording that ends here does not say so.
        valid: False if the action meant nothing to the environment.
        tried: False for a candidate that nobody took: what would have come of it is unknown.
        source: "expert" or a policy's name, of the trajectory that brought the node first.
        sources: the agents that took this action; written only if several were asked.
        count: of a decision group, how many draws in its state have this action; of merged episodes, how many
            ended here. 1 where that was not counted.
        greedy: it is the policy's greedy reply in its state.
        logprob: log-probability of `action`, summed over its tokens at temperature 1; None if the
            policy does not report it.
        taken: the agent's own episode took it; of decision groups and of `ipr`.
        mistake: nobody is to imitate it, such as what an expert did wrong on purpose.
        rollouts: the episode played on from here. If the action ended the episode, there is one,
            of a single step.
    """

    id: Annotated[int, Field(ge=1)]
    parent: NonNegativeInt
    depth: Annotated[int, Field(ge=1)]
    action: str
    observation: str
    reward: Reward = 0.0
    terminated: bool | None = False
    valid: bool = True
    tried: bool = _omitted(True)
    source: NonEmpty
    reply: MessageRow | None = _omitted(None)
    observed: tuple[MessageRow, ...] | None = _omitted(None)
    drawn: tuple[DrawnRow, ...] = _omitted(())
    sources: tuple[NonEmpty, ...] = _omitted(())
    count: Annotated[int, Field(ge=1)] = _omitted(1)
    greedy: bool = _omitted(False)
    logprob: FiniteFloat | None = _omitted(None)
    taken: bool = _omitted(False)
    mistake: bool = _omitted(False)
    rollouts: tuple[RolloutRow, ...] = _omitted(())

    @model_validator(mode="after")
    def _only_replies_are_the_assistants(self) -> Self:
        if self.reply is not None and self.reply.role != "assistant":
            raise ValueError(f"the reply of node {self.id} has the role {self.reply.role!r}")
        if self.observed and any(row.role == "assistant" for row in self.observed):
            raise ValueError(f"node {self.id} observed an assistant's message")
        return self

    @property
    def message(self) -> Message:
        """The action as a chat message."""
        return Message("assistant", self.action) if self.reply is None else self.reply.to_message()

    @property
    def answer(self) -> tuple[Message, ...]:
        """The messages that answer the action."""
        if self.observed is None:
            return (Message("user", self.observation),)
        return messages_of(self.observed)

    @property
    def outcome(self) -> float:
        """Mean outcome reward of the roll-outs, of which there has to be one."""
        return fmean(rollout.outcome_reward for rollout in self.rollouts)


class TreeRow(TaskRow):
    """The one record of what was tried in a task: its actions as a tree, and values of them.

    `explore` writes the tree that it grew (QLASS algorithm 2), a search with the columns `visits`
    and `mcts` (StepQ algorithm 1); `label` adds the column of its target, and `train-qnet` reads
    that. `collect` writes one path for each episode, with `earned` where rewards came on the way.
    The server writes one path for each episode with an outcome, with the other candidates
    and a judge's scores where a judge was the Q model. `groups` and `rro` write decision groups: a
    played path whose siblings are the other candidates of its states, each with its roll-outs.
    `ipr` writes an expert's path and an agent's beside it, with the step rewards as `process`.

    Attributes:
        first_observation: the root's state: the task and what is seen.
        system: the system message before it, None without one.
        opening: the root's state as messages, without `system`; empty if it is one user message
            of the text `first_observation`.
        nodes: parents before their children, ids 1, 2, 3, …
        values: named columns with one value per node, None for a node without one.
        draws: trajectories drawn from the policy.
        misses: attempts at a branch in which no candidate was new.
        completion_tokens: tokens drawn, those of discarded candidates included.
        rollouts: the task played from its first observation; only `rro` does that.
        episode: id of the served episode, the same as in its offers; "" of an exploration.
    """

    version: Literal[2] = 2
    first_observation: str
    system: str | None = None
    opening: tuple[MessageRow, ...] = _omitted(())
    nodes: tuple[NodeRow, ...]
    values: dict[str, tuple[FiniteFloat | None, ...]] = _omitted({})
    draws: NonNegativeInt
    misses: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0
    rollouts: tuple[RolloutRow, ...] = _omitted(())
    episode: str = _omitted("")

    @model_validator(mode="after")
    def _columns_and_opening_fit(self) -> Self:
        for name, column in self.values.items():
            if len(column) != len(self.nodes):
                raise ValueError(f"the column {name!r} has {len(column)} values for {len(self.nodes)} nodes")
        if any(row.role == "assistant" for row in self.opening):
            raise ValueError("the opening holds an assistant's message; make it a node")
        return self

    @model_validator(mode="after")
    def _nodes_form_a_tree(self) -> Self:
        depths = {ROOT_ID: 0}
        untried = set[int]()
        for expected_id, node in enumerate(self.nodes, start=1):
            if node.id != expected_id:
                raise ValueError(f"node {expected_id} has the id {node.id}")
            if node.parent not in depths:
                raise ValueError(f"node {node.id} comes before its parent {node.parent}")
            if node.depth != depths[node.parent] + 1:
                raise ValueError(f"node {node.id} has depth {node.depth}, not its parent's + 1")
            if node.parent in untried:
                raise ValueError(f"node {node.id} follows a candidate that was not tried")
            depths[node.id] = node.depth
            if not node.tried:
                untried.add(node.id)
        return self

    @model_validator(mode="after")
    def _taken_actions_form_a_path(self) -> Self:
        at, ended = ROOT_ID, False
        for node in (node for node in self.nodes if node.taken):
            if node.parent != at:
                raise ValueError(
                    f"node {node.id} was taken after node {node.parent}, but the path taken was at node {at}"
                )
            if ended:
                raise ValueError(f"node {node.id} was taken after node {at} had ended the episode")
            at, ended = node.id, node.terminated is not False
        return self

    @property
    def tried(self) -> tuple[NodeRow, ...]:
        """The actions, without the candidates that nobody took."""
        return tuple(node for node in self.nodes if node.tried)

    @property
    def is_decided(self) -> bool:
        """True for decision groups."""
        return any(node.rollouts for node in self.nodes)


class OfferedRow(Row):
    """A candidate of a served step; `q_value` is None where none was read.

    Attributes:
        count: how often it was drawn; None if that was not recorded.
        greedy: whether it is the policy's greedy reply; None if that is unknown.
        verdicts: digit by each of the judge's criteria; empty without criteria.
        judge_reason: the judge's reason for them, in its words.
    """

    content: str
    q_value: FiniteFloat | None
    count: Annotated[int, Field(ge=1)] | None = _omitted(None)
    greedy: bool | None = _omitted(None)
    verdicts: dict[str, FiniteFloat] = _omitted({})
    judge_reason: str = _omitted("")


class ThresholdActionRow(Row):
    """An action of a served step whose best Q was below the operator's threshold.

    Attributes:
        policy: the policy that drew; "" for `stop`.
        candidates: texts that it drew, in `candidates` of the step as well.
        q_before, q_after: best Q without and with them.
    """

    action: ThresholdAction
    outcome: ActionOutcome
    policy: str = ""
    candidates: tuple[str, ...] = ()
    q_before: FiniteFloat
    q_after: FiniteFloat
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0


class OfferRow(Row):
    """One served step: its candidates, and what became of the episode.

    Attributes:
        depth: number of the step's action in the episode, from 1.
        candidates: the distinct ones, in the order in which they were drawn.
        chosen: the candidate that was answered, or would have been if the step was not stopped.
        taken: the action in the episode, which is the agent's to decide; "" for a step that was
            stopped, where the agent did nothing else.
        q_model: `name@version` that gave the Q-values.
        policy: the one that drew the candidates, "agent" where the caller brought its own.
        episode: id of the episode, made up when it was recorded; "" in rows of before.
        asked: the Q model, alias or split that the request named; "" for the default.
        reason: why `chosen` was chosen; "" in rows of before.
        tau: temperature of Q in the posterior by which it was; None without one.
        completion_tokens: tokens drawn for the step.
        duration_ms: time of the step in the server.
        judge: the Q-values are a judge's, a prompted chat model's.
        left_out_messages, left_out_tokens: of the history, where the Q model read a window of it.
        threshold: the Q below which actions are taken; None where none is set.
        actions: those that were taken.
        out_of_domain: the state was outside the Q model's domain, and no Q chose; None in rows of
            before.
        shadow: `name@version` of a second Q model that scored the step without effect; "" for none,
            None in rows of before.
        shadow_chosen: the candidate that a learned version in the shadow would have chosen; ""
            without one.
        arm: how the episode was played while the server learned; "" without learning.
        trial: number of the trial in which the episode was begun; 0 before the first.
        trial_share: probability with which it was guided; 0 outside trials and guidance.
        trial_guess: of the outcome, by the episodes before of the same task; None: tasks do not
            differ.
        challenger: it was guided by a newer version, which was tried against the present one.
        group: the key, or "+" and the name of the keys, whose episodes are learned from together;
            "" without learning or without keys.
        alpha: of the server's trials (`QGUIDE_LEARN_ALPHA`).
        at: Unix time in seconds at which the episode was recorded; None in rows of before.
        propensity: probability of `chosen` among these candidates, given whether the step explored
            at random; None without learning.
    """

    task_id: NonEmpty
    depth: Annotated[int, Field(ge=1)]
    candidates: tuple[OfferedRow, ...]
    chosen: str
    taken: str
    q_model: str
    policy: NonEmpty
    outcome_reward: Reward
    episode: str = _omitted("")
    asked: str = _omitted("")
    reason: str = _omitted("")
    tau: FiniteFloat | None = _omitted(None)
    completion_tokens: NonNegativeInt | None = _omitted(None)
    duration_ms: Annotated[FiniteFloat, Field(ge=0)] | None = _omitted(None)
    judge: bool = _omitted(False)
    left_out_messages: NonNegativeInt = _omitted(0)
    left_out_tokens: NonNegativeInt = _omitted(0)
    threshold: FiniteFloat | None = _omitted(None)
    actions: tuple[ThresholdActionRow, ...] = _omitted(())
    out_of_domain: bool | None = _omitted(None)
    shadow: str | None = _omitted(None)
    shadow_chosen: str = _omitted("")
    arm: Literal["", "guided", "unguided"] = _omitted("")
    trial: NonNegativeInt = _omitted(0)
    trial_share: Annotated[FiniteFloat, Field(ge=0, le=1)] = _omitted(0.0)
    trial_guess: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = _omitted(None)
    challenger: bool = _omitted(False)
    group: str = _omitted("")
    alpha: Annotated[FiniteFloat, Field(gt=0, lt=1)] = _omitted(ALPHA)
    at: FiniteFloat | None = _omitted(None)
    propensity: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = _omitted(None)
