"""Consistent renaming of an episode's words, so that a policy learns to copy names from its prompt.

Three hundred demonstrations have the same apples in the same places, and a model trained from
scratch memorises them. Permuting the words of a group, in the same way throughout an episode,
changes the names and keeps every relation between task, observation and action.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import Field

from qguide.qnet.types import Message
from qguide.training.options import JobOptions

Episode = Sequence[Message]
Augmenter = Callable[[Episode, random.Random], Episode]


class Augmentation(JobOptions):
    """Options of the renaming.

    Attributes:
        probability: probability that an episode is renamed.
        groups: words that may replace each other, for example all object types.
    """

    probability: float = Field(default=0.0, ge=0, le=1)
    groups: tuple[tuple[str, ...], ...] = ()


def build_augmenter(config: Augmentation) -> Augmenter:
    """Build the function that renames an episode."""
    words = [word for group in config.groups for word in group]
    if not words or config.probability == 0:
        return lambda episode, rng: episode
    ordered = sorted(words, key=len, reverse=True)
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, ordered)) + r")\b")

    def augment(episode: Episode, rng: random.Random) -> Episode:
        if rng.random() >= config.probability:
            return episode
        renamed: dict[str, str] = {}
        for group in config.groups:
            renamed |= dict(zip(group, rng.sample(group, len(group)), strict=True))

        def rename(text: str) -> str:
            return pattern.sub(lambda match: renamed[match[0]], text)

        return [
            replace(
                message,
                content=rename(message.content),
                tool_calls=tuple(replace(call, arguments=rename(call.arguments)) for call in message.tool_calls),
            )
            for message in episode
        ]

    return augment
