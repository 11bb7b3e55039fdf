"""The examples of PPO: the server's Q or an outcome as the reward, TRL, verl's configuration."""

import importlib.util
import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import httpx
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.models.checkpoint import load_policy
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.types import Message, Sampling
from qguide.training.environments.alfworld.bundle import AlfWorldConfig, build_suite
from qguide.training.environments.registry import build_selected_suite, environment_config
from qguide.training.rollouts.episode import Episode
from qguide.training.trajectory import Step
from tests.support.alone import run_forked, run_script
from tests.support.serving import ROOT, serving

EXAMPLE = ROOT / "clients/python/examples/step_ppo"
START_S = 180.0
ACTIONS = ("Action: look", "Action: inventory")
PARITY = '''
class Parity:
    """One action, worth 1 if its length is even: draws of one policy differ in it."""

    def reset(self, *, seed=None, options=None):
        return "Your task is to: write.", {}

    def step(self, action):
        return "", float(len(action) % 2 == 0), True, False, {}
'''


def module(name: str) -> ModuleType:
    """A file of the example as a module."""
    spec = importlib.util.spec_from_file_location(f"step_ppo_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


LONG = PARITY.replace("Parity", "Long").replace('"Your task is to: write."', '"You are here. " * 5000')


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "stderr.log"
    with serving(env={}, log=log, start_s=START_S) as address:
        yield address


@pytest.fixture(scope="module")
def states() -> list[list[dict[str, str]]]:
    suite = build_suite(AlfWorldConfig(first_seed=900_000, count=3))
    return [[{"role": "user", "content": suite.make(task).reset()}] for task in suite.tasks]


def test_the_reward_is_the_q_of_the_server(
    url: str, states: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QGUIDE_URL", url)
    reward = module("reward")
    prompts = [state for state in states for _ in ACTIONS]
    completions = [[{"role": "assistant", "content": action}] for _ in states for action in ACTIONS]
    rewards = reward.q_rewards(prompts=prompts, completions=completions, step=0)
    expected: list[float] = []
    for state in states:
        body = {"messages": state, "candidates": ACTIONS}
        answer = httpx.post(f"{url}/v1/score", json=body, timeout=60).raise_for_status().json()
        expected += [scored["q_value"] for scored in answer["scores"]]
    assert rewards == pytest.approx(expected, abs=1e-4)
    assert len(set(rewards)) > 1
    alone = reward.compute_score("qguide", ACTIONS[0], "", {"state": states[0]})
    assert rewards[0] == pytest.approx(alone, abs=1e-4)


def test_a_refused_conversation_is_no_reward(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGUIDE_URL", url)
    with pytest.raises(httpx.HTTPStatusError):
        module("reward").compute_score("qguide", "look", "", {"state": []})


def test_a_refused_sample_has_no_reward_and_the_others_have_theirs(
    url: str, states: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QGUIDE_URL", url)
    q_rewards = module("reward").q_rewards
    actions = [ACTIONS[0], "look " * 100_000]
    completions = [[{"role": "assistant", "content": action}] for action in actions]
    known, refused = q_rewards(prompts=[states[0]] * 2, completions=completions)
    assert known is not None
    assert refused is None
    monkeypatch.setenv("QGUIDE_URL", f"{url}/nowhere")
    with pytest.raises(httpx.HTTPStatusError):
        q_rewards(prompts=[states[0]], completions=completions[:1])


def test_trl_trains_a_policy_that_our_jobs_read(url: str, states: list[list[dict[str, str]]], tmp_path: Path) -> None:
    file = tmp_path / "states.jsonl"
    file.write_text("".join(json.dumps({"prompt": state}) + "\n" for state in states))
    printed = train(
        "train_trl.py",
        {"--states": file, "--output": tmp_path, "--draws": 4, "--states-per-step": 2, "--max-tokens": 32},
        env={"QGUIDE_URL": url},
    )
    assert "rewards/q_rewards/mean" in printed
    assert_trained(tmp_path / "policy", states[0][0]["content"])


@pytest.mark.slow
def test_trl_trains_a_policy_by_the_outcomes_of_whole_episodes(tmp_path: Path) -> None:
    (tmp_path / "parity.py").write_text(PARITY)
    environment = {"name": "parity:Parity", "count": 2}
    printed = train(
        "train_trl_episodes.py",
        {
            "--environment": json.dumps(environment),
            "--output": tmp_path,
            "--draws": 8,
            "--tasks-per-step": 2,
            "--max-tokens": 16,
        },
        cwd=tmp_path,
    )
    assert "rewards/outcomes/mean" in printed
    assert_trained(tmp_path / "policy", "Your task is to: write.")


def test_only_the_tokens_of_actions_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)  # it imports its neighbour
    renderer = load_policy(embedded_path("policy")).renderer
    steps = tuple(
        Step(reply, observation, reward=0.0, terminated=False)
        for reply, observation in (("Action: look", "A room."), ("Action: inventory", "Nothing."))
    )
    episode = Episode("You are here.", steps, (), 0)
    before, tokens, mask = module("train_trl_episodes").tokens_of(episode, renderer)
    decode = renderer.tokenizer.decode
    assert before + tokens == renderer.encode_episode(episode.messages[:-1]).token_ids
    assert "You are here." in decode(before)
    runs = [
        decode([token for token, _ in run], skip_special_tokens=True)
        for acts, run in groupby(zip(tokens, mask, strict=True), key=itemgetter(1))
        if acts
    ]
    assert runs == ["Action: look", "Action: inventory"]


def test_a_task_without_room_for_an_action_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long.py").write_text(LONG)
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_policy(embedded_path("policy"))
    suite = build_selected_suite(environment_config({"name": "long:Long", "count": 1}))
    sampling = Sampling(max_tokens=16)
    play = module("train_trl_episodes").Rollouts(suite, loaded.renderer, sampling=sampling, max_steps=1, seed=0)
    trainer = SimpleNamespace(model=loaded.model, accelerator=SimpleNamespace(unwrap_model=lambda model: model))
    [task] = suite.tasks
    with pytest.raises(HistoryTooLongError, match=f"task {task.id} .*room"):
        play([[{"role": "user", "content": task.id}]], trainer)


def train(
    script: str, options: dict[str, object], *, env: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Train the embedded policy for two steps; what was printed."""
    options = {"--policy": embedded_path("policy"), "--steps": 2, "--learning-rate": 1e-3} | options
    arguments = [str(part) for pair in options.items() for part in pair]
    command = [str(EXAMPLE / script), *arguments, "--cpu"]
    code, output = run_forked(run_script, command, cwd=cwd or ROOT, variables=env)
    assert code == 0, output
    return output


def assert_trained(path: Path, observation: str) -> None:
    """Require a policy that our jobs read, with other logits than the embedded one."""
    before, after = load_policy(embedded_path("policy")), load_policy(path)
    history = (Message("user", observation),)
    ids = before.renderer.encode_history(history)
    assert after.renderer.encode_history(history) == ids
    with torch.inference_mode():
        logits = [policy.model(torch.tensor([ids])).logits for policy in (before, after)]
    assert logits[0].shape == logits[1].shape
    assert not torch.equal(logits[0], logits[1])


def test_states_are_the_distinct_prompts_of_exported_pairs(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    prompts = [[{"role": "user", "content": text}] for text in ("a", "b", "a")]
    lines = [{"prompt": prompt, "chosen": [], "rejected": []} for prompt in prompts]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    states = module("states")
    assert states.write_states(pairs, tmp_path / "states.jsonl") == 2
    written = (tmp_path / "states.jsonl").read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in written] == prompts[:2]
    assert states.write_states(pairs, tmp_path / "states.parquet") == 2
    rows = pq.read_table(tmp_path / "states.parquet").to_pylist()
    assert [row["extra_info"]["state"] for row in rows] == prompts[:2]
    assert {"data_source", "prompt", "extra_info", "reward_model"} == rows[0].keys()


def test_verls_configuration_names_the_reward_function() -> None:
    config = yaml.safe_load((EXAMPLE / "verl.yaml").read_text())
    named = config["reward"]["custom_reward_function"]
    assert callable(getattr(module(Path(named["path"]).stem), named["name"]))
    assert config["algorithm"]["adv_estimator"] == "gae"
