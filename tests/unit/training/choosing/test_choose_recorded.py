"""The choose job on small recordings of several models: rules, Q and the bounds around them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from benchmarks.recorded.groups import run_recorded_groups
from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.choosing.attempts import read_attempts
from qguide.training.choosing.choose_recorded import (
    CHOICES,
    ChoiceRow,
    ChosenRow,
    run_choose_recorded,
    table_of_attempts,
)
from qguide.training.choosing.features import NAMES
from qguide.training.choosing.options import ChooseRecordedConfig
from qguide.training.data.runs import RunFolder, read_rows
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from tests.support.recordings.llms import bfcl_clone, lacking, mint_episodes, right_call, right_text, wrong_number
from tests.unit.benchmarks.recorded.test_recorded_groups import configure

MODELS = ("gpt-a", "gpt-b", "claude-a", "claude-b", "llama-a", "llama-b")


def mint(folder: Path, models: tuple[str, ...] = MODELS, **options: Any) -> ChooseRecordedConfig:
    """A job on MINT's episodes."""
    file = folder / "mint.jsonl"
    mint_episodes(file, models, tasks=24)
    given: dict[str, Any] = {
        "source": (file,),
        "output": folder / "chosen",
        "candidates": 4,
        "draws": 3,
        "observed": True,
        "task_folds": 2,
        "trainings": (0,),
        "training_draws": 4,
        "steps": 25,
    }
    return ChooseRecordedConfig(**{**given, **options})


def test_q_learns_what_attempts_that_succeed_have_observed(tmp_path: Path) -> None:
    config = mint(tmp_path)
    means = run_choose_recorded(config)
    nearly_all = 0.95 * means["oracle"]  # some groups hold no success
    assert means["q"] > nearly_all > means["random"]
    assert means["posterior"] > nearly_all
    assert means["valid then posterior"] > nearly_all
    rows = list(read_rows(RunFolder(config.output).rows, ChosenRow))
    assert {row.section for row in rows} == {"reasoning/times"}
    assert len(rows) == 24


def test_one_choice_of_each_task_is_written_for_the_page(tmp_path: Path) -> None:
    config = mint(tmp_path, shown=7, steps=2)
    run_choose_recorded(config)
    choices = list(read_rows(config.output / CHOICES, ChoiceRow))
    assert len({choice.task_id for choice in choices}) == len(choices) == 7
    for choice in choices:
        q_values = [candidate.q_value for candidate in choice.candidates]
        assert max(q_values) == q_values[choice.by_q[0]]
        assert len(q_values) == 4
        assert all(candidate.answer for candidate in choice.candidates)
        assert choice.asked


def test_what_stopping_saves_is_told_in_tokens_of_a_tokenizer(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    config = mint(tmp_path, steps=2, tokenizer=tmp_path / "tokenizer.json")
    run_choose_recorded(config)
    told = json.loads(RunFolder(config.output).metrics.read_text())["all"]["stopping"]
    assert [row["go_on"] for row in told] == [1, 2, 3, 4]
    assert 16 < told[-1]["random"]["tokens"] < 20  # an attempt writes four words, or five where it fails
    with pytest.raises(ConfigError, match=r"none\.json .*tokenizer\.json$"):
        run_choose_recorded(mint(tmp_path, tokenizer=tmp_path / "none.json", output=tmp_path / "none"))


def test_who_made_a_candidate_does_not_reach_q(tmp_path: Path) -> None:
    renamed = tuple(f"model-{i}" for i in range(6))
    configs = [mint(tmp_path / name, models) for name, models in (("a", MODELS), ("b", renamed))]
    first, second = (table_of_attempts(one, read_attempts(one.source, one))[1] for one in configs)
    known = len(NAMES)  # the others are topics of the words
    assert np.array_equal(first.numbers[:, :known], second.numbers[:, :known])
    assert np.array_equal(first.words.toarray(), second.words.toarray())
    assert np.array_equal(first.forms.toarray(), second.forms.toarray())


def test_q_chooses_among_families_that_it_has_not_learned_from(tmp_path: Path) -> None:
    families = {"one": ("*-a",), "other": ("*-b",)}
    models = tuple(f"{name}-{end}" for name in ("x", "y", "z", "w") for end in "ab")
    means = run_choose_recorded(mint(tmp_path, models, families=families, family_folds=2))
    assert means["random"] == 0.5
    assert means["q"] > 0.9


def test_an_attempt_that_had_ended_is_no_candidate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"144 .* 0 actions .* 2 turns"):
        run_choose_recorded(mint(tmp_path, turns=2))


