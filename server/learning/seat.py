"""Versions and shares of a group, as the steps of its episodes read them, and an episode's arm."""

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256

from qguide.server.episodes.learning_part import Arm
from qguide.server.learning.group import Group
from qguide.server.learning.lines import Phase
from qguide.server.q_models.served import ServedQModel


@dataclass(frozen=True, slots=True)
class Play:
    """Part of a step in learning.

    Attributes:
        arm: of its episode; None if it has none.
        q_model: the learned version that guides it; None: it is played as without learning.
        explore: seed of a random choice where no Q model chooses; None: nothing is random.
        shadow: a newer version whose choice is recorded, and not taken; None: none.
        shadow_version: its number.
    """

    arm: Arm | None = None
    q_model: ServedQModel | None = None
    explore: int | None = None
    shadow: ServedQModel | None = None
    shadow_version: int = 0


@dataclass(slots=True)
class Seat:
    """A group, and what the steps of its episodes read.

    Attributes:
        share: of new episodes that are guided.
        challenger_share: of new episodes that the challenger guides.
        episodes: ends of episodes so far.
        models: the versions that are loaded, by number.
        version, challenger, candidate: those that guide, and the one in the shadow; None: none.
        loads_again_s: versions that could not be loaded, and the time of the loop before which
            that is not tried again.
        fits_again_s: time of the loop before which no fit begins, after one could not be noted.
    """

    group: Group
    phase: Phase = "collecting"
    trial: int = 0
    challenge: int = 0
    share: float = 0.0
    challenger_share: float = 0.0
    episodes: int = 0
    models: dict[int, ServedQModel] = field(default_factory=dict)
    version: int | None = None
    challenger: int | None = None
    candidate: int | None = None
    loads_again_s: dict[int, float] = field(default_factory=dict)
    fits_again_s: float = 0.0
    fitting: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def model(self, version: int | None) -> ServedQModel | None:
        """The version of that number, if it is loaded."""
        return None if version is None else self.models.get(version)

    def guide(self, arm: Arm) -> ServedQModel | None:
        """The version that guides an episode; None: none."""
        if not arm.guided:
            return None
        newer = self.model(self.challenger) if arm.challenger else None
        return newer or self.model(self.version)


def arm_of(seat: Seat, place: str, prompt: str) -> Arm:
    """The arm of a new episode.

    By a hash with the number of episodes in it, because agents whose ids come again play the same
    task by the same id. The episode keeps it from its first step on.
    """
    point = point_of(hash_of("arm", place, seat.episodes, seat.trial))
    challenge = seat.challenge if seat.challenger_share else 0
    rest = 1 - seat.challenger_share
    share = (seat.share - seat.challenger_share) / rest
    newer = point >= rest
    return Arm(
        trial=seat.trial,
        guided=newer or point < share * rest,
        share=share,
        prompt=prompt,
        challenge=challenge,
        challenger=newer,
    )


def hash_of(*parts: object) -> int:
    """A number of 64 bits that looks drawn at random."""
    # An id from JSON may hold a lone surrogate, which has no UTF-8 encoding.
    text = "\0".join(map(str, parts)).encode(errors="surrogatepass")
    return int.from_bytes(sha256(text).digest()[:8], "big")


def point_of(hashed: int) -> float:
    """A hash as a number from 0 to 1."""
    return float(hashed / 2**64)
