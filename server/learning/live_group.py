"""Versions and shares of a group, as the steps of its episodes read them, and an episode's arm."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from qguide.qnet.policies.pool import PolicyRecord
from qguide.server.episodes.learning_part import LearningArm
from qguide.server.episodes.state import ServedEpisode
from qguide.server.learning.group import Group
from qguide.server.learning.lines import Phase
from qguide.server.learning.tally import Spent
from qguide.server.q_models.served import ServedQModel
from qguide.server.settings.learning import KEYLESS, LearningBudget, mark_of


class Opening(NamedTuple):
    """Hashes of what an episode begins with."""

    prompt: str  # hash of its system prompt and tools
    task: str  # hash of its other messages before the first action


@dataclass(frozen=True, slots=True)
class LearningStep:
    """Part of a step in learning."""

    arm: LearningArm | None = None
    q_model: ServedQModel | None = None  # the learned version that guides it; None: it is played as without learning
    explore: int | None = None  # seed of a random choice where no Q model chooses; None: nothing is random
    shadow: ServedQModel | None = None  # a newer version whose choice is recorded, and not taken; None: none
    shadow_version: int = 0
    group: str = ""  # whose learning has the candidates drawn; "" if it has not
    spent: str = ""  # the budget in words, once nothing of it is left; one candidate is drawn then


@dataclass(slots=True)
class LiveGroup:
    """A group, and what the steps of its episodes read."""

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
    # noted, noting, pending: spent on candidates: in the budget's period, as the ledger has it; what is being written
    # there; and since then
    noted: Spent = field(default_factory=Spent)
    noting: Spent = field(default_factory=Spent)
    pending: Spent = field(default_factory=Spent)
    # versions that could not be loaded, and the time of the loop before which that is not tried again
    loads_again_s: dict[int, float] = field(default_factory=dict)
    outdated: dict[int, str] = field(default_factory=dict)
    fits_again_s: float = 0.0  # time of the loop before which no fit begins, after one could not be noted
    policies: Mapping[str, PolicyRecord] = field(default_factory=dict)
    nameless: int = 0
    unrecorded: str = ""  # why the latest episode that could not be recorded was not
    fitting: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def over_budget(self, budget: LearningBudget) -> bool:
        """True if nothing of it is left."""
        return budget.is_spent(self.spent.tokens, self.spent.cost)

    @property
    def spent(self) -> Spent:
        """All that was spent on candidates in the budget's period."""
        return self.noted.plus(self.noting).plus(self.pending)

    def read_progress(self, *, spent_since: float) -> None:
        """Take over the group's state, as far as the versions that it needs are loaded."""
        of = self.group.progress
        self.version, self.challenge = of.version, of.challenges
        self.challenger = of.challenge.version if of.challenge else None
        self.candidate = of.candidate.version if of.candidate else None
        self.phase, self.trial, self.episodes = of.phase, of.trial, of.episodes.count
        self.share = of.share if self.model(self.version) else 0.0
        challenged = self.share > 0 and self.model(self.challenger) is not None
        self.challenger_share = of.challenger_share if challenged else 0.0
        self.noted, self.policies = of.spending.since(spent_since), dict(of.policies)

    def label(self, version: int) -> str:
        """Version of a learned Q model, as metrics and recordings tell it from other groups'."""
        return f"{version}{mark_of(self.group.name)}"

    def model(self, version: int | None) -> ServedQModel | None:
        """The version of that number, if it is loaded."""
        return None if version is None else self.models.get(version)

    def guide(self, arm: LearningArm) -> ServedQModel | None:
        """The version that guides an episode; None: none."""
        if not arm.guided:
            return None
        newer = self.model(self.challenger) if arm.challenger else None
        return newer or self.model(self.version)


def play_of(
    live: LiveGroup, place: str, episode: ServedEpisode | None, arm: LearningArm, *, exploration: float
) -> LearningStep:
    """The part of an episode's next step."""
    guide, newer = live.guide(arm), live.model(live.candidate)
    shadow, explore = None if newer is guide else newer, None
    if not arm.guided:
        # The control of a trial plays as without learning: nothing random, and no shadow.
        if live.phase != "collecting":
            return LearningStep(arm)
        step = episode.steps if episode else 0
        if point_of(hash_of("explore", place, live.episodes, step)) < exploration:
            explore = hash_of("candidate", place, live.episodes, step)
    draws = guide is not None or shadow is not None or explore is not None
    return LearningStep(
        arm,
        guide,
        explore=explore,
        shadow=shadow,
        shadow_version=live.candidate or 0,
        group=live.group.name if draws else "",
    )


def arm_of(live: LiveGroup, place: str, opening: Opening) -> LearningArm:
    """The arm of a new episode.

    By a hash with the number of episodes in it, because agents whose ids come again play the same task by the same id.
    The episode keeps it from its first step on.
    """
    point = point_of(hash_of("arm", place, live.episodes, live.trial))
    challenge = live.challenge if live.challenger_share else 0
    rest = 1 - live.challenger_share
    # Of the episodes that the challenger does not guide, since the trial counts no others: the probability by which its
    # statistics weigh an episode.
    share = (live.share - live.challenger_share) / rest
    newer = point >= rest
    return LearningArm(
        trial=live.trial,
        guided=newer or point < share * rest,
        share=share,
        prompt=opening.prompt,
        task=opening.task,
        guess=live.group.progress.tasks.guess(opening.task) if live.phase != "collecting" else None,
        challenge=challenge,
        challenger=newer,
        group="" if live.group.name == KEYLESS else live.group.name,
        alpha=live.group.progress.rules.alpha,
    )


def hash_of(*parts: object) -> int:
    """A number of 64 bits that looks drawn at random."""
    # An id from JSON may hold a lone surrogate, which has no UTF-8 encoding.
    text = "\0".join(map(str, parts)).encode(errors="surrogatepass")
    return int.from_bytes(sha256(text).digest()[:8], "big")


def point_of(hashed: int) -> float:
    """A hash as a number from 0 to 1."""
    return float(hashed / 2**64)