def test_rules_read_the_calls_of_every_form(tmp_path: Path) -> None:
    answers = {
        "api": (right_call, True),
        "text": (right_text, True),
        "guess": (wrong_number, False),
        "short-a": (lacking, False),
        "short-b": (lacking, False),
    }
    bfcl_clone(tmp_path / "clone", answers, tasks=12)
    config = ChooseRecordedConfig(
        source=(tmp_path / "clone",),
        format="bfcl",
        output=tmp_path / "chosen",
        task_folds=2,
        draws=1,
        trainings=(0,),
        training_draws=4,
        steps=25,
        halves=True,
    )
    means = run_choose_recorded(config)
    assert means["random"] == pytest.approx(0.4)
    assert means["majority"] == 0.5  # two say the same rightly, two wrongly
    assert means["valid then majority"] == 1.0
    assert means["best model"] == 1.0
    assert means["q"] > 0.9
    [told] = RunFolder(config.output).metrics.read_text().splitlines()
    assert '"calls_read": 1.0' in told
    assert '"untouched"' in told


def test_runs_of_recorded_groups_are_read(tmp_path: Path) -> None:
    groups = configure(tmp_path, turns="all")
    run_recorded_groups(groups)
    with pytest.raises(ConfigError, match=r"\* .* 9 candidates .*family_folds"):
        run_choose_recorded(
            ChooseRecordedConfig(source=(groups.output,), output=tmp_path / "chosen", candidates=9, observed=True)
        )


def test_a_seed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trainings \(1, 1\) "):
        ChooseRecordedConfig(source=(Path("x"),), output=Path("y"), trainings=(1, 1))


def test_what_is_learned_in_one_part_may_be_judged_in_another(tmp_path: Path) -> None:
    config = mint(tmp_path, learned_in=("reasoning/*",), judged_in=("*times",), training_tasks=10)
    means = run_choose_recorded(config)
    assert means["q"] > means["random"]
    assert means["calls read"] == 1.0  # nothing may be called
    told = json.loads(RunFolder(config.output).metrics.read_text())
    decided = told["until_decided"]
    assert decided["votes"]["reward"] == means["majority"]
    assert 0 < decided["votes"]["written"] <= 1
    with pytest.raises(ConfigError, match=r"code\* .* 4 candidates .*family_folds"):
        run_choose_recorded(mint(tmp_path, judged_in=("code*",), output=tmp_path / "none"))


SMALL: dict[str, Any] = {
    "candidates": 2,
    "task_folds": 2,
    "trainings": (0,),
    "training_draws": 4,
    "draws": 3,
    "steps": 25,
}
UNLEARNED: dict[str, Any] = {**SMALL, "steps": 2}
"""For tests that read the choices of rules alone."""


def chats(
    file: Path,
    *,
    right: bool,
    tasks: int = 12,
    sections: tuple[str, ...] = ("sums",),
    said: str | None = None,
    **reply: Any,
) -> None:
    """One model's answers to a few questions, all the same if it is given, with further fields of the reply."""
    answers = [said or ("It is four." if right else f"{i}") for i in range(tasks)]
    fields = {"role": "assistant"} | reply
    rows = [
        {
            "messages": [{"role": "user", "content": f"Question {i}?"}, fields | {"content": answer}],
            "reward": float(right),
            "task_id": f"{sections[i % len(sections)]}/{i}",
        }
        for i, answer in enumerate(answers)
    ]
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("sure", "unsure"),
    [
        ({"logprobs": {"content": [{"token": "It", "logprob": -0.1}, {"token": "is", "logprob": -0.2}]}}, -0.4),
        ({"logprob": -0.3}, -0.31),
        ({"response_metadata": {"logprobs": {"content": [{"logprob": -0.3}]}}}, -0.4),
    ],
)
def test_the_likeliest_candidate_is_a_chooser_where_likelihoods_are_recorded(
    tmp_path: Path, sure: dict[str, Any], unsure: float
) -> None:
    chats(tmp_path / "runs" / "gpt" / "chats.jsonl", right=True, **sure)
    chats(tmp_path / "runs" / "claude" / "chats.jsonl", right=False, logprobs=[unsure / 2, unsure / 2])
    config = ChooseRecordedConfig(
        source=(tmp_path / "runs",), model_key="@folder", output=tmp_path / "out", **UNLEARNED
    )
    assert run_choose_recorded(config)["likeliest"] == 1.0
    chats(tmp_path / "runs" / "llama" / "chats.jsonl", right=False)
    assert "likeliest" not in run_choose_recorded(config.model_copy(update={"output": tmp_path / "unknown"}))


