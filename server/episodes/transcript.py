"""Transcript of an episode: its step records put together when it ends."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from qguide.qnet.types import History, Message
from qguide.server.episodes.state import Offer, StepRecord


@dataclass(frozen=True, slots=True)
class Transcript:
    """The texts of an episode."""

    messages: History = ()  # the history at the last step
    offers: tuple[Offer, ...] = ()  # one for each state

    @property
    def steps(self) -> list[tuple[int, Offer]]:
        """Each offer with the depth of the action after it, from 1."""
        replies = [0, *accumulate(message.role == "assistant" for message in self.messages)]
        return [(replies[offer.at] + 1, offer) for offer in self.offers]


def read_transcript(rows: Iterable[bytes]) -> Transcript:
    """Put step records together; records of one state become one offer."""
    messages: list[Message] = []
    offers: list[Offer] = []
    for row in rows:
        record = StepRecord.model_validate_json(row)
        messages += record.messages
        offers.append(record.offer)
    # The history only grows, so its length tells the states apart.
    states = groupby(offers, key=lambda offer: offer.at)
    return Transcript(tuple(messages), tuple(merged(list(state)) for _, state in states))


def merged(offers: Sequence[Offer]) -> Offer:
    """Merge the offers of one state, oldest first; the last one's choice counts."""
    if len(offers) == 1:
        return offers[0]
    q_values: dict[str, float | None] = {}
    calling: dict[str, Message] = {}
    counts = Counter[str]()
    for offer in offers:
        for text, q in offer.q_values.items():
            if q is not None or text not in q_values:
                q_values[text] = q
        calling |= offer.calling
        counts.update(offer.counts)
    told = [offer.earned for offer in offers if offer.earned is not None]
    return offers[-1].model_copy(
        update={
            "q_values": q_values,
            "completion_tokens": sum(offer.completion_tokens for offer in offers),
            "calling": calling,
            "earned": told[-1] if told else None,
            "counts": dict(counts),
            "duration_ms": sum(offer.duration_ms for offer in offers),
            "actions": tuple(action for offer in offers for action in offer.actions),
        }
    )
