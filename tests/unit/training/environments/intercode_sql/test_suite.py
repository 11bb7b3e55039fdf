"""Episodes over generated and real tasks: rewards, endings, and the folds."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError
from qguide.training.environments.intercode_sql.bundle import INTERCODE_SQL, InterCodeSqlConfig, build_suite, parse_sql
from qguide.training.environments.intercode_sql.tasks import generated_task
from qguide.training.environments.registry import read_task_ids
from tests.support.recorded_sql import share_of_equal_rewards

FOLDS = sorted((Path(__file__).parents[5] / "training/environments/intercode_sql/folds").iterdir())


@pytest.mark.parametrize("seed", range(10))
def test_the_right_query_has_the_full_reward(seed: int) -> None:
    suite = build_suite(InterCodeSqlConfig(first_seed=seed, count=1))
    episode = suite.make(suite.tasks[0])
    first = episode.reset()
    assert generated_task(seed).question in first
    assert "book(book_id, title, author_id, year, copies)" in first
    answer = episode.step(generated_task(seed).gold)
    assert (answer.reward, answer.terminated, answer.valid) == (1, False, True)
    end = episode.step("submit")
    assert (end.reward, end.terminated) == (1, True)
    assert INTERCODE_SQL.is_success(end.reward, end.terminated)


def test_the_last_result_counts() -> None:
    suite = build_suite(InterCodeSqlConfig(count=1))
    episode = suite.make(suite.tasks[0])
    episode.reset()
    episode.step(generated_task(0).gold)
    assert not episode.step("SELECT nothing").valid
    assert episode.step("Submit;").reward == 0


def test_an_episode_ends_after_its_turns() -> None:
    suite = build_suite(InterCodeSqlConfig(count=1, turns=3))
    episode = suite.make(suite.tasks[0])
    episode.reset()
    endings = [episode.step("SHOW TABLES").terminated for _ in range(3)]
    assert endings == [False, False, True]


def test_the_schema_may_be_hidden_and_answers_cut() -> None:
    config = InterCodeSqlConfig(count=1, show_schema=False, observation_chars=9)
    suite = build_suite(config)
    episode = suite.make(suite.tasks[0])
    assert "book(" not in episode.reset()
    assert episode.step("SHOW TABLES").observation == "[('author … (26 characters more)"


@pytest.mark.parametrize(
    ("reply", "sql"),
    [
        ("SELECT 1", "SELECT 1"),
        ("I count.\n```sql\nSELECT 1\nFROM a\n```", "SELECT 1\nFROM a"),
        ("```SELECT 1``` then ```sql SELECT 2```", "SELECT 2"),
        ("execute[SELECT a\nFROM b]", "SELECT a\nFROM b"),
        (" submit\n", "submit"),
    ],
)
def test_a_reply_acts_by_its_sql(reply: str, sql: str) -> None:
    assert parse_sql(reply) == sql


def test_tasks_need_their_databases(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"tasks .*databases None .*dsn ''"):
        InterCodeSqlConfig(tasks=tmp_path)
    with pytest.raises(ConfigError, match=r"tasks = .*/none: .*InterCode-SQL"):
        build_suite(InterCodeSqlConfig(tasks=tmp_path / "none", databases=tmp_path))
    wrong = tmp_path / "tasks.json"
    wrong.write_text(json.dumps([{"task_id": "x"}]))
    with pytest.raises(ConfigError, match=r"0\.\w+"):
        build_suite(InterCodeSqlConfig(tasks=wrong, databases=tmp_path))
    entry = {"task_id": 1, "db": "Shop", "query": "?", "gold": "", "hardness": "easy"}
    wrong.write_text(json.dumps([entry | {"db_tables": {}}]))
    with pytest.raises(ConfigError, match=r"databases = .* 1 of 1 files .*shop\.sqlite"):
        build_suite(InterCodeSqlConfig(tasks=wrong, databases=tmp_path))


def test_folds_share_no_database() -> None:
    databases = [{i.partition("/")[0] for i in read_task_ids(fold)} for fold in FOLDS]
    assert len(FOLDS) == 4
    assert sum(map(len, databases)) == len(set().union(*databases)) == 12


def test_folds_are_the_real_tasks(intercode_sql_data: tuple[Path, Path]) -> None:
    tasks, databases = intercode_sql_data
    suite = build_suite(InterCodeSqlConfig(tasks=tasks, databases=databases))
    ids = [task_id for fold in FOLDS for task_id in read_task_ids(fold)]
    assert sorted(ids) == sorted(task.id for task in suite.tasks)


def test_real_gold_queries_answer_their_questions(intercode_sql_data: tuple[Path, Path]) -> None:
    tasks, databases = intercode_sql_data
    suite = build_suite(InterCodeSqlConfig(tasks=tasks, databases=databases))
    gold = {f"{e['db']}/{e['task_id']}": e["gold"] for e in json.loads(tasks.read_bytes())}
    right = 0
    for task in suite.tasks:
        episode = suite.make(task)
        episode.reset()
        right += episode.step(gold[task.id]).reward == 1
        episode.close()
    assert right == len(suite.tasks) == 570


def test_recorded_submissions_earn_here_what_they_earned_in_mysql(
    intercode_sql_data: tuple[Path, Path], recorded_sql_episodes: Path
) -> None:
    """Every fourth one that ran; what differs is the order of results that no query sorts."""
    tasks, databases = intercode_sql_data
    config = InterCodeSqlConfig(tasks=tasks, databases=databases, turns=1_000)
    suite = build_suite(config)
    share = share_of_equal_rewards(suite, recorded_sql_episodes)
    assert share >= 0.93
