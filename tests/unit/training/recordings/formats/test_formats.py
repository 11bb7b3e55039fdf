"""Each format of others is detected, and its one episode read as it was."""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.types import Message
from qguide.training.data.trajectories import Trajectory
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from qguide.training.recordings import json_stream
from qguide.training.recordings.episode import BadRecord
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import FORMATS, read_episodes, recording_of
from tests.support.documents import blocks_of
from tests.support.recordings import SAMPLES
from tests.support.recordings.agents import atif, tau2_folder
from tests.support.recordings.runs import BFCL_FUNCTIONS, SEARCHED, appworld_call, bfcl
from tests.support.recordings.sample import ASKED, CHAT, SAID, TASK, Sample, dump
from tests.support.recordings.traces import INSPECT_HEADER


@pytest.fixture
def store() -> Iterator[MemoryFileSystem]:
    """The store of `memory://`, empty."""
    yield (files := MemoryFileSystem())
    files.rm("/bucket", recursive=True)


def read(source: Path, format_: str | None = None, fields: Fields | None = None) -> list[Any]:
    """Everything that a source holds."""
    return list(read_episodes(recording_of(source, format_), fields or Fields()))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.write.__name__)
def test_the_episode_of_a_format_is_read(sample: Sample, tmp_path: Path) -> None:
    sample.write(tmp_path)
    (episode,) = read(tmp_path, sample.format, sample.fields)
    assert isinstance(episode, Trajectory), episode
    assert episode.messages == sample.messages
    assert (episode.reward, episode.terminated) == (sample.reward, sample.terminated)
    assert episode.source == sample.agent
    assert tuple(sorted(episode.left_out.values(), reverse=True)) == sample.left_out
    if sample.task:
        assert episode.task_id == sample.task


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.write.__name__)
def test_a_format_is_read_at_an_address_as_here(sample: Sample, tmp_path: Path, store: MemoryFileSystem) -> None:
    sample.write(tmp_path)
    store.put(str(tmp_path), "/bucket", recursive=True)
    assert read(Path("memory://bucket"), fields=sample.fields) == read(tmp_path, fields=sample.fields)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.write.__name__)
def test_the_format_of_a_folder_shows(sample: Sample, tmp_path: Path) -> None:
    sample.write(tmp_path)
    assert recording_of(tmp_path).format == sample.format


def test_every_format_has_a_sample_and_a_row_in_the_table_of_the_docs() -> None:
    ours = {"served", "messages", "sharegpt", "otel"}
    elsewhere = {"bfcl", "preferences"}  # tested below: they hold two episodes
    assert set(FORMATS) == {sample.format for sample in SAMPLES} | ours | elsewhere
    page = Path("docs/bring/data.md").read_text()
    assert [name for name in FORMATS if f"| `{name}` |" not in page] == []


def test_simulations_of_tau2_bench_in_files_of_their_own_are_read_once(tmp_path: Path) -> None:
    tau2_folder(tmp_path)
    (by_results,) = read(tmp_path / "results.json")
    simulation = json.loads((tmp_path / "simulations/s.json").read_text())
    dump(tmp_path / "simulations/t.json", {**simulation, "messages": None, "ticks": []})
    (tmp_path / "simulations/u.json").write_text('{"id":')
    episode, by_voice, cut_off = read(tmp_path)
    assert episode == by_results
    assert "simulations by voice" in str(by_voice)
    assert "u.json: it is not JSON" in str(cut_off)


@pytest.mark.parametrize("named", ["simulations", "simulations/s.json"])
@pytest.mark.parametrize("format_", [None, "tau2-bench"])
def test_simulations_of_tau2_bench_alone_are_refused_with_the_folder_to_name(
    named: str, format_: str | None, tmp_path: Path
) -> None:
    tau2_folder(tmp_path)
    with pytest.raises(ConfigError, match=f"results.json .* {re.escape(str(tmp_path))}$"):
        read(tmp_path / named, format_)


