"""The paraphrase job on corridors, and the methods of `evaluate` that read its rows."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.types import Candidate, Message, SampleRequest, Scorer, ScoreRequest, ScoreResult, TaskMarker
from qguide.training.data.runs import read_rows
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.evaluation.paraphrased import ParaphraseRow
from qguide.training.evaluation.records import EpisodeRow, MethodName
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.jobs.paraphrase import ParaphraseConfig, run_paraphrase
from qguide.training.trajectory import ChatFormat
from tests.support.broken_environments import WAITING
from tests.support.wanderer import Wanderer

QUIET = Console(quiet=True)
ASKED = "Paraphrase the text: "


class Writer:
    """Answers the paper's prompt with the task in capitals, in several ways and sometimes badly."""

    name = "writer"

    def __init__(self, *, dies_after: int | None = None) -> None:
        self.asked: list[SampleRequest] = []
        self._calls = itertools.count()
        self._dies_after = dies_after

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        if next(self._calls) == self._dies_after:
            raise KeyboardInterrupt
        self.asked += requests
        return [self._sample(request) for request in requests]

    def _sample(self, request: SampleRequest) -> list[Candidate]:
        [message] = request.history
        task = message.content.removeprefix(ASKED)
        assert task != message.content
        texts = (f"{task.upper()}!", task, f" {task.upper()}! ", f"{task.upper()}?", "cut")
        return [Candidate(Message("assistant", texts[k % 5]), 3, finished=k % 5 != 4) for k in range(request.n)]


class Mute:
    """Repeats what it is asked for."""

    name = "mute"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [[self._echo(request)] * request.n for request in requests]

    def _echo(self, request: SampleRequest) -> Candidate:
        return Candidate(Message("assistant", request.history[0].content.removeprefix(ASKED)), 3)


