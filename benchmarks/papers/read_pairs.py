"""Counterfactual pairs: does a Q model read whether the thing that a reply takes is there?

    python -m benchmarks read-pairs runs/embedded/groups_held_back --q-model embedded

reads decision groups of ALFWorld; scores each `take` after the list of a receptacle in two states: in
one the list has the thing, in the other another. One of them was played, the other one is made up.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

from rich.console import Console

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import History, Message, Scorer, ScoreRequest
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.environments.alfworld.game.observation import kind_of, read_scene
from qguide.training.environments.alfworld.game.statistics import load_statistics
from qguide.training.rollouts.episode import derived_seed
from qguide.training.rollouts.models import Inference, build_logprob_scorer, build_scorer
from qguide.training.trajectory import parse_action

_TAKE: Final = re.compile(r"take ([a-z]+ \d+) from ([a-z]+ \d+)")


@dataclass(frozen=True, slots=True)
class ReadPair:
    """One reply in two states.

    Attributes:
        present: the state whose last list has what the reply takes.
        absent: the same state without it.
        rival: another candidate, which goes elsewhere; None if there is none.
    """

    present: History
    absent: History
    reply: str
    rival: str | None = None


def run_read_pairs(
    groups: Sequence[Path], *, q_model: str, policy: str, seed: int = 0, console: Console
) -> dict[str, float]:
    """Show and return the figures of a Q model, or of a policy's log-probability."""
    if bool(q_model) == bool(policy):
        raise ConfigError(f"--q-model is {q_model!r} and --policy {policy!r}; name exactly one of them")
    scorer = build_scorer(q_model, Inference()) if q_model else build_logprob_scorer(policy, Inference())
    if scorer.reads_observation or scorer.ranks:
        # No action was executed in a state that is made up, and pairs compare different states.
        raise ConfigError(f"{scorer.name} reads after the observation or ranks; name one that does neither")
    rows = [row for path in groups for row in read_groups(path)]
    pairs = [
        pair
        for row in rows
        for rng in [Random(derived_seed(seed, row.task_id))]
        for decision in decisions_of(row)
        for pair in read_pairs(decision.history, [c.action for c in decision.candidates], rng)
    ]
    figures = pair_figures(scorer, pairs)
    for name, figure in figures.items():
        console.print(f"{name}: {figure:g}")
    return figures


def pair_figures(scorer: Scorer, pairs: Sequence[ReadPair]) -> dict[str, float]:
    """Figures of all pairs; a tie counts half.

    Returns:
        `read_pair_accuracy`: share of pairs in which the reply has a higher value in the state
        where it can work. `leaves_when_absent`: share in which the rival has the higher value where
        the thing is absent. `takes_when_present`: share in which the reply has it where it is there.
    """
    above, leaves, takes = list[float](), list[float](), list[float]()
    for pair in pairs:
        replies = tuple(Message("assistant", text) for text in (pair.reply, pair.rival) if text is not None)
        asked = [ScoreRequest(history, replies) for history in (pair.present, pair.absent)]
        present, absent = (result.q_values for result in scorer.score(asked))
        above.append(_above(present[0], absent[0]))
        if pair.rival is not None:
            leaves.append(_above(absent[1], absent[0]))
            takes.append(_above(present[0], present[1]))
    means = {"read_pair_accuracy": above, "leaves_when_absent": leaves, "takes_when_present": takes}
    return {"read_pairs": len(pairs), **{name: fmean(shares) for name, shares in means.items() if shares}}


def _above(higher: float, lower: float) -> float:
    return 0.5 if higher == lower else float(higher > lower)


def read_pairs(history: History, replies: Sequence[str], rng: Random) -> Iterator[ReadPair]:
    """The pairs of every `take` that follows a list of the same receptacle."""
    rival = next((reply for reply in replies if parse_action(reply).startswith("go to ")), None)
    for reply in replies:
        if (exchanged := _exchange(history, parse_action(reply), rng)) is not None:
            is_there, other = exchanged
            yield ReadPair(history, other, reply, rival) if is_there else ReadPair(other, history, reply, rival)


def _exchange(history: History, action: str, rng: Random) -> tuple[bool, History] | None:
    """Presence of the thing in the last list, and the history with the opposite list."""
    take = _TAKE.fullmatch(action)
    scene = read_scene(history[-1].content)
    if take is None or take[2] != scene.receptacle or not scene.contents:
        return None
    wanted = take[1]
    is_there = wanted in scene.contents
    said = " ".join(message.content for message in history)
    strangers = [kind for kind in _kinds() if kind not in said and kind != kind_of(wanted)]
    if is_there and not strangers:
        return None
    old = wanted if is_there else rng.choice(scene.contents)
    new = f"{rng.choice(strangers)} {rng.randint(1, 3)}" if is_there else wanted
    text = re.sub(rf"\b{old}\b", new, history[-1].content)
    return is_there, (*history[:-1], replace(history[-1], content=text))


@cache
def _kinds() -> tuple[str, ...]:
    """All kinds of objects in ALFWorld's houses."""
    rooms = load_statistics().rooms.values()
    return tuple(sorted({kind for room in rooms for kind in room.item_numbers}))
