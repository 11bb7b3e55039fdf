"""Domain of a Q model: whether a state is of the kind that it was trained on. No torch, no numpy.

Two figures of the words that a state's observations and instructions have, replies left out:

    unknown   share of its words that no training state had
    missing   share of the words that nearly all training states had, and it has not

Each has a limit from states of tasks that it was not fitted on. A state's distance is the larger of
the two, in units of its limit; beyond 1 it is outside. A chat about a weekend lacks the words that
every game begins with, and brings its own. It holds for a Q model of any kind, because it reads
texts and no hidden states; what it cannot see is another task in the same words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.words import read_part, words_of
from qguide.qnet.types import History

DOMAIN: Final = "domain.json"
_CACHED_WORDS: Final = 1 << 16
_FIRST: Final = 2
_LAST: Final = 30  # messages of a long history that are read: the instructions, and the newest ones
_HASH_BYTES: Final = 5
_MOST_CHARACTERS: Final = 64

Hash = str


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of a state from a domain.

    Attributes:
        value: 1 is the limit.
    """

    value: float
    unknown: float
    missing: float

    @property
    def outside(self) -> bool:
        """True if the state is of another kind."""
        return self.value > 1

    @property
    def reason(self) -> str:
        """The distance in words."""
        return (
            f"outside what this Q model was trained on: distance {self.value:.2g}, limit 1 "
            f"({self.unknown:.0%} of the words are unknown to it, {self.missing:.0%} of those that "
            "all its states had are missing)"
        )


class Domain(BaseModel):
    """Words of a Q model's training states, hashed, and the limits of the two shares.

    Attributes:
        salt: of the hashes, in hex.
        known: hash of each word that occurred.
        common: of each that nearly all states had.
        unknown_limit, missing_limit: shares at the limit; above 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    salt: str = Field(default="", pattern=r"^([0-9a-f]{2}){0,64}$")
    known: frozenset[Hash] = frozenset()
    common: frozenset[Hash] = frozenset()
    unknown_limit: float = Field(gt=0, le=1)
    missing_limit: float = Field(gt=0, le=1)

    def distance(self, history: History) -> Distance:
        """Distance of the state after a history."""
        found = state_hashes(history, salt=self.salt)
        unknown = len(found - self.known) / len(found) if found else 0.0
        missing = len(self.common - found) / len(self.common) if self.common else 0.0
        value = max(unknown / self.unknown_limit, missing / self.missing_limit)
        return Distance(value, unknown, missing)

    def save(self, directory: Path) -> None:
        """Write it beside the weights, before the manifest takes the files' hashes."""
        lists = {"known": sorted(self.known), "common": sorted(self.common)}
        text = self.model_copy(update=lists).model_dump_json(warnings=False)
        (directory / DOMAIN).write_text(text + "\n")

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """The domain in a folder; None where it was written without one."""
        path = directory / DOMAIN
        if not path.is_file():
            return None
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise CheckpointError(f"{path} is no domain: {error}; train again") from error


@dataclass(frozen=True, slots=True)
class SharedDomain:
    """Domain of Q models together: a state is inside if it is inside each of their domains."""

    members: Sequence[Domain]

    def distance(self, history: History) -> Distance:
        """Distance of the state after a history from the member that it is farthest from."""
        return max((member.distance(history) for member in self.members), key=lambda found: found.value)


AnyDomain = Domain | SharedDomain


def state_hashes(history: History, *, salt: str) -> frozenset[Hash]:
    """Hashes of the words of a state: all messages but the agent's own."""
    texts = [message.text for message in history if message.role != "assistant"]
    read = texts if len(texts) <= _FIRST + _LAST else [*texts[:_FIRST], *texts[-_LAST:]]
    return union(_hashes(read_part(text), salt) for text in read)


@lru_cache(512)
def _hashes(text: str, salt: str) -> frozenset[Hash]:
    return frozenset(_hash(word[:_MOST_CHARACTERS], salt) for word in words_of(text))


@lru_cache(_CACHED_WORDS)
def _hash(word: str, salt: str) -> Hash:
    key = bytes.fromhex(salt)
    return blake2b(word.encode(errors="replace"), digest_size=_HASH_BYTES, key=key).hexdigest()


def union(hashes: Iterable[frozenset[Hash]]) -> frozenset[Hash]:
    """All of them."""
    return frozenset().union(*hashes)