class Listener(Wanderer):
    """Wanders, and notes the first message of every history that it is asked after."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        self.heard += [request.history[0].content for request in requests]
        return super().sample_batch(requests)


class Indifferent(Scorer):
    """The same Q for everything; notes the first messages, too."""

    name = "indifferent"

    def __init__(self) -> None:
        self.heard: list[str] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        self.heard += [request.history[0].content for request in requests]
        return [ScoreResult((0.0,) * len(request.candidates), 1) for request in requests]


def config(output: Path, **changes: object) -> ParaphraseConfig:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=3),
        "policy": "unused",
        "texts": 5,
        "parallel": 1,
    }
    return ParaphraseConfig.model_validate(values | changes)


def write(output: Path, **changes: object) -> list[ParaphraseRow]:
    run_paraphrase(config(output, **changes), policy=Writer(), console=QUIET)
    return list(read_rows(output / "rows.jsonl", ParaphraseRow))


def test_each_task_is_written_in_other_words(tmp_path: Path) -> None:
    rows = write(tmp_path)
    assert len(rows) == len({row.task_id for row in rows}) == 3
    for row in rows:
        assert row.texts == (f"{row.task.upper()}!", f"{row.task.upper()}?")
        assert row.source == "writer"


TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
EXAMPLES = (Message("user", "You are in a corridor."), Message("assistant", "Action: go left"))
MARKED = replace(WAITING, task_markers=(TaskMarker("Your task is to:"),))
TOOLED = replace(MARKED, name=f"{__name__}:TOOLED", chat=ChatFormat(tools=(TOOL,)))
TAUGHT = replace(MARKED, name=f"{__name__}:TAUGHT", chat=ChatFormat(examples=EXAMPLES))


@pytest.mark.parametrize("bundle", [TOOLED, TAUGHT])
def test_the_writer_gets_neither_the_agents_tools_nor_its_examples(
    tmp_path: Path, bundle: EnvironmentBundle[EnvironmentConfig]
) -> None:
    writer = Writer()
    with_agents_chat = EnvironmentConfig(name=bundle.name)
    run_paraphrase(config(tmp_path, environment=with_agents_chat), policy=writer, console=QUIET)
    rows = list(read_rows(tmp_path / "rows.jsonl", ParaphraseRow))
    assert {row.task for row in rows} == {"wait for 3 turns."}
    assert len(writer.asked) == len(rows) == 2
    for request in writer.asked:
        assert len(request.history) == 1
        assert not request.sampling.parameters


def test_an_environment_that_does_not_mark_its_task_is_refused(tmp_path: Path) -> None:
    unmarked = config(tmp_path, environment=EnvironmentConfig(name=WAITING.name))
    with pytest.raises(ConfigError, match=r"broken_environments:WAITING' .*task_markers, .*EnvironmentBundle"):
        run_paraphrase(unmarked, policy=Writer(), console=QUIET)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_paraphrase(config(tmp_path / "a"), policy=Writer(dies_after=2), console=QUIET)
    assert len((tmp_path / "a" / "rows.jsonl").read_text().splitlines()) == 2
    assert write(tmp_path / "a") == write(tmp_path / "b")


def test_a_model_that_repeats_the_task_has_paraphrased_nothing(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailureError, match=r"corridor:0: mute .* 5 draws; .*max_tokens"):
        run_paraphrase(config(tmp_path), policy=Mute(), console=QUIET)


def evaluate(
    folder: Path, methods: tuple[MethodName, ...], *, tasks: int = 3
) -> tuple[list[EpisodeRow], Listener, Indifferent]:
    policy, scorer = Listener(), Indifferent()
    run_evaluate(
        EvaluateConfig(
            output=folder / "evaluation",
            environment=CorridorConfig(count=tasks),
            policy="unused",
            methods=methods,
            paraphrases=folder / "paraphrases",
            candidates=3,
            seeds=(0,),
            max_steps=4,
        ),
        policy=policy,
        scorer=scorer,
        console=QUIET,
    )
    return list(read_rows(folder / "evaluation" / "episodes.jsonl", EpisodeRow)), policy, scorer


def test_augmented_guidance_hears_the_paraphrases_and_scores_the_task(tmp_path: Path) -> None:
    paraphrases = write(tmp_path / "paraphrases")
    rows, policy, scorer = evaluate(tmp_path, ("q-guided-aug",))
    assert {row.method for row in rows} == {"q-guided-aug"}
    for row in paraphrases:
        assert any(row.task in text for text in policy.heard)
        assert all(any(t in text for text in policy.heard) for t in row.texts)
        assert any(row.task in text for text in scorer.heard)
        assert not any(t in text for text in scorer.heard for t in row.texts)


def test_best_of_n_aug_draws_later_trajectories_in_other_words(tmp_path: Path) -> None:
    paraphrases = write(tmp_path / "paraphrases")
    rows, policy, _ = evaluate(tmp_path, ("best-of-n", "best-of-n-aug"))
    by_method = {
        method: {row.task_id: row for row in rows if row.method == method} for method in ("best-of-n", "best-of-n-aug")
    }
    for row in paraphrases:
        plain, reworded = (by_method[m][row.task_id] for m in ("best-of-n", "best-of-n-aug"))
        assert len(plain.trajectories) == len(reworded.trajectories) == 3
        assert plain.trajectories[0] == reworded.trajectories[0]
        assert all(any(t in text for text in policy.heard) for t in row.texts)


def test_every_task_needs_a_paraphrase(tmp_path: Path) -> None:
    write(tmp_path / "paraphrases")
    with pytest.raises(ConfigError, match=r"paraphrases .* 2 tasks, .*corridor:3; .*`qguide paraphrase`"):
        evaluate(tmp_path, ("q-guided-aug",), tasks=5)


def test_the_methods_say_what_they_need(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"q-guided-aug: paraphrases .*`qguide paraphrase`"):
        EvaluateConfig(output=tmp_path, methods=("q-guided-aug",))


def test_other_paraphrases_are_another_run(tmp_path: Path) -> None:
    write(tmp_path / "paraphrases")
    evaluate(tmp_path, ("q-guided-aug",))
    (tmp_path / "paraphrases").rename(tmp_path / "old")
    write(tmp_path / "paraphrases", texts=1)
    with pytest.raises(ConfigError, match="paraphrases_sha256"):
        evaluate(tmp_path, ("q-guided-aug",))
