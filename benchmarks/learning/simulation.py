"""Simulated runs of learning's decisions: outcomes are drawn, nothing is fitted or served."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

from qguide.qnet.policies.pool import PolicyRecord, split_draws
from qguide.server.episodes.learning_part import LearningArm, ShadowTally
from qguide.server.learning import phase_changes
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.learning.progress import Progress
from qguide.server.settings.learning import Rules

Success = Callable[[int, bool], float]
"""Probability of success of an episode by its number and by being guided."""
Better = Callable[[int], float]
"""Addition of a version to the probability of success of an episode that it guides."""
SPLITS = (
    {"large": 0.7, "small": 0.3},
    {"large": 0.7, "small": 0.6},
    {"a": 0.5, "b": 0.2, "c": 0.1, "d": 0.1},
    {"large": 0.5, "small": 0.5},
)
"""Probabilities that a candidate of each policy is right."""
_SEEN = {"decisions": 5, "room": 5, "disagreed": 1}
"""Decisions of one episode in the shadow."""


@dataclass(frozen=True, slots=True)
class Run:
    """Changes of the phase in one run: (episodes before it, phase).

    Attributes:
        versions: changes of the version that guides: (episodes before it, version).
        outcomes: of all episodes.
    """

    changes: tuple[tuple[int, str], ...]
    versions: tuple[tuple[int, int | None], ...] = ()
    outcomes: tuple[float, ...] = ()

    def first(self, phase: str, *, after: int = 0) -> int | None:
        """Episodes before the first change to a phase; None if there is none."""
        return next((n for n, to in self.changes if to == phase and n >= after), None)


def simulate(
    success: Success,
    *,
    episodes: int,
    seed: int,
    rules: Rules | None = None,
    better: Better = lambda version: 0.0,
    task: Callable[[int], str] = lambda number: "",
) -> Run:
    """One run in which every fit has a licence, the worst case for false promotion.

    Args:
        task: of an episode by its number; "" is none.
    """
    progress, chance = Progress(rules or Rules()), Random(seed)
    phases: list[tuple[int, str]] = []
    versions: list[tuple[int, int | None]] = []
    outcomes: list[float] = []
    for number in range(episodes):
        arm, version = _arm(progress, task(number), chance)
        rate = success(number, arm.guided) + (0.0 if version is None else better(version))
        outcomes.append(float(chance.random() < rate))
        tried = progress.candidate
        seen = tried is not None and (arm.guided or progress.phase == "collecting")
        shadow = ShadowTally(version=tried.version, **_SEEN) if tried and seen else None
        line = EpisodeLine(episode=str(number), outcome=outcomes[-1], arm=arm, recorded=True, shadow=shadow)
        progress.apply(line)
        if progress.fit_due:
            fitted = (progress.fit.version if progress.fit else 0) + 1
            reason = "simulated"
            progress.apply(FitLine(version=fitted, episodes=number + 1, licensed=True, reason=reason))
        guided, phase = progress.version, progress.phase
        while change := phase_changes.due(progress):
            progress.apply(change)
        if progress.phase != phase:
            phases.append((number + 1, progress.phase))
        if progress.version != guided:
            versions.append((number + 1, progress.version))
    return Run(tuple(phases), tuple(versions), tuple(outcomes))


def _arm(progress: Progress, task: str, chance: Random) -> tuple[LearningArm, int | None]:
    """The part of a new episode, and the version that guides it."""
    newer = chance.random() < progress.challenger_share
    rest = 1 - progress.challenger_share
    share = (progress.share - progress.challenger_share) / rest
    guided = newer or chance.random() < share
    arm = LearningArm(
        trial=progress.trial,
        guided=guided,
        share=share,
        task=task,
        guess=progress.tasks.guess(task),
        challenge=progress.challenges if progress.challenger_share else 0,
        challenger=newer,
    )
    challenger = progress.challenge.version if progress.challenge else None
    return arm, (challenger if newer else progress.version) if guided else None


def shares(runs: int = 100) -> dict[str, float]:
    """Shares of runs in which the decisions are as they should be."""
    null = [simulate(lambda n, g: 0.5, episodes=1000, seed=seed) for seed in range(runs)]
    injected = [simulate(_harm_later, episodes=900, seed=seed) for seed in range(runs)]
    harmful = [simulate(lambda n, g: 0.2 if g else 0.5, episodes=400, seed=s) for s in range(runs)]
    helpful = [simulate(lambda n, g: 0.85 if g else 0.45, episodes=400, seed=s) for s in range(runs)]
    lower = [simulate(_helped, episodes=1000, seed=s, better=_lower_later) for s in range(runs)]
    unlike = [simulate(_half_fail, episodes=400, seed=s) for s in range(runs)]
    told = [simulate(_half_fail, episodes=400, seed=s, task=_task) for s in range(runs)]
    newer = [simulate(_helped, episodes=1000, seed=s, better=_from_third) for s in range(runs)]
    worse = [simulate(_helped, episodes=1000, seed=s, better=_worse_later) for s in range(runs)]
    return {
        "later versions succeed in .50 instead of .60: one ever replaces the first": _share(
            _replaced(run) for run in lower
        ),
        "later versions succeed in .90 instead of .60: one guides within 1,000 episodes": _share(
            any((version or 0) >= 3 for _, version in run.versions) for run in newer
        ),
        "later versions succeed in .20 instead of .60: one ever replaces the first": _share(
            _replaced(run) for run in worse
        ),
        "outcomes at random: ever guides in 1,000 episodes": _share(run.first("guiding") is not None for run in null),
        "a Q model of .20 against .50: its trial ends within 150 episodes": _share(
            _within(run, run.first("trial"), 150) for run in harmful
        ),
        "a guiding Q model falls from .80 to .20: back within 150 episodes": _share(
            _within(run, _HARM_AT, 150) for run in injected if _guides(run, _HARM_AT)
        ),
        "a Q model of .85 against .45: guides within 100 episodes of trial": _share(
            _guides_within(run, 100) for run in helpful
        ),
        "half of 12 tasks fail, others .90 against .50: guides within 150 episodes, tasks unknown": _share(
            _guides_within(run, 150) for run in unlike
        ),
        "half of 12 tasks fail, others .90 against .50: guides within 150 episodes, tasks known": _share(
            _guides_within(run, 150) for run in told
        ),
        "a Q model of .85 against .45: not rolled back in 400 episodes": _share(
            run.first("collecting") is None for run in helpful
        ),
    }


_HARM_AT = 500
_UNGUIDED = 0.4


def _helped(number: int, guided: bool) -> float:
    return 0.6 if guided else _UNGUIDED


def _from_third(version: int) -> float:
    return 0.3 if version >= 3 else 0.0


def _lower_later(version: int) -> float:
    return -0.1 if version >= 3 else 0.0


def _worse_later(version: int) -> float:
    return -0.4 if version >= 3 else 0.0


def _replaced(run: Run) -> bool:
    """True if a version took the place of one that guided."""
    guides: int | None = None
    began = run.first("guiding")
    for number, version in run.versions:
        if began is not None and number > began and guides is not None and version is not None:
            return True
        guides = version
    return False


def _harm_later(number: int, guided: bool) -> float:
    return (0.8 if number < _HARM_AT else 0.2) if guided else 0.5


def _guides(run: Run, number: int) -> bool:
    before = [phase for n, phase in run.changes if n <= number]
    return bool(before) and before[-1] == "guiding"


def _task(number: int) -> str:
    return str(Random(number).randrange(12))


def _half_fail(number: int, guided: bool) -> float:
    if int(_task(number)) < 6:
        return 0.0
    return 0.9 if guided else 0.5


def _guides_within(run: Run, most: int) -> bool:
    return (run.first("guiding") or 10**9) - (run.first("trial") or 0) <= most


def _within(run: Run, begun: int | None, most: int) -> bool:
    ended = None if begun is None else run.first("collecting", after=begun)
    return ended is not None and begun is not None and ended - begun <= most


def _share(found: Iterable[bool]) -> float:
    listed = list(found)
    return sum(listed) / len(listed)


def regret_of_split(
    rates: Mapping[str, float],
    *,
    seed: int,
    episodes: int = 200,
    candidates: int = 4,
    noise: float = 1.0,
    bandit: bool = True,
) -> float:
    """Mean outcome that a split of the draws loses against drawing all from the best policy.

    A policy's candidate is right with its rate, Q of a right one is 1 higher, and the outcome is
    that of the highest Q. Outcomes are drawn; the loss is of their expectations.

    Args:
        noise: deviation of Q of each candidate.
        bandit: False draws from all policies alike.
    """
    chance, known, lost = Random(seed), dict[str, PolicyRecord](), 0.0
    even = {name: candidates // len(rates) for name in rates}
    best = {max(rates, key=rates.__getitem__): candidates}
    for _ in range(episodes):
        counts = even
        if bandit:
            counts = split_draws(tuple(rates), candidates, known=known, rng=chance)
        name, right = _taken(counts, rates, noise, chance)
        known[name] = known.get(name, PolicyRecord()).plus(float(right), 1.0)
        lost += _taken(best, rates, noise, chance)[1] - right
    return lost / episodes


def _taken(counts: Mapping[str, int], rates: Mapping[str, float], noise: float, chance: Random) -> tuple[str, bool]:
    """The policy of the candidate with the highest Q, and whether it is right."""
    drawn = [(name, chance.random() < rates[name]) for name, n in counts.items() for _ in range(n)]
    return max(drawn, key=lambda one: one[1] + chance.gauss(0, noise))
