"""Prompts with completions as plain records: TRL, OpenAI's preference pairs, verl's rollouts."""

from collections.abc import Iterator
from typing import Any

from qguide.training.recordings.fields import first_at
from qguide.training.recordings.formats.layout import Record

_REWARDS = ("reward", "score", "label")


def prompt_records(record: Record) -> Iterator[Record]:
    """A prompt and its completion, each a text or messages; the label of TRL's KTO is a reward."""
    reward = first_at(record, _REWARDS)
    if "prompt" in record:
        turns = [*_turns(record["prompt"], "user"), *_turns(record["completion"], "assistant")]
    else:
        turns = [*_turns(record["input"], "user"), *_turns(record["output"], "assistant")]
    yield {
        "messages": turns,
        "reward": float(reward) if isinstance(reward, bool) else reward,
        "task_id": first_at(record, ("task_id", "uid", "index")),
    }


def preference_records(record: Record) -> Iterator[Record]:
    """A preference: the preferred answer has the reward 1, the other one 0."""
    if "preferred_output" in record:
        prompt = _turns(record["input"]["messages"], "user")
        answers = (record["preferred_output"], record["non_preferred_output"])
    else:
        prompt = _turns(record["prompt"], "user") if record.get("prompt") else []
        answers = (record["chosen"], record["rejected"])
    for answer, reward in zip(answers, (1.0, 0.0), strict=True):
        turns = _turns(answer, "assistant")
        whole = bool(turns) and turns[0].get("role") in ("system", "developer", "user")
        yield {
            "messages": turns if whole else [*prompt, *turns],
            "reward": reward,
            "task_id": record.get("task_id"),
        }


def _turns(said: Any, role: str) -> list[Record]:
    """Messages; a text is one of them."""
    if isinstance(said, str):
        return [{"role": role, "content": said}]
    return list(said)
