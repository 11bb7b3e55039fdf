"""TRL's dataset formats: conversations, preferences with a prompt, and stepwise supervision."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count, takewhile
from typing import Annotated, Self

from pydantic import Field

from qguide.qnet.chat_messages import plain_message
from qguide.qnet.records import Row, TreeRow, messages_of
from qguide.qnet.types import Message
from qguide.training.data.decision_groups import GroupLabels, decisions_of
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.records import LabelledTree
from qguide.training.data.trajectories import Trajectory

_SEPARATOR = "\n\n"


class TrlFunction(Row):
    """A function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class TrlTool(Row):
    """A custom tool's name and input."""

    name: str
    input: str


def is_none(value: object) -> bool:
    """True of fields that rows leave out."""
    return value is None


class TrlCall(Row):
    """One tool call in OpenAI's shape."""

    id: str
    type: str
    function: TrlFunction | None = Field(default=None, exclude_if=is_none)
    custom: TrlTool | None = Field(default=None, exclude_if=is_none)


class TrlTurn(Row):
    """One message in OpenAI's shape.

    Attributes:
        weight: 0 for a reply that is not to be imitated; TRL does not read it, others do.
    """

    role: str
    content: str
    tool_calls: tuple[TrlCall, ...] | None = Field(default=None, exclude_if=is_none)
    tool_call_id: str | None = Field(default=None, exclude_if=is_none)
    weight: float | None = Field(default=None, exclude_if=is_none)

    @classmethod
    def of(cls, message: Message, *, imitated: bool = True) -> Self:
        """Convert from `qnet`'s message; text stands in for null, which some templates print."""
        row = plain_message(message)
        return cls.model_validate(row | {"content": row["content"] or "", "weight": None if imitated else 0.0})


class ConversationRow(Row):
    """A conversation for TRL's SFT trainer; the other columns are for you and for `import`."""

    messages: tuple[TrlTurn, ...]
    task_id: str
    reward: float
    terminated: bool | None
    source: str


class ConversationPair(Row):
    """A preference with an explicit prompt, for TRL's DPO and reward trainers."""

    prompt: tuple[TrlTurn, ...]
    chosen: tuple[TrlTurn, ...]
    rejected: tuple[TrlTurn, ...]
    task_id: str
    chosen_value: float
    rejected_value: float


class StepwiseRow(Row):
    """A prompt, its steps, and if each of them is good.

    Attributes:
        completions: the text of each action, behind what was observed after the one before it.
    """

    prompt: str
    completions: Annotated[tuple[str, ...], Field(min_length=1)]
    labels: tuple[bool, ...]
    task_id: str


def conversation_row(episode: Trajectory) -> ConversationRow:
    """An episode as a conversation."""
    return ConversationRow(
        messages=_turns(episode.messages, episode.mistakes),
        task_id=episode.task_id,
        reward=episode.reward,
        terminated=episode.terminated,
        source=episode.source,
    )


def conversation_pair(row: PreferenceRow) -> ConversationPair:
    """A preference pair as conversations."""
    return ConversationPair(
        prompt=_turns(row.history),
        chosen=_turns(messages_of(row.chosen), row.mistakes),
        rejected=_turns(messages_of(row.rejected)),
        task_id=row.task_id,
        chosen_value=row.chosen_value,
        rejected_value=row.rejected_value,
    )


def _turns(messages: Iterable[Message], mistakes: Collection[int] = ()) -> tuple[TrlTurn, ...]:
    replies = count()
    return tuple(
        TrlTurn.of(message, imitated=message.role != "assistant" or next(replies) not in mistakes)
        for message in messages
    )


def stepwise_of_labels(labelled: LabelledTree, *, threshold: float) -> Iterator[StepwiseRow]:
    """Each path of a labelled tree; a step is good if its label is at least `threshold`.

    A path ends before its first action without a label.
    """
    tree, labels = labelled.tree, labelled.labels
    for leaf in tree.leaves():
        ids = takewhile(labels.__contains__, (node.id for node in tree.path(leaf.id)))
        good = tuple(labels[node_id] >= threshold for node_id in ids)
        prompt, steps = _steps(tree.history(leaf.id))
        if good:
            yield StepwiseRow(
                prompt=prompt, completions=tuple(steps[: len(good)]), labels=good, task_id=labelled.task_id
            )


def stepwise_of_groups(row: TreeRow, labels: GroupLabels, *, threshold: float) -> Iterator[StepwiseRow]:
    """Each candidate of an episode's decisions, as a single step."""
    for decision in decisions_of(row):
        for candidate, label in zip(decision.candidates, decision.labels(labels), strict=True):
            yield StepwiseRow(
                prompt=_SEPARATOR.join(message.text for message in decision.history),
                completions=(candidate.action,),
                labels=(label.value >= threshold,),
                task_id=row.task_id,
            )


def _steps(messages: Sequence[Message]) -> tuple[str, list[str]]:
    before: list[str] = []
    prompt: str | None = None
    steps: list[str] = []
    for message in messages:
        if message.role != "assistant":
            before.append(message.text)
            continue
        if prompt is None:
            prompt, before = _SEPARATOR.join(before), []
        steps.append(_SEPARATOR.join([*before, message.text]))
        before = []
    return prompt or "", steps
