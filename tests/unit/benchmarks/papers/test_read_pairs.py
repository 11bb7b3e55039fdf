"""A read pair is one reply in two histories that differ in one name of the last list."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from benchmarks.papers.read_pairs import ReadPair, pair_figures, read_pairs, run_read_pairs
from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message, Scorer, ScoreRequest, ScoreResult
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.alfworld.expert.policy import ExpertPolicy
from qguide.training.exploration.decision_groups import Decisions, Draws
from qguide.training.jobs.groups import GroupsConfig, run_groups

FIRST = "You see a bed 1, and a desk 1.\n\nYour task is to: put a book in desk."
LIST = "You arrive at loc 3. On the bed 1, you see a book 2, and a pen 1."
TAKE_BOOK = "Thought: book 2 is here.\nAction: take book 2 from bed 1"
TAKE_MUG = "Thought: mug 1 is here.\nAction: take mug 1 from bed 1"
GO = "Thought: Not here.\nAction: go to desk 1"


def pairs_after(observation: str, *replies: str) -> list[ReadPair]:
    history = (Message("user", FIRST), Message("assistant", "Action: go to bed 1"), Message("user", observation))
    return list(read_pairs(history, replies, Random(0)))


def test_what_is_there_is_exchanged_for_something_that_nobody_named() -> None:
    [pair] = pairs_after(LIST, TAKE_BOOK, GO)
    assert pair.rival == GO
    assert pair.present[-1].content == LIST
    assert pair.present[:-1] == pair.absent[:-1]
    start, end = "You arrive at loc 3. On the bed 1, you see a ", ", and a pen 1."
    absent = pair.absent[-1].content
    assert absent.startswith(start)
    assert absent.endswith(end)
    stranger = absent.removeprefix(start).removesuffix(end).split()[0]
    assert stranger.isalpha()
    assert stranger not in FIRST + LIST


def test_what_is_not_there_takes_the_place_of_something_that_is() -> None:
    [pair] = pairs_after(LIST, TAKE_MUG)
    assert pair.rival is None
    assert pair.absent[-1].content == LIST
    assert pair.present[-1].content in (LIST.replace("book 2", "mug 1"), LIST.replace("pen 1", "mug 1"))


def test_a_reply_about_another_place_or_after_no_list_makes_no_pair() -> None:
    assert pairs_after(LIST, "Action: take book 2 from desk 1", GO) == []
    assert pairs_after("Nothing happens.", TAKE_BOOK, GO) == []
    assert pairs_after("You arrive at loc 3. On the bed 1, you see nothing.", TAKE_BOOK) == []


class Sees(Scorer):
    """Values `take` by how often the last list has its thing, and `go` by what is given."""

    name = "sees"

    def __init__(self, go: float) -> None:
        self._go = go

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(self._q(r, c.content) for c in r.candidates), 1) for r in requests]

    def _q(self, request: ScoreRequest, reply: str) -> float:
        thing = reply.partition("take ")[2].partition(" from")[0]
        return float(thing in request.history[-1].content) if thing else self._go


@pytest.mark.parametrize(("go", "leaves", "takes"), [(0.5, 1.0, 1.0), (0.0, 0.5, 1.0), (2.0, 1.0, 0.0)])
def test_figures_count_where_the_reply_can_work(go: float, leaves: float, takes: float) -> None:
    pairs = [*pairs_after(LIST, TAKE_BOOK, GO), *pairs_after(LIST, TAKE_MUG)]
    assert pair_figures(Sees(go), pairs) == {
        "read_pairs": 2,
        "read_pair_accuracy": 1.0,
        "leaves_when_absent": leaves,
        "takes_when_present": takes,
    }
    assert pair_figures(Sees(go), []) == {"read_pairs": 0}


def test_the_pairs_of_recorded_groups_are_scored(tmp_path: Path) -> None:
    config = GroupsConfig(
        output=tmp_path / "groups",
        environment=AlfWorldConfig(first_seed=0, count=3),
        decisions=Decisions(draws=(Draws(n=5, temperature=1.0),), max_steps=6),
    )
    run_groups(config, policy=ExpertPolicy(), console=Console(file=StringIO()))
    shown = StringIO()
    figures = run_read_pairs([config.output], q_model="embedded", policy="", console=Console(file=shown))
    assert figures["read_pairs"] > 0
    assert figures["read_pair_accuracy"] > 0.5
    assert "read_pair_accuracy: " in shown.getvalue()
    for q_model, policy in (("", ""), ("embedded", "embedded")):
        with pytest.raises(ConfigError, match=r"--q-model is '.*--policy '"):
            run_read_pairs([config.output], q_model=q_model, policy=policy, console=Console(file=shown))
    with pytest.raises(ConfigError, match=r"^votes .*ranks"):
        run_read_pairs([config.output], q_model="votes", policy="", console=Console(file=shown))
