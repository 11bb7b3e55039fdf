"""Conversion of a finished episode to rows for the offline jobs (`qnet.records`).

The actions taken form one path of a tree. `qguide label` merges the episodes of one task, which is
identified by the hash of its first messages, into one tree. A candidate that was not taken is not
a node: its return is unknown, and a leaf's reward would become its label. Candidates and their Q
are written as one offer row per step instead. Tool calls are written as the lines of
`Message.text`, and their results as observations.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Final

from qnet.records import NodeRow, OfferedRow, OfferRow, TreeRow
from server.episodes.state import Episode, Outcome

Redact = Callable[[str], str]
"""Maps a text of an episode to the text that may be written."""

ENVIRONMENT: Final = "served"
AGENT: Final = "agent"
"""The `source` of an action that no policy of this server drew."""


class NotRecordableError(Exception):
    """The episode cannot be recorded; the message is the reason."""


def texts_of(episode: Episode, outcome: Outcome) -> list[str]:
    """Every distinct text that the rows would hold.

    Collected by building the rows, so that no text can get into them without being redacted.

    Raises:
        NotRecordableError: its history is not a sequence of task, action, observation, ….
    """
    texts: dict[str, None] = {}

    def note(text: str) -> str:
        texts[text] = None
        return text

    tree_row(episode, outcome, note)
    list(offer_rows(episode, outcome, note))
    return list(texts)


def tree_row(episode: Episode, outcome: Outcome, redact: Redact) -> TreeRow:
    """The path taken, as a tree.

    Raises:
        NotRecordableError: its history is not a sequence of task, action, observation, ….
    """
    if episode.broken:
        raise NotRecordableError(episode.broken)
    if not episode.offers:
        raise NotRecordableError("the texts of its steps were not kept")
    system, said = _split(episode, redact)
    said += [_last_action(episode, outcome, redact), redact(outcome.observation)]
    turns = list(zip(said[1::2], said[2::2], strict=True))
    drawn_by = _drawers(episode, redact, first=1 if system is None else 2)
    return TreeRow(
        task_id=task_id(system, said[0]),
        kind=ENVIRONMENT,
        environment=ENVIRONMENT,
        first_observation=said[0],
        system=system,
        nodes=tuple(
            NodeRow(
                id=number,
                parent=number - 1,
                depth=number,
                action=action,
                observation=observation,
                reward=outcome.reward if number == len(turns) else 0.0,
                terminated=outcome.terminated and number == len(turns),
                source=drawn_by.get((number, action), AGENT),
            )
            for number, (action, observation) in enumerate(turns, start=1)
        ),
        draws=1,
        completion_tokens=sum(offer.completion_tokens for offer in episode.offers),
    )


def offer_rows(episode: Episode, outcome: Outcome, redact: Redact) -> Iterator[OfferRow]:
    """The candidates of each step, with the reward of the episode."""
    system, said = _split(episode, redact)
    first = 1 if system is None else 2
    said.append(_last_action(episode, outcome, redact))
    for offer in episode.offers:
        yield OfferRow(
            task_id=task_id(system, said[0]),
            depth=_depth(offer.at, first=first),
            candidates=tuple(
                OfferedRow(content=redact(text), q_value=q) for text, q in offer.q_values.items()
            ),
            chosen=redact(offer.chosen),
            taken=said[offer.at - first + 1],
            q_model=offer.q_model,
            policy=offer.policy or AGENT,
            outcome_reward=outcome.reward,
        )


def task_id(system: str | None, first_observation: str) -> str:
    """Task id of an episode: a hash of its system message and first observation."""
    text = json.dumps([system, first_observation])
    return f"{ENVIRONMENT}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _split(episode: Episode, redact: Redact) -> tuple[str | None, list[str]]:
    """The system message, if any, and the texts from the first observation to the last."""
    messages = episode.messages
    instructed = messages[0].role in ("system", "developer")
    system = redact(messages[0].content) if instructed else None
    turns = messages if system is None else messages[1:]
    roles = ["user" if message.role == "tool" else message.role for message in turns]
    if roles != ["user", *["assistant", "user"] * (len(turns) // 2)]:
        raise NotRecordableError("its messages do not alternate between user and assistant")
    return system, [redact(message.text) for message in turns]


def _last_action(episode: Episode, outcome: Outcome, redact: Redact) -> str:
    return redact(episode.offers[-1].chosen if outcome.action is None else outcome.action)


def _drawers(episode: Episode, redact: Redact, *, first: int) -> dict[tuple[int, str], str]:
    """The policy that drew each candidate, by (depth, text)."""
    return {
        (_depth(offer.at, first=first), redact(text)): offer.policy or AGENT
        for offer in episode.offers
        for text in offer.q_values
    }


def _depth(at: int, *, first: int) -> int:
    """Depth of the action after `at` messages, `first` of which precede the first action."""
    return (at - first) // 2 + 1