@pytest.mark.parametrize("at", ["", "file://"])
def test_answers_of_bfcl_have_the_question_of_any_models_failure(at: str, tmp_path: Path) -> None:
    bfcl(tmp_path)
    right, wrong = read(Path(f"{at}{tmp_path}"), "bfcl")
    assert (right.reward, right.source, right.task_id) == (1.0, "right", "simple_0")
    assert (wrong.reward, wrong.source) == (0.0, "wrong")
    system, user, reply = right.messages
    assert system == Message("system", f"Functions: {json.dumps(BFCL_FUNCTIONS)}")
    assert user.content == CHAT[0]["content"]
    assert [call.name for call in reply.tool_calls] == ["look"]


def counted(right: int, answers: int) -> dict[str, float]:
    """The first line of a score of BFCL."""
    return {"accuracy": right / answers, "correct_count": right, "total_count": answers}


@pytest.mark.parametrize(
    "score", ["", '{"accuracy": 0.0, "correct_count": 0, "total_count": 1}\n', '{"total_count": 1}\n{"id"']
)
def test_a_score_of_bfcl_that_is_not_whole_makes_no_answer_right(score: str, tmp_path: Path) -> None:
    bfcl(tmp_path)
    (tmp_path / "score/wrong/non_live/BFCL_v4_simple_score.json").write_text(score)
    with pytest.raises(RecordError, match="BFCL_v4_simple_score"):
        read(tmp_path, "bfcl")


def test_a_preference_whose_answers_hold_the_prompt_has_it_once(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "hi"}
    answers = ([asked, {"role": "assistant", "content": text}] for text in ("yes", "no"))
    dump(tmp_path / "p.jsonl", dict(zip(("chosen", "rejected"), answers, strict=True), prompt="hi"))
    chosen, rejected = read(tmp_path, "preferences")
    assert [message.content for message in chosen.messages] == ["hi", "yes"]
    assert [message.content for message in rejected.messages] == ["hi", "no"]


def test_two_scores_of_one_name_that_differ_are_refused(tmp_path: Path) -> None:
    asked = {"type": "GENERATION", "id": "g", "input": "hi", "output": "yes"}
    scores = [{"name": "correct", "value": value} for value in (0, 1)]
    dump(tmp_path / "t.jsonl", {"id": "t", "observations": [asked], "scores": scores})
    (bad,) = read(tmp_path, "langfuse", Fields(reward="scores.correct"))
    assert "two values of the score 'correct'" in bad.reason


def test_an_answer_without_a_role_keeps_its_calls(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = {"content": "let me", "tool_calls": [call]}
    asked = {"type": "GENERATION", "id": "g", "input": "hi", "output": answer}
    score = [{"name": "correct", "value": 1}]
    dump(tmp_path / "t.jsonl", {"id": "t", "observations": [asked], "scores": score})
    (episode,) = read(tmp_path, "langfuse", Fields(reward="scores.correct"))
    assert [one.name for one in episode.messages[-1].tool_calls] == ["look"]


def test_a_damaged_log_of_inspect_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("samples/mug_epoch_1.json", json.dumps({"text": "x" * 5_000}))
    data = bytearray(path.read_bytes())
    data[60:70] = bytes(10)
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"log\.eval .*: Error -3 "):
        read(tmp_path, "inspect")


def test_an_observation_of_a_call_that_its_step_has_not_is_refused(tmp_path: Path) -> None:
    atif(tmp_path)
    (path,) = tmp_path.glob("**/trajectory.json")
    trajectory = json.loads(path.read_text())
    trajectory["steps"][2]["observation"]["results"][0]["source_call_id"] = "c9"
    path.write_text(json.dumps(trajectory))
    (bad,) = read(tmp_path, "atif")
    assert "answers call 'c9'" in bad.reason


def test_a_reply_is_as_likely_as_its_tokens_together(tmp_path: Path) -> None:
    atif(tmp_path)
    (path,) = tmp_path.glob("**/trajectory.json")
    trajectory = json.loads(path.read_text())
    trajectory["steps"][2]["metrics"]["logprobs"] = [-0.5, -0.25]
    path.write_text(json.dumps(trajectory))
    (episode,) = read(tmp_path, "atif")
    assert [episode.logprobs.get(place) for place in episode.replies] == [-0.75, None]


