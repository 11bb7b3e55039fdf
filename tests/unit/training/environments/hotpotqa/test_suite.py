"""Episodes over generated and real questions: answers, endings, files and splits."""

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.training.data.trajectories import read_trajectories
from qguide.training.environment import Task
from qguide.training.environments.hotpotqa.bundle import (
    HOTPOTQA,
    USAGE,
    HotPotQaConfig,
    ParagraphIndex,
    QuestionEpisode,
    build_suite,
)
from qguide.training.environments.hotpotqa.questions import NAME_SETS, generated_question, read_questions
from qguide.training.environments.registry import read_task_ids
from qguide.training.jobs.collect import CollectConfig, run_collect

SPLITS = Path(__file__).parents[5] / "training/environments/hotpotqa/splits"
ENTRY = {
    "_id": "5ab",
    "question": " Which river? ",
    "answer": "Isen",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Calder", 1], ["Isen", 0], ["Calder", 0]],
    "context": [["Calder", ["A town.", " On the Isen."]], ["Isen", ["A river."]]],
}


def episode(seed: int = 0, **options: object) -> QuestionEpisode:
    config = HotPotQaConfig.model_validate({"first_seed": seed, "count": 1, **options})
    suite = build_suite(config)
    return suite.make(suite.tasks[0])


@pytest.mark.parametrize("seed", range(8))
def test_the_right_answer_has_the_full_reward(seed: int) -> None:
    playing = episode(seed)
    assert generated_question(seed).text in playing.reset()
    end = playing.step(f"finish[ The {generated_question(seed).answer}. ]")
    assert (end.reward, end.terminated) == (1, True)
    assert HOTPOTQA.is_success(end.reward, end.terminated)


def test_the_answer_is_on_the_pages_that_hold_it() -> None:
    for seed in range(0, 400, 2):
        question = generated_question(seed)
        pages = {page.title: " ".join(page.sentences) for page in question.paragraphs}
        if question.kind.startswith("bridge"):
            assert question.answer in pages[question.supporting[1]]
        assert len(pages) == 10
        assert set(question.supporting) <= pages.keys()


def test_generated_answers_are_not_all_alike() -> None:
    answers = Counter(generated_question(seed).answer for seed in range(400))
    assert len(answers) > 30
    assert answers["yes"] > 10
    assert answers["no"] > 10


def test_a_partly_right_answer_has_its_f1() -> None:
    measured = {}
    for measure in ("em", "f1"):
        playing = episode(2, measure=measure)
        playing.reset()
        first_name = generated_question(2).answer.split()[0]
        measured[measure] = playing.step(f"Finish[{first_name}]").reward
    assert measured == {"em": 0, "f1": pytest.approx(2 / 3)}


def test_lookups_go_through_the_sentences_of_the_last_page() -> None:
    question = generated_question(0)
    playing = episode(0)
    playing.reset()
    assert playing.step("Lookup[born]") == playing.step("look up born")
    name = question.supporting[0]
    assert playing.step(f"Search[{name}]").observation.startswith(f"{name}: {name} (born ")
    seen = [playing.step("Lookup[Born]").observation for _ in range(3)]
    assert seen[0].startswith("(1 of 2) ")
    assert seen[1].startswith("(2 of 2) ")
    assert seen[2] == f"{name} has no more sentence with 'Born'."


def test_what_is_not_understood_is_told_so() -> None:
    playing = episode()
    playing.reset()
    for action in ("Search[]", "Lookup[x]", "Search[unclosed", "Finish"):
        result = playing.step(action)
        assert (result.observation, result.valid) == (USAGE, False)


def test_an_episode_ends_after_its_turns() -> None:
    playing = episode(turns=3)
    playing.reset()
    steps = [playing.step("Search[town]") for _ in range(3)]
    assert [step.truncated for step in steps] == [False, False, True]
    assert not any(step.terminated for step in steps)


def test_gold_replies_keep_within_the_turns() -> None:
    suite = build_suite(HotPotQaConfig(count=1, turns=2))
    assert len(suite.gold_replies(suite.tasks[0])) == 2


