"""Conversion of a finished episode to rows for the offline jobs (`qguide.qnet.records`).

The actions taken form one path of a tree. `qguide label` merges the episodes of one task, which is identified by the
hash of its first messages, into one tree. Candidates and their Q are written as one offer row per step. Those that a
judge scored are in the tree, too, because its scores are labels of their own (`qguide label` with the target `judge`);
one that was not taken is a node that nobody tried, whose return is unknown. Tool calls are written as the lines of
`Message.text`, and their results as observations.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

from qguide.qnet.chat_messages import PART_END, message_key
from qguide.qnet.decision.selection import EXPLORED
from qguide.qnet.records import EARNED, JUDGED, DrawnRow, MessageRow, NodeRow, OfferedRow, OfferRow, TreeRow, rows_of
from qguide.qnet.types import INSTRUCTING, Message
from qguide.server.episodes.state import Offer, Outcome, Transcript

Redact = Callable[[str], str]
"""Maps a text of an episode to the text that may be written."""

ENVIRONMENT: Final = "served"
AGENT: Final = "agent"
"""The `source` of an action that no policy of this server drew."""
_AS_OFFERED: Final = (
    *("q_model", "asked", "reason", "tau", "completion_tokens", "duration_ms", "judge", "threshold"),
    *("out_of_domain", "shadow", "propensity"),
)


class NotRecordableError(Exception):
    """The episode cannot be recorded; the message is the reason."""


def texts_of(episode: Transcript, outcome: Outcome) -> list[str]:
    """Every distinct text that the rows would hold.

    Collected by building the rows, so that no text can get into them without being redacted.
    """
    texts: dict[str, None] = {}

    def note(text: str) -> str:
        texts[text] = None
        return text

    recorded_rows(episode, outcome, note)
    return list(texts)


def recorded_rows(
    episode: Transcript, outcome: Outcome, redact: Redact, *, recorded_as: str = "", at: float | None = None
) -> tuple[TreeRow | None, list[OfferRow]]:
    """The path taken as a tree, and the candidates of each step, recorded at the Unix time `at` in seconds.

    There is no path if the first step was stopped and nothing else done.
    """
    if not episode.offers:
        raise NotRecordableError("the texts of its steps were not kept")
    system, opening = _opening(episode, redact)
    steps = _steps(episode, outcome, redact)
    first_observation = PART_END.join(message.text for message in opening)
    task = task_id(system, first_observation)
    taken = {depth: step.action for depth, step in enumerate(steps, start=1)}
    shared = {"task_id": task, "outcome_reward": outcome.reward, "episode": recorded_as, "at": at}
    offers = [
        _offer_row(offer, redact, depth=depth, taken=taken.get(depth, ""), **shared) for depth, offer in episode.steps
    ]
    if not steps:
        return None, offers
    nodes, values = _nodes_of(episode, outcome, redact, steps)
    tree = TreeRow(
        task_id=task,
        kind=ENVIRONMENT,
        environment=ENVIRONMENT,
        first_observation=first_observation,
        system=system,
        opening=() if _is_plain(opening) else rows_of(opening),
        nodes=nodes,
        values=values,
        draws=1,
        completion_tokens=sum(offer.completion_tokens for offer in episode.offers),
        episode=recorded_as,
    )
    return tree, offers


@dataclass(frozen=True, slots=True)
class _Step:
    """An action of the agent and what it observed, redacted."""

    action: str
    reply: Message
    observed: tuple[Message, ...]

    @property
    def observation(self) -> str:
        """All that was observed, as one text."""
        return PART_END.join(message.text for message in self.observed)


def _nodes_of(
    episode: Transcript, outcome: Outcome, redact: Redact, steps: Sequence[_Step]
) -> tuple[tuple[NodeRow, ...], dict[str, tuple[float | None, ...]]]:
    """The actions and the other candidates of judged steps, and columns of scores and earnings.

    Places in a ranking are no scores.
    """
    offered = dict(episode.steps)
    nodes = [
        NodeRow(
            id=number,
            parent=number - 1,
            depth=number,
            action=step.action,
            observation=step.observation,
            reward=outcome.reward if number == len(steps) else 0.0,
            terminated=outcome.terminated and number == len(steps),
            source=_drawer(offered.get(number), step.action, redact),
            reply=MessageRow.from_message(step.reply) if step.reply.tool_calls else None,
            observed=None if _is_plain(step.observed) else rows_of(step.observed),
            drawn=_drawn(offered.get(number), redact),
        )
        for number, step in enumerate(steps, start=1)
    ]
    scores = dict[str, dict[int, float]]()
    for depth, offer in episode.steps:
        if not offer.judge or offer.ranked:
            continue
        action = steps[depth - 1].action if depth <= len(steps) else None
        column = scores.setdefault(JUDGED + offer.q_model, {})
        for text, q in offer.q_values.items():
            if q is None:
                continue
            if (said := redact(text)) == action:
                column[depth] = q
                continue
            column[len(nodes) + 1] = q
            nodes.append(
                NodeRow(
                    id=len(nodes) + 1,
                    parent=depth - 1,
                    depth=depth,
                    action=said,
                    observation="",
                    tried=False,
                    source=offer.policy or AGENT,
                    reply=_calling_row(offer, text, redact),
                )
            )
    scores[EARNED] = {
        # A step tells what the actions before it have earned.
        depth - 1: offer.earned
        for depth, offer in episode.steps
        if offer.earned is not None and depth > 1
    }
    ids = range(1, len(nodes) + 1)
    return tuple(nodes), {name: tuple(map(own.get, ids)) for name, own in scores.items() if own}


def _offer_row(offer: Offer, redact: Redact, **shared: Any) -> OfferRow:
    """The candidates of a step, and what is said of them beside the offer."""
    arm, window = offer.arm, offer.window
    learned = arm and {
        "arm": "guided" if arm.guided else "unguided",
        "trial": arm.trial,
        "trial_share": arm.share,
        "trial_guess": arm.guess,
        "challenger": arm.challenger,
        "group": arm.group,
        "alpha": arm.alpha,
    }
    return OfferRow(
        candidates=tuple(
            OfferedRow(
                content=redact(text),
                q_value=q,
                count=offer.counts.get(text),
                greedy=_is_greedy(offer, text),
                **_verdict(offer, text, redact),
            )
            for text, q in offer.q_values.items()
        ),
        chosen=redact(offer.chosen),
        policy=offer.policy or AGENT,
        left_out_messages=window.left_out_messages if window else 0,
        left_out_tokens=window.left_out_tokens if window else 0,
        actions=tuple(
            action.model_copy(update={"candidates": tuple(map(redact, action.candidates))}) for action in offer.actions
        ),
        shadow_chosen=redact(offer.shadowed.chosen) if offer.shadowed else "",
        **{name: getattr(offer, name) for name in _AS_OFFERED},
        **(learned or {}),
        **shared,
    )


def task_id(system: str | None, first_observation: str) -> str:
    """Task id of an episode: a hash of its system message and first observation."""
    text = json.dumps([system, first_observation])
    return f"{ENVIRONMENT}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _opening(episode: Transcript, redact: Redact) -> tuple[str | None, tuple[Message, ...]]:
    before = tuple(takewhile(lambda message: message.role != "assistant", episode.messages))
    instructed = before and before[0].role in INSTRUCTING
    system = redact(before[0].content) if instructed else None
    opening = before[1:] if instructed else before
    if not opening:
        raise NotRecordableError("it does not begin with a task")
    ids = _CallIds()
    return system, tuple(_redacted(message, redact, ids) for message in opening)


def _steps(episode: Transcript, outcome: Outcome, redact: Redact) -> list[_Step]:
    """The agent's actions; the last one is not among the episode's messages.

    A step that was stopped has none, unless the outcome tells what the agent did instead.
    """
    steps: list[_Step] = []
    ids = _CallIds()
    for message in episode.messages:
        if message.role == "assistant":
            steps.append(_Step(redact(message.text), _redacted(message, redact, ids), ()))
        elif steps:
            observed = (*steps[-1].observed, _redacted(message, redact, ids))
            steps[-1] = replace(steps[-1], observed=observed)
    offer = episode.offers[-1]
    if offer.stopped and outcome.action is None:
        return steps
    text = offer.chosen if outcome.action is None else outcome.action
    reply = offer.calling.get(text, Message("assistant", text))
    answer = Message("user", outcome.observation)
    if outcome.observation and len(reply.tool_calls) == 1:
        answer = Message("tool", outcome.observation, tool_call_id=reply.tool_calls[0].id)
    last = _Step(redact(text), _redacted(reply, redact, ids), (_redacted(answer, redact, ids),))
    return [*steps, last]


class _CallIds(dict[str, str]):
    """New ids of an episode's tool calls; the client's own may say anything."""

    def __missing__(self, given: str) -> str:
        if not given:
            return ""
        self[given] = f"call-{len(self) + 1}"
        return self[given]


def _redacted(message: Message, redact: Redact, ids: _CallIds) -> Message:
    calls = (
        replace(call, id=ids[call.id], name=redact(call.name), arguments=redact(call.arguments))
        for call in message.tool_calls
    )
    content = redact(message.content) if message.content or not message.tool_calls else ""
    return replace(message, content=content, tool_calls=tuple(calls), tool_call_id=ids[message.tool_call_id], wire=None)


def _is_plain(messages: tuple[Message, ...]) -> bool:
    """True for a single user message, of which the text is all."""
    return len(messages) == 1 and messages[0].role == "user"


def _drawer(offer: Offer | None, action: str, redact: Redact) -> str:
    """The policy that drew an action; the agent where none did."""
    if offer is None or action not in (drawn := {redact(text): text for text in offer.q_values}):
        return AGENT
    others = {text: taken.policy for taken in offer.actions for text in taken.candidates}
    return others.get(drawn[action]) or offer.policy or AGENT


def _drawn(offer: Offer | None, redact: Redact) -> tuple[DrawnRow, ...]:
    """The policy's candidates of a step; none if they tell nothing."""
    if offer is None:
        return ()
    others = {text for taken in offer.actions for text in taken.candidates}
    counts = {text: n for text, n in offer.counts.items() if text not in others}
    if sum(counts.values()) < 2 and not offer.greedy:
        return ()
    propensities = _propensities(offer, counts)
    return tuple(
        DrawnRow(
            action=redact(text),
            count=count,
            greedy=_is_greedy(offer, text),
            propensity=propensities.get(text),
            reply=_calling_row(offer, text, redact),
        )
        for text, count in counts.items()
        if count > 0
    )


def _propensities(offer: Offer, texts: Iterable[str]) -> dict[str, float]:
    """Probability of each text where one was taken at random: the first of each effect may be."""
    if offer.reason != EXPLORED or offer.propensity is None:
        return {}
    found, effects = {}, set[str]()
    for text in texts:
        effect = message_key(offer.calling.get(text) or Message("assistant", text))
        found[text] = 0.0 if effect in effects else offer.propensity
        effects.add(effect)
    return found


def _calling_row(offer: Offer, text: str, redact: Redact) -> MessageRow | None:
    calling = offer.calling.get(text)
    return MessageRow.from_message(_redacted(calling, redact, _CallIds())) if calling else None


def _verdict(offer: Offer, text: str, redact: Redact) -> dict[str, Any]:
    """The judge's verdicts on a candidate and its reason, which may quote it."""
    verdict = offer.verdicts.get(text)
    if verdict is None:
        return {}
    return {"verdicts": verdict.criteria, "judge_reason": redact(verdict.reason)}


def _is_greedy(offer: Offer, text: str) -> bool | None:
    return text == offer.greedy if offer.greedy else None