def test_without_words_q_cannot_tell_apart_what_they_alone_tell_apart(tmp_path: Path) -> None:
    for said in ("north", "south"):
        chats(tmp_path / "runs" / said / "chats.jsonl", right=said == "north", tasks=20, said=f"It is {said}.")
    read, unread = (
        run_choose_recorded(
            ChooseRecordedConfig(
                source=(tmp_path / "runs",), model_key="@folder", words=words, output=tmp_path / f"{words}", **SMALL
            )
        )
        for words in (True, False)
    )
    assert (read["q"], read["q in group"]) == (1.0, 1.0)
    assert (unread["q"], unread["q in group"]) == (0.5, 0.5)


def test_the_folder_of_a_file_names_its_model(tmp_path: Path) -> None:
    for model in ("gpt", "claude"):
        chats(tmp_path / "runs" / model / "logs" / "chats.jsonl", right=model == "gpt")
    config = ChooseRecordedConfig(
        source=(tmp_path / "runs",), model_key="@folders.1", output=tmp_path / "out", **UNLEARNED
    )
    assert run_choose_recorded(config)["best model"] == 1.0


def test_imports_of_several_models_with_outcomes_of_their_own_are_compared(tmp_path: Path) -> None:
    for model in ("gpt", "claude"):
        chats(tmp_path / model / "chats.jsonl", right=model == "gpt")
        source, output = tmp_path / model, tmp_path / "imported" / model
        run_import(ImportConfig(source=source, model_key="@folder", output=output))
    imports = tuple(tmp_path / "imported" / model for model in ("gpt", "claude"))
    config = ChooseRecordedConfig(source=imports, output=tmp_path / "out", **UNLEARNED)
    means = run_choose_recorded(config)
    assert (means["random"], means["best model"]) == (0.5, 1.0)


def test_whole_attempts_are_chosen_by_how_they_ended(tmp_path: Path) -> None:
    for model in ("gpt", "claude"):
        chats(tmp_path / "runs" / model / "chats.jsonl", right=model == "gpt")
    config = ChooseRecordedConfig(
        source=(tmp_path / "runs",), output=tmp_path / "out", finished=True, answer=re.compile("four"), **UNLEARNED
    )
    assert run_choose_recorded(config)["valid"] == 1.0
    with pytest.raises(ValueError, match=r"after = 1 .*finished"):
        ChooseRecordedConfig(**{**dict(config), "after": 1})


def test_a_record_without_an_episode_is_not_left_out_in_silence(tmp_path: Path) -> None:
    chats(tmp_path / "runs" / "chats.jsonl", right=True)
    with (tmp_path / "runs" / "chats.jsonl").open("a") as file:
        file.write('{"messages": [], "reward": 1}\n')
    config = ChooseRecordedConfig(source=(tmp_path / "runs",), output=tmp_path / "out", **SMALL)
    with pytest.raises(RecordError, match=r"line 13: .*messages; .*--skip-bad or --set skip_bad=true"):
        run_choose_recorded(config)


def test_q_of_other_sections_has_no_licence_and_the_rule_is_followed(tmp_path: Path) -> None:
    for model in ("gpt", "claude"):
        file = tmp_path / "runs" / model / "chats.jsonl"
        chats(file, right=model == "gpt", tasks=24, sections=("sums", "roots"))
    own, foreign, by_section = (
        run_choose_recorded(
            ChooseRecordedConfig(
                source=(tmp_path / "runs",),
                model_key="@folder",
                output=tmp_path / f"out{number}",
                judged_in=(judged,),
                by_section=by_section,
                **SMALL,
            )
        )
        for number, (judged, by_section) in enumerate((("*", False), ("sums", False), ("*", True)))
    )
    assert (own["licences"], own["licensed"], own["majority"]) == (1.0, own["q in group"], 0.5)
    assert (foreign["licences"], foreign["licensed"]) == (0.0, 0.5)
    assert (by_section["licences"], by_section["licensed"]) == (0.0, 0.5)
