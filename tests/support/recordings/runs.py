"""Results of benchmarks, and rows of trainers: AppWorld, InterCode, FireAct, MINT, Terminal-Bench, BFCL, TRL, verl."""

import json
from pathlib import Path
from typing import Final

from qguide.qnet.types import Message
from qguide.training.recordings.fields import Fields
from tests.support.recordings.sample import ARGUMENTS, ASKED, CALLED, CHAT, SAID, TASK, Sample, dump


def intercode(folder: Path) -> None:
    """Results of InterCode: an object of episodes."""
    history = {
        "actions": ["look desk", "take mug"],
        "observations": ["A mug.", "Taken."],
        "rewards": [0.2, 1.0],
        "valid_action": [True, True],
    }
    summary = {"max_reward": 1.0, "max_reward_idx": 1, "turns_taken": 2, "turns_max": 2}
    episode = {
        "environment": "ic_bash",
        "dataset": "d.json",
        "task_id": 3,
        "query": TASK,
        "turn_history": history,
        "summary": summary,
    }
    (folder / "ic_bash.json").write_text(json.dumps({"0": episode}, indent=2))


SEARCHED: Final = (
    Message("user", "Who?"),
    Message("assistant", "Thought: I look.\nAction: search[who]"),
    Message("user", "Observation: Nobody."),
    Message("assistant", "Thought: Nobody.\nAction: finish[nobody]"),
)


def fireact(folder: Path) -> None:
    """A trajectory of a fine-tuned Llama, which is one text; the last observation tells the reward."""
    said = "\n".join(message.content for message in SEARCHED[1:])
    asked = "An instruction.\n\n### Instruction:\nWho?\n\n### Response:\n"
    text = f"{asked}{said}\nObservation: Episode finished, reward = True\n"
    run = {"reward": True, "em": True, "f1": 1.0, "gt": "nobody", "pred": "nobody", "prompt": "", "traj": text}
    (folder / "hotpotqa_dev.json").write_text(json.dumps({"6238": run}, indent=4))


def appworld(folder: Path) -> None:
    """The logs of a task of AppWorld: each call to the model repeats those before it."""
    logs = folder / "react" / "tasks" / "b0a8eae_2" / "logs"
    dump(logs / "lm_calls.jsonl", *(appworld_call(count) for count in (1, 3)))
    dump(logs / "api_calls.jsonl", {"url": "/spotify/login", "method": "post", "data": {}})


def appworld_call(asked: int) -> dict[str, object]:
    """A call that asks with so many messages."""
    history = [{"role": m.role, "content": m.content} for m in SAID[: asked + 1]]
    choice = {"index": 0, "finish_reason": "stop", "message": {**history[asked], "tool_calls": None}}
    return {
        "id": "6f1d",
        "input": {"model": "gpt", "messages": history[:asked], "temperature": 0},
        "output": {"choices": [choice], "usage": {"total_tokens": 9}},
    }


def mint(folder: Path) -> None:
    """An episode of MINT as the recordings beside the project have it."""
    history = [{"role": m.role, "content": m.content} for m in SAID]
    row = {"set": "reasoning/x", "task_id": 3, "model": "gpt", "success": 1, "history": history}
    dump(folder / "episodes.jsonl", row)


def mint_run(folder: Path) -> None:
    """A line of MINT's own results."""
    history = [{"role": m.role, "content": m.content} for m in SAID]
    state = {"history": history, "success": True, "finished": True, "terminate_reason": "done"}
    dump(folder / "results.jsonl", {"state": state, "task": {"task_id": "3", "prompt": TASK}})


def trl(folder: Path) -> None:
    """TRL's unpaired preferences, which KTO trains on."""
    prompt, completion = [CHAT[0]], [CHAT[3]]
    dump(folder / "kto.jsonl", {"prompt": prompt, "completion": completion, "label": True})


def verl(folder: Path) -> None:
    """A line of what verl writes into its `rollout_data_dir`."""
    row = {"input": TASK, "output": "It is on the desk.", "score": 1.0, "step": 4, "gts": "desk"}
    dump(folder / "4.jsonl", row)