@pytest.mark.parametrize(("said", "known"), [([-0.5, -1], -1.5), (-2, -2.0), ([], None), ([None], None), ("no", None)])
def test_a_completion_may_have_a_column_of_likelihoods(tmp_path: Path, said: object, known: float | None) -> None:
    dump(tmp_path / "rows.jsonl", {"prompt": "2 + 2?", "completion": "4", "reward": 1.0, "logprobs": said})
    (episode,) = read(tmp_path, "trl")
    assert episode.logprobs.get(1) == known


def test_a_summary_of_an_agents_words_is_no_episode(tmp_path: Path) -> None:
    atif(tmp_path)
    (path,) = tmp_path.glob("**/trajectory.json")
    path.with_name("trajectory.summarization-1-summary.json").write_text(path.read_text())
    assert len(read(tmp_path, "atif")) == 1


def test_a_folder_that_is_named_like_a_file_holds_no_records(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(ConfigError, match=r"\.jsonl, \.json .*\.parquet"):
        recording_of(tmp_path)


def test_answers_of_bfcl_in_2024_are_texts_under_other_names(tmp_path: Path) -> None:
    name = "m/gorilla_openfunctions_v1_test_simple_result.json"
    dump(tmp_path / "result" / name, {"id": "simple_0", "result": "\n[look(at='desk')]"})
    asked = {"id": "simple_0", "question": "Find the mug.", "function": {}}
    failure = {"id": 1, "prompt": asked}  # numbered from 1
    dump(tmp_path / "score" / "m" / "simple_score.json", counted(0, 1), failure)
    (episode,) = read(tmp_path, "bfcl")
    assert episode.messages[-1] == Message("assistant", "[look(at='desk')]")
    assert episode.reward == 0.0


def test_answers_of_bfcl_that_cannot_be_judged_are_named(tmp_path: Path) -> None:
    bfcl(tmp_path)
    dump(tmp_path / "result/right/BFCL_v4_other_result.json", {"id": "other_0", "result": "x"})
    dump(tmp_path / "score/right/BFCL_v4_other_score.json", counted(1, 1))
    bad = [found for found in read(tmp_path, "bfcl") if isinstance(found, BadRecord)]
    assert "no model failed it" in bad[0].reason


@pytest.mark.parametrize("name", ["BFCL_v4_other", "gorilla_openfunctions_v1_test_other"])  # of today, and of 2024
def test_questions_of_bfcl_may_lie_beside_its_results(tmp_path: Path, name: str) -> None:
    dump(tmp_path / f"result/m/{name}_result.json", {"id": "other_0", "result": "x"})
    score = name.removeprefix("gorilla_openfunctions_v1_test_")
    dump(tmp_path / f"score/m/{score}_score.json", counted(1, 1))
    question = {"id": "other_0", "question": [[CHAT[0]]], "function": BFCL_FUNCTIONS}
    dump(tmp_path / f"data/{name}.json", question)
    (episode,) = read(tmp_path, "bfcl")
    assert (episode.reward, episode.messages[1].content) == (1.0, CHAT[0]["content"])


def test_mini_swe_agents_last_note_may_be_a_users_as_its_documentation_has_it(tmp_path: Path) -> None:
    note = {"role": "user", "content": "", "extra": {"exit_status": "Submitted", "submission": "diff"}}
    trajectory = {"info": {"exit_status": "Submitted"}, "messages": [*CHAT, note]}
    dump(tmp_path / "mug.traj.json", trajectory | {"trajectory_format": "mini-swe-agent-1.1"})
    (episode,) = read(tmp_path, fields=Fields(default_reward=1.0))
    assert (episode.messages[-1], episode.terminated) == (ASKED[1], True)


def test_a_call_of_appworld_that_failed_has_no_answer(tmp_path: Path) -> None:
    failed = appworld_call(3) | {"output": {"choices": [{"message": {"content": ""}}], "error": "context exceeded"}}
    dump(tmp_path / "b0a8eae_2" / "logs" / "lm_calls.jsonl", appworld_call(1), failed)
    (episode,) = read(tmp_path, fields=Fields(default_reward=0.0))
    assert (episode.messages, episode.terminated) == (SAID[:3], False)


def test_calls_of_appworld_of_which_one_forgets_are_refused(tmp_path: Path) -> None:
    dump(tmp_path / "b0a8eae_2" / "logs" / "lm_calls.jsonl", appworld_call(3), appworld_call(1))
    (flaw,) = read(tmp_path, fields=Fields(default_reward=0.0))
    assert "the call in line 1 does not lead to it" in str(flaw)


def test_a_blocked_or_empty_action_of_intercode_is_an_action(tmp_path: Path) -> None:
    history = {"actions": ["ls", " ", "blocked"], "observations": ["\n", "x"], "rewards": [0, 0.5]}
    episode = {"environment": "ic_sql", "task_id": 1, "query": "List.", "turn_history": history}
    (tmp_path / "sql.json").write_text(json.dumps({"0": episode}, indent=1))
    (read_back,) = read(tmp_path)
    said = [message.content for message in read_back.messages]
    assert said == ["List.", "ls", "(no output)", "(nothing)", "x", "blocked"]
    assert read_back.reward == 0.5


def test_intercodes_runs_that_plan_keep_their_episodes_beside_their_settings(tmp_path: Path) -> None:
    history = {"actions": ["ls", "pwd"], "observations": ["a", "b"], "rewards": [0.2, 0.5]}
    episode = {"environment": "ic_bash", "query": "List.", "turn_history": history}
    played = {str(i): {**episode, "task_id": i} for i in range(3)}
    settings = {"data_path": "./tasks.json", "env": "bash", "refine": False}
    (tmp_path / "plan.json").write_text(json.dumps({"meta": settings, "logs": played}))
    found = read(tmp_path, "intercode")
    assert [episode.task_id for episode in found] == [f"ic_bash/None/{i}" for i in range(3)]


def test_a_record_of_intercode_without_its_turns_is_not_left_out_in_silence(tmp_path: Path) -> None:
    played = {"environment": "ic_bash", "query": "List.", "task_id": 0}
    history = {"actions": ["ls"], "observations": ["a"], "rewards": [1.0]}
    records = {"0": {**played, "turn_history": history}, "1": played}
    (tmp_path / "runs.json").write_text(json.dumps(records))
    assert [type(one) for one in read(tmp_path, "intercode")] == [Trajectory, BadRecord]


def test_a_source_with_a_star_is_everything_that_is_named_so(tmp_path: Path) -> None:
    for agent in ("b", "a"):
        for part in ("asked", "told"):
            dump(tmp_path / agent / part / "run.jsonl", {"messages": CHAT, "reward": 1, "task_id": f"{agent} {part}"})
    dump(tmp_path / ".git" / "asked" / "run.jsonl", {"messages": CHAT, "reward": 1, "task_id": "hidden"})
    assert [episode.task_id for episode in read(tmp_path / "*" / "asked")] == ["a asked", "b asked"]
    every = ["a asked", "a told", "b asked", "b told"]
    assert [episode.task_id for episode in read(tmp_path / "**")] == every, "each file once"
    with pytest.raises(ConfigError, match=r"/\*/heard "):
        read(tmp_path / "*" / "heard")


def test_a_fine_tuned_gpt_of_fireact_was_recorded_as_messages(tmp_path: Path) -> None:
    ended = {"role": "user", "content": "Observation: Episode finished, reward = False"}
    chat = [{"role": said.role, "content": said.content} for said in SEARCHED]
    (tmp_path / "gpt.json").write_text(json.dumps({"1": {"reward": False, "pred": "", "traj": [*chat, ended]}}))
    (episode,) = read(tmp_path)
    assert (episode.messages, episode.reward) == (SEARCHED, 0.0)


def test_an_agent_of_terminal_bench_without_logs_is_read_from_its_terminal(tmp_path: Path) -> None:
    for name, screen in (("seen", "$ agent\n" + "x" * 9_000 + " done\n\n"), ("empty", "$\n\n\n")):
        trial = tmp_path / name
        result = {"trial_name": name, "task_id": "mug", "instruction": TASK, "is_resolved": True}
        dump(trial / "results.json", result)
        for pane, shown in (("pre-agent", "$\n"), ("post-agent", screen), ("post-test", "PASSED")):
            (trial / "panes").mkdir(exist_ok=True)
            (trial / "panes" / f"{pane}.txt").write_text(shown)
    empty, seen = read(tmp_path)
    assert "panes/post-agent.txt shows nothing" in str(empty)
    assert seen.messages == (Message("user", TASK), Message("assistant", "x" * 7_995 + " done"))


@pytest.mark.parametrize(
    "row",
    [
        {
            "input": {"messages": CHAT[:1], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [CHAT[3]],
            "non_preferred_output": [{"role": "assistant", "content": "No."}],
        },
        {"prompt": "Find the mug.", "chosen": "It is on the desk.", "rejected": "No."},
        {"chosen": [CHAT[0], CHAT[3]], "rejected": [CHAT[0], {"role": "assistant", "content": "No."}]},
    ],
    ids=["openai", "trl", "trl-implicit"],
)
def test_a_preference_is_two_episodes_of_one_task(row: dict[str, Any], tmp_path: Path) -> None:
    dump(tmp_path / "pairs.jsonl", row)
    preferred, other = read(tmp_path / "pairs.jsonl")
    assert preferred.messages == ASKED
    assert (preferred.reward, other.reward) == (1.0, 0.0)
    assert preferred.task_id == other.task_id


def test_a_screen_after_several_calls_is_the_result_of_the_last(tmp_path: Path) -> None:
    calls = [{"tool_call_id": f"c{n}", "function_name": "keys", "arguments": {"k": n}} for n in (1, 2)]
    steps = [
        {"step_id": 1, "source": "user", "message": "Type."},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "tool_calls": calls,
            "observation": {"results": [{"content": "a screen"}]},
        },
        {"step_id": 3, "source": "agent", "message": "Done.", "is_copied_context": True},
    ]
    record = {"schema_version": "ATIF-v1.6", "agent": {"name": "a"}, "steps": steps}
    dump(tmp_path / "trajectory.json", {**record, "extra": {"reward": 0.5, "task_id": "t"}})
    (episode,) = read(tmp_path)
    assert [m.content for m in episode.messages if m.role == "tool"] == ["", "a screen"]
    assert (episode.reward, episode.task_id, episode.mistakes) == (0.5, "t", (1,))


def test_a_sample_of_inspect_that_is_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("header.json", json.dumps(INSPECT_HEADER))
        log.writestr("samples/a_epoch_1.json", "{")
        log.writestr("samples/b_epoch_1.json", json.dumps({"id": "b", "messages": []}))
        log.writestr("samples/c_epoch_1.json", " " * 5000)
    monkeypatch.setattr(json_stream, "MOST_BYTES", 1000)
    reasons = [found.reason for found in read(tmp_path, "inspect")]
    assert "samples/a_epoch_1.json: it is not JSON" in reasons[0]
    assert "no 'reward'" in reasons[1] or "no messages" in reasons[1]
    assert "samples/c_epoch_1.json: it has more than 1,000 bytes" in reasons[2]


def test_a_record_of_another_shape_is_named_by_its_line(tmp_path: Path) -> None:
    for name, layout in FORMATS.items():
        if layout.translate and not layout.values:
            path = tmp_path / f"{name}.json"
            path.write_text('{"simulations": [7, {"a": 1}], "x": {"turn_history": 1}}\n')
            found = read(path, name)
            assert found, name
            assert all(isinstance(one, BadRecord) for one in found), name


def test_what_was_left_out_is_in_the_report(tmp_path: Path) -> None:
    atif(tmp_path / "jobs")
    report = run_import(ImportConfig(source=tmp_path / "jobs", output=tmp_path / "out"))
    assert sorted(report.left_out.values()) == [1, 1, 1]
    assert any(what.startswith("thoughts") for what in report.left_out)
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["left_out"] == report.left_out
    assert blocks_of("docs/bring/data.md")
