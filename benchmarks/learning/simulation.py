"""Simulated runs of learning's decisions: outcomes are drawn, nothing is fitted or served."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from qguide.server.episodes.state import Arm
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.learning.progress import Progress
from qguide.server.learning.rules import Rules

Success = Callable[[int, bool], float]
"""Probability of success of an episode by its number and by being guided."""


@dataclass(frozen=True, slots=True)
class Run:
    """Changes of the phase in one run: (episodes before it, phase)."""

    changes: tuple[tuple[int, str], ...]

    def first(self, phase: str, *, after: int = 0) -> int | None:
        """Episodes before the first change to a phase; None if there is none."""
        return next((n for n, to in self.changes if to == phase and n >= after), None)


def simulate(success: Success, *, episodes: int, seed: int, rules: Rules | None = None) -> Run:
    """One run in which every fit has a licence, the worst case for false promotion."""
    progress, chance = Progress(rules or Rules()), Random(seed)
    changes: list[tuple[int, str]] = []
    for number in range(episodes):
        guided = chance.random() < progress.share
        outcome = float(chance.random() < success(number, guided))
        arm = Arm(trial=progress.trial, guided=guided, share=progress.share)
        progress.apply(EpisodeLine(outcome=outcome, arm=arm))
        if progress.fit_due:
            version = (progress.fit.version if progress.fit else 0) + 1
            fit = FitLine(version=version, episodes=number + 1, licensed=True, reason="simulated")
            progress.apply(fit)
        if change := progress.due():
            changes.append((number + 1, change.phase))
            progress.apply(change.line(at=0.0))
    return Run(tuple(changes))


def shares(runs: int = 100) -> dict[str, float]:
    """Shares of runs in which the decisions are as they should be."""
    null = [simulate(lambda n, g: 0.5, episodes=1000, seed=seed) for seed in range(runs)]
    injected = [simulate(_harm_later, episodes=900, seed=seed) for seed in range(runs)]
    harmful = [simulate(lambda n, g: 0.2 if g else 0.5, episodes=400, seed=s) for s in range(runs)]
    helpful = [
        simulate(lambda n, g: 0.85 if g else 0.45, episodes=400, seed=s) for s in range(runs)
    ]
    return {
        "outcomes at random: ever guides in 1,000 episodes": _share(
            run.first("guiding") is not None for run in null
        ),
        "a Q model of .20 against .50: its trial ends within 150 episodes": _share(
            _within(run, run.first("trial"), 150) for run in harmful
        ),
        "a guiding Q model falls from .80 to .20: back within 150 episodes": _share(
            _within(run, _HARM_AT, 150) for run in injected if _guides(run, _HARM_AT)
        ),
        "a Q model of .85 against .45: guides within 100 episodes of trial": _share(
            (run.first("guiding") or 10**9) - (run.first("trial") or 0) <= 100 for run in helpful
        ),
        "a Q model of .85 against .45: not rolled back in 400 episodes": _share(
            run.first("collecting") is None for run in helpful
        ),
    }


_HARM_AT = 500


def _harm_later(number: int, guided: bool) -> float:
    return (0.8 if number < _HARM_AT else 0.2) if guided else 0.5


def _guides(run: Run, number: int) -> bool:
    before = [phase for n, phase in run.changes if n <= number]
    return bool(before) and before[-1] == "guiding"


def _within(run: Run, begun: int | None, most: int) -> bool:
    ended = None if begun is None else run.first("collecting", after=begun)
    return ended is not None and begun is not None and ended - begun <= most


def _share(found: Iterable[bool]) -> float:
    listed = list(found)
    return sum(listed) / len(listed)
