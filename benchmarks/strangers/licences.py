"""Licences of fits beside what these earn, and beside shuffled outcomes, where every licence is luck.

    python -m benchmarks.strangers.licences errands clinic --episodes 50,100 --shuffles 20

A fit of a recording is played on new tasks. For a shuffled one outcomes are dealt anew to the
episodes of the recording, and nothing is played. Rows are added to `rows.jsonl` as they come, and a
run that was killed goes on behind them. `licences.md` has the table: a licence is right if the fit
is not below greedy play.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from pydantic import BaseModel

from benchmarks.strangers.__main__ import numbers, numbers_option
from benchmarks.strangers.catalogue import STRANGERS, Named
from benchmarks.strangers.features import Features
from benchmarks.strangers.protocol import Fitted, Measurement
from qguide.training.data.runs import JsonlWriter, open_run, read_rows
from qguide.training.data.trajectories import Trajectory
from qguide.training.licence.credit import ERRORS, Credit

_THRESHOLDS = (2.0, 2.5, 3.0, 3.5, 4.0)
_NO_LESS = 1e-9

app = typer.Typer()


class Fit(BaseModel, frozen=True, extra="forbid"):
    """One fit of the learner, its licence, and what it earns.

    Attributes:
        told: the recording tells the agent's draws.
        recording: its number; the first `episodes` of it are learned from.
        shuffle: number of the order in which outcomes were dealt anew; None: they were not.
        by_credit, by_decisions: the kinds of evidence that grant a licence.
        credit_errors: standard errors of credit above 0; None of too few tasks or episodes.
        reward, greedy: on new tasks, of its posterior and of greedy play; None where it was not played.
    """

    environment: str
    world: int
    told: bool
    recording: int
    episodes: int
    shuffle: int | None
    by_credit: bool
    by_decisions: bool
    credit_errors: float | None
    reward: float | None = None
    greedy: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The fit by its options, which no other row of the folder has."""
        return (self.environment, self.world, self.told, self.recording, self.episodes, self.shuffle)

    @property
    def licensed(self) -> bool:
        """True if either kind of evidence grants a licence."""
        return self.by_credit or self.by_decisions

    @property
    def right(self) -> bool | None:
        """True if it is not below greedy play; None if it was not played."""
        return None if self.reward is None or self.greedy is None else self.reward >= self.greedy - _NO_LESS


class Played(BaseModel, frozen=True):
    """The options that all rows of a folder share: the least number of new episodes."""

    new: int


def fits_of(
    measured: Measurement, recording: int, wanted: Sequence[tuple[int, int | None]], greedy: Callable[[], float]
) -> Iterator[Fit]:
    """Fits of one recording.

    Args:
        wanted: numbers of episodes, each with that of a shuffle or None.
        greedy: reward of greedy play on the new tasks.
    """
    rows = measured.record(recording, max(episodes for episodes, _ in wanted))
    for episodes, shuffle in wanted:
        own = rows[:episodes] if shuffle is None else shuffled(rows[:episodes], shuffle)
        scorer = Features().fit(own)
        fit = Fit(
            environment=measured.stranger.name,
            world=measured.world,
            told=measured.told,
            recording=recording,
            episodes=episodes,
            shuffle=shuffle,
            by_credit=scorer.learned.credit.licensed,
            by_decisions=scorer.learned.evidence.licensed,
            credit_errors=_errors(scorer.learned.credit),
        )
        if shuffle is None:
            played = measured.play_new("posterior", measured.new_episodes, Fitted(scorer, recording, episodes))
            fit = fit.model_copy(update={"reward": played.reward, "greedy": greedy()})
        yield fit


def shuffled(rows: Sequence[Trajectory], shuffle: int) -> list[Trajectory]:
    """The episodes with each other's outcomes."""
    rewards = [row.reward for row in rows]
    Random(f"{shuffle}").shuffle(rewards)
    return [replace(row, reward=reward, earned=()) for row, reward in zip(rows, rewards, strict=True)]


def _errors(credit: Credit) -> float | None:
    margin = credit.correlation - credit.interval[0]
    return ERRORS * credit.correlation / margin if credit.enough and margin else None


def markdown(fits: Sequence[Fit]) -> str:
    """The licences that each rule gives to played fits, rightly and wrongly, and to shuffled ones."""
    header = "| | right, of {} | wrong, of {} | shuffled, of {} |".format(*_counts(fits))
    rows = ["| {} | {} | {} | {} |".format(name, *_counts(licensed)) for name, licensed in _licensed(fits)]
    return "\n".join([header, "|---|---|---|---|", *rows])


def _licensed(fits: Sequence[Fit]) -> Iterator[tuple[str, list[Fit]]]:
    yield "a licence", [fit for fit in fits if fit.licensed]
    yield "by credit", [fit for fit in fits if fit.by_credit]
    yield "by decisions", [fit for fit in fits if fit.by_decisions]
    for errors in _THRESHOLDS:
        yield f"credit of {errors:g} errors", [fit for fit in fits if (fit.credit_errors or 0.0) > errors]
    for episodes in sorted({fit.episodes for fit in fits}):
        yield f"a licence, {episodes} episodes", [fit for fit in fits if fit.licensed and fit.episodes == episodes]


def _counts(fits: Sequence[Fit]) -> list[int]:
    return [sum(fit.right is right for fit in fits) for right in (True, False, None)]


@app.command()
def main(
    environments: Named = None,
    episodes: Annotated[str, numbers_option("Numbers of recorded episodes.")] = "25,50,100,200",
    recordings: Annotated[str, numbers_option("Numbers of the recordings.")] = "0,1,2",
    worlds: Annotated[str, numbers_option("Numbers of the worlds.")] = "0",
    shuffles: Annotated[int, typer.Option(help="Shuffles of each recording's outcomes.")] = 0,
    new: Annotated[int, typer.Option(help="Least number of new episodes of a fit; 0 plays none.")] = 144,
    told: Annotated[bool, typer.Option(help="Recordings tell the agent's draws, of which it takes any.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of the rows.")] = Path("runs/licences"),
) -> None:
    """Fit, judge, play new tasks, and count licences."""
    if not (new or shuffles):
        raise typer.BadParameter("--new 0 plays no fit, so --shuffles has to be 1 or more")
    orders = [None, *range(shuffles)] if new else [*range(shuffles)]
    with open_run(output, Played(new=new)) as run, JsonlWriter(run.rows) as writer:
        fits = list(read_rows(run.rows, Fit))
        done = {fit.key for fit in fits}
        for stranger, world in product(environments or STRANGERS.values(), numbers(worlds)):
            measured = Measurement(stranger, world, new, told=told)
            greedy = cache(lambda measured=measured: measured.play_new("greedy", new).reward)
            for recording in numbers(recordings):
                every = product(numbers(episodes), orders)
                wanted = [one for one in every if (stranger.name, world, told, recording, *one) not in done]
                for fit in fits_of(measured, recording, wanted, greedy) if wanted else ():
                    writer.write(fit)
                    fits.append(fit)
    (output / "licences.md").write_text(markdown(fits) + "\n")
    typer.echo(markdown(fits))


if __name__ == "__main__":
    app()
