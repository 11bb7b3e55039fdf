"""Results of the Berkeley Function Calling Leaderboard: calls of many models on one question.

A clone has `result/MODEL/…_result.json`, the answers, and `score/MODEL/…_score.json`, which lists
the failures with their questions. So every score below the folder is read once for the questions,
and BFCL's own files of them, if they lie there. An answer that no score lists as a failure was
right; so a score that lists fewer failures than it counts, or counts other answers, is refused.
Scores of 2024 number the answers from 1, where later ones repeat their ids.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from qguide.qnet.errors import RecordError
from qguide.training.data.row_files import found_below, is_file
from qguide.training.recordings.fields import first_at
from qguide.training.recordings.formats.layout import Record
from qguide.training.recordings.json_stream import OnBytes, Value, read_values

SEVERAL_TURNS: Final = "it has several turns, whose states BFCL's results do not tell"
_QUESTION: Final = ("prompt.question", "question")
_FUNCTIONS: Final = ("prompt.function", "function")
_OLDER: Final = "gorilla_openfunctions_v1_test_"
"""Beginning of the names of questions and results in 2024, which scores do not have."""


def read_answers(path: Path, on_bytes: OnBytes) -> Iterator[Value]:
    """The answers of one file, each with its question and if it was right."""
    root, score = _score_of(path)
    questions = _questions(root)
    failed = _failed(score, [_id_of(value.value) for value in read_values(path)])
    category = score.name.removesuffix("_score.json")
    around = {"@model": path.relative_to(root / "result").parts[0], "@category": category}
    for value in read_values(path, on_bytes=on_bytes):
        known = _id_of(value.value)
        told = {"@question": questions.get(known), "@failed": known in failed}
        yield Value(value.line, value.value, value.flaw, {**around, **told})


def bfcl_records(record: Record) -> Iterator[Record]:
    """An answer to a question of one turn; its model is not told to a Q model."""
    asked = record["@question"]
    if asked is None:
        raise RecordError(
            f"question {str(record['id'])[:80]!r} is in no score file, because no model failed it; "
            f"put BFCL's files of questions (BFCL_v….json, in 2024 {_OLDER}….json) beside result/, "
            "or leave it out with --skip-bad"
        )
    question, functions = asked
    turns = _flat(question)
    if turns is None:
        raise RecordError(SEVERAL_TURNS)
    yield {
        "messages": [
            {"role": "system", "content": f"Functions: {json.dumps(functions)}"},
            *turns,
            _answer(record["result"]),
        ],
        "reward": 0.0 if record["@failed"] else 1.0,
        "task_id": record["id"],
        "source": record["@model"],
    }


def _answer(result: Any) -> Record:
    """Calls, if the model called; else its text, as it wrote it."""
    if isinstance(result, str):
        return {"role": "assistant", "content": result.strip() or "(no answer)"}
    calls = [{"name": name, "arguments": given} for call in result for name, given in call.items()]
    return {"role": "assistant", "content": "" if calls else "(no call)", "tool_calls": calls}


def _flat(question: Any) -> list[Any] | None:
    """The messages of a question of one turn; None if it has more."""
    if isinstance(question, str):
        return [{"role": "user", "content": question}]
    turns = question if not isinstance(question[0], list) else question[0]
    return turns if len(question) == 1 or turns is question else None


def _score_of(path: Path) -> tuple[Path, Path]:
    """The clone's folder of a result, and the score of the same model and category."""
    for root in path.parents:
        if root.name == "result":
            below = path.relative_to(root).parent
            name = path.name.removeprefix(_OLDER).replace("_result.json", "_score.json")
            score = root.parent / "score" / below / name
            if is_file(score):
                return root.parent, score
            raise RecordError(f"{path} has no score at score/{below}/{name}; run BFCL's evaluation")
    raise RecordError(f"{path} lies in no folder 'result'; name the folder above it")


def _id_of(answer: object) -> str:
    return str(answer.get("id")) if isinstance(answer, Mapping) else ""


def _failed(score: Path, answers: Sequence[str]) -> frozenset[str]:
    rows = []
    for value in read_values(score):
        if value.flaw or not isinstance(value.value, Mapping):
            raise RecordError(f"{score}, line {value.line}: {value.flaw or 'it is no object'}")
        rows.append(value.value)
    counts = rows[0] if rows else {}
    ids = [_answer_id(row["id"], answers) for row in rows if "id" in row]
    right, judged = counts.get("correct_count", 0), counts.get("total_count", 0)
    if judged != len(answers) or right != judged - len(ids) or not {*ids} <= {*answers}:
        raise RecordError(
            f"{score} counts {right} of {judged} answers as right and lists {len(ids)} failures, "
            f"but there are {len(answers):,} answers; run BFCL's evaluation again"
        )
    return frozenset(ids)


def _answer_id(given: Any, answers: Sequence[str]) -> str:
    """The id of an answer, which a score of 2024 numbers from 1."""
    numbered = isinstance(given, int) and 0 < given <= len(answers)
    return answers[given - 1] if numbered else str(given)


@lru_cache(maxsize=1)  # every file of a clone needs the questions of all its scores
def _questions(root: Path) -> dict[str, tuple[Any, Any]]:
    """Questions of a clone by id, each with the functions that may be called."""
    found: dict[str, tuple[Any, Any]] = {}
    named = [path for name in ("BFCL_v", _OLDER) for path in found_below(root, f"**/{name}*.json")]
    told = [path for path in named if not path.name.endswith("_result.json")]
    scores = found_below(root / "score", "**/*_score.json")
    for file in dict.fromkeys([*told, *scores]):
        for row in _rows(file):
            known = first_at(row, ("prompt.id", "id"))
            if known is not None and (question := first_at(row, _QUESTION)) is not None:
                found.setdefault(str(known), (question, first_at(row, _FUNCTIONS)))
    return found


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    for value in read_values(path):
        if isinstance(value.value, Mapping):
            yield value.value