def test_collect_writes_the_solutions(tmp_path: Path) -> None:
    config = CollectConfig(output=tmp_path, player="gold", environment=HotPotQaConfig(count=8), parallel=3)
    assert run_collect(config)["kept"] == 8
    rows = list(read_trajectories(tmp_path / "rows.jsonl"))
    assert {(row.source, row.reward, len(row.steps)) for row in rows} == {("expert", 1.0, 3)}
    assert all(row.messages[0].role == "system" for row in rows)


@pytest.mark.parametrize("compressed", [False, True])
def test_files_of_the_benchmark_are_read(tmp_path: Path, compressed: bool) -> None:
    text = json.dumps([ENTRY | {"split": "dev"}]).encode()
    path = tmp_path / ("dev.json.xz" if compressed else "dev.json")
    path.write_bytes(lzma.compress(text) if compressed else text)
    suite = build_suite(HotPotQaConfig(questions=path))
    assert (suite.name, suite.tasks) == ("dev", [Task("5ab", "bridge-hard", "5ab")])
    [question] = read_questions(path)
    assert (question.text, question.supporting) == ("Which river?", ("Calder", "Isen"))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"questions = .*none\.json: .*HotPotQA"):
        read_questions(tmp_path / "none.json")
    wrong = tmp_path / "wrong.json"
    for text, message in (
        (json.dumps([ENTRY | {"context": []}]), r"0\.context"),
        ("[", "the file: Invalid JSON"),
        (json.dumps([ENTRY, ENTRY]), "'5ab' is there twice"),
    ):
        wrong.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_questions(wrong)
    (tmp_path / "wrong.json.xz").write_bytes(b"plain")
    with pytest.raises(ConfigError, match="distractor"):
        read_questions(tmp_path / "wrong.json.xz")


def test_no_two_sets_of_names_share_a_person_or_a_town() -> None:
    titles: list[set[str]] = []
    for name_set in range(NAME_SETS):
        questions = [generated_question(seed, name_set) for seed in range(200)]
        titles.append({page.title for question in questions for page in question.paragraphs})
    assert sum(map(len, titles)) == len(set().union(*titles))


def test_the_splits_share_no_question() -> None:
    ids = {path.stem: read_task_ids(path) for path in SPLITS.iterdir()}
    assert {name: len(split) for name, split in ids.items()} == {"train": 179, "validation": 59, "test": 60}
    assert len(set().union(*ids.values())) == 298


def test_the_splits_are_the_real_questions(hotpotqa_questions: Path) -> None:
    suite = build_suite(HotPotQaConfig(questions=hotpotqa_questions))
    ids = [task_id for path in SPLITS.iterdir() for task_id in read_task_ids(path)]
    assert sorted(ids) == sorted(task.id for task in suite.tasks)


def test_the_splits_share_no_page_that_holds_an_answer(hotpotqa_questions: Path) -> None:
    questions = {question.id: question for question in read_questions(hotpotqa_questions)}
    titles = [
        {title for task_id in read_task_ids(path) for title in questions[task_id].supporting}
        for path in SPLITS.iterdir()
    ]
    assert sum(map(len, titles)) == len(set().union(*titles))


def test_real_questions_are_answered_by_their_solutions(hotpotqa_questions: Path) -> None:
    suite = build_suite(HotPotQaConfig(questions=hotpotqa_questions))
    for task in suite.tasks:
        playing = suite.make(task)
        playing.reset()
        for reply in suite.gold_replies(task):
            result = playing.step(HOTPOTQA.chat.parse_action(reply))
            assert result.valid
        assert (result.reward, result.terminated) == (1, True)


def test_a_real_questions_own_words_mostly_find_a_page_that_is_needed(hotpotqa_questions: Path) -> None:
    """The figure of docs/train/hotpotqa.md, but for pages whose scores are nearly equal."""
    questions = read_questions(hotpotqa_questions)
    first = [ParagraphIndex(question.paragraphs).rank(question.text)[0] for question in questions]
    found = sum(page.title in question.supporting for page, question in zip(first, questions, strict=True))
    assert len(questions) == 298
    assert found == pytest.approx(248, abs=2)