def verifiers(folder: Path) -> None:
    """An episode of verifiers, whose agent had a subagent; a judge's trace has the reward, too."""
    call = {"id": "c1", "type": "function", "name": "look", "arguments": json.dumps(ARGUMENTS)}
    looked = {"role": "assistant", "content": "I look.", "reasoning_content": "A desk.", "tool_calls": [call]}
    said = [CHAT[0], looked, CHAT[2], {"role": "assistant", "content": "No subagent."}, CHAT[3]]
    sampled = {"sampled": True, "logprobs": [-0.5, -0.25]}
    nodes = [
        {"message": message, **({"parent": parent} if parent is not None else {}), **(sampled if parent else {})}
        for message, parent in zip(said, (None, 0, 1, 2, 2), strict=True)
    ]
    trace = {
        "version": 1,
        "agent": {"name": "agent", "trainable": True},
        "nodes": nodes,
        "calls": [{"model": "gpt", "node": 1}],
        "rewards": {"found": {"score": 0.5, "weight": 2.0}, "quick": None},
        "stop_condition": "max_turns",
    }
    judge = {**trace, "agent": {"name": "judge", "trainable": False}}
    task = {"type": "Mug", "data": {"prompt": TASK}, "key": "mug", "hash": "6f1d"}
    dump(
        folder / "traces.jsonl",
        {"id": "e1", "env": {"id": "house"}, "task": task, "ok": True, "traces": [judge, trace]},
    )


def verifiers_results(folder: Path) -> None:
    """A line of verifiers' earlier results, whose calls are JSON texts."""
    called = {**CHAT[1], "tool_calls": [json.dumps(call) for call in CHAT[1]["tool_calls"]]}
    row = {"prompt": CHAT[:1], "completion": [called, *CHAT[2:]], "reward": 1.0, "example_id": 3, "task": "house"}
    dump(folder / "results.jsonl", row)


def terminal_bench(folder: Path) -> None:
    """A run of Terminal-Bench with Terminus' logs; the run's own result repeats its trials."""
    trial = folder / "run" / "mug" / "mug.1-of-1.run"
    result = {
        "trial_name": "mug.1-of-1.run",
        "task_id": "mug",
        "instruction": TASK,
        "is_resolved": False,
        "failure_mode": "agent_timeout",
        "recording_path": None,
    }
    (trial / "agent-logs").mkdir(parents=True)
    (trial / "results.json").write_text(json.dumps(result, indent=4))
    (folder / "run" / "results.json").write_text(json.dumps({"results": [result]}, indent=4))
    for number, (prompt, answer) in enumerate(((TASK, "look desk"), ("A mug.", "take mug"))):
        episode = trial / "agent-logs" / f"episode-{number}"
        episode.mkdir()
        (episode / "prompt.txt").write_text(prompt)
        (episode / "response.txt").write_text(answer)


BFCL_FUNCTIONS: Final = [{"name": "look", "parameters": {"type": "dict"}}]


def bfcl(folder: Path) -> None:
    """A clone of BFCL's results: one model was right, the other's score has the question."""
    prompt = {"id": "simple_0", "question": [[CHAT[0]]], "function": BFCL_FUNCTIONS}
    for model in ("right", "wrong"):
        result = [{"look": json.dumps(ARGUMENTS)}]
        name = f"{model}/non_live/BFCL_v4_simple_result.json"
        dump(folder / "result" / name, {"id": "simple_0", "result": result})
    failure = {"id": "simple_0", "valid": False, "prompt": prompt, "error": ["wrong"]}
    scores = folder / "score"
    dump(scores / "right/non_live/BFCL_v4_simple_score.json", {"accuracy": 1.0, "correct_count": 1, "total_count": 1})
    dump(
        scores / "wrong/non_live/BFCL_v4_simple_score.json",
        {"accuracy": 0.0, "correct_count": 0, "total_count": 1},
        failure,
    )


SAMPLES: Final = (
    Sample("appworld", appworld, SAID[:4], "b0a8eae_2", agent="gpt", fields=Fields(outcomes={"b0a8eae_2": 1.0})),
    Sample("intercode", intercode, SAID, "ic_bash/d.json/3", terminated=True),
    Sample("fireact", fireact, SEARCHED, "hotpotqa/1700341962"),
    Sample("mint", mint, SAID, "reasoning/x/3", agent="gpt"),
    Sample("mint-run", mint_run, SAID, "3"),
    Sample("trl", trl, ASKED, ""),
    Sample("trl", verifiers_results, CALLED, "3"),
    Sample("verifiers", verifiers, CALLED, "house/mug", agent="gpt", terminated=False, left_out=(1, 1)),
    Sample("verl", verl, ASKED, ""),
    Sample("terminal-bench", terminal_bench, SAID[:4], "mug", reward=0.0, terminated=False),
)
