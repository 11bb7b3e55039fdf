"""A real vLLM that runs the embedded QNet's trunk: the same Q, and a refusal without its cache.

It takes part in `python -m benchmarks score` too, as an engine and a server, and plays for a job.

QGUIDE_VLLM_PYTHON names a Python that has vLLM; `make test-vllm` installs one for the CPU.
"""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import httpx
import psutil
import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer
from typer.testing import CliRunner

from benchmarks.measurement.records import Run
from qguide.cli import app
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import load_qnet, save_checkpoint
from qguide.qnet.models.classifier import load_remote_classifier
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.options import HeadKind
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.remote_trunk import RemoteTrunk, load_remote_trunk
from qguide.qnet.scoring.remote_classifier import RemoteClassifyScorer
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.scoring.vllm import VllmScorer
from qguide.qnet.scoring.vllm_client import ClassifyServer, VllmServer
from qguide.qnet.types import History, Message, ScoreRequest
from qguide.training.data.runs import read_rows
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.evaluation.records import EpisodeRow
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from tests.support.serving import processes_with, serving

PYTHON = os.environ.get("QGUIDE_VLLM_PYTHON", "")
START_S = 1800
ANSWER_S = 600
END_S = 60
BLOCK = 32
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.02}
"""To the naive scorer in float32. In that type only the order of the sums differs."""

_log = logging.getLogger(__name__)

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="QGUIDE_VLLM_PYTHON names no Python with vLLM; make test-vllm installs one"
)

HISTORY: History = (
    Message(
        "user",
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a "
        "countertop 1, a fridge 1, a garbagecan 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a hot apple in garbagecan.",
    ),
    Message("assistant", "Thought: First is countertop 1.\nAction: go to countertop 1"),
    Message("user", "You arrive at loc 3. On the countertop 1, you see a bowl 1, and a knife 1."),
)
"""Longer than one block, so that there is something to find."""

PLACES = ("countertop 1", "fridge 1", "sinkbasin 1", "microwave 1", "cabinet 1")


@dataclass(frozen=True, slots=True)
class Trunk:
    """The embedded QNet's trunk as `qguide export-trunk` wrote it."""

    folder: Path
    name: str
    loaded: RemoteTrunk

    def connect(self, url: str) -> VllmScorer:
        hidden_size = self.loaded.trunk.hidden_size
        server = VllmServer(url, model=self.name, hidden_size=hidden_size)
        return VllmScorer(self.loaded, server)


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Trunk:
    folder = tmp_path_factory.mktemp("vllm") / "trunk"
    written = CliRunner().invoke(app, ["export-trunk", "embedded", str(folder)])
    assert written.exit_code == 0, written.output
    return Trunk(folder, written.output.strip(), load_remote_trunk(embedded_path("qnet")))


@contextmanager
def vllm(trunk: Trunk, *options: str) -> Iterator[str]:
    """The URL of a vLLM that serves the trunk as the README says."""
    as_trunk = ["--convert", "embed"]
    as_trunk += ["--pooler-config", '{"pooling_type": "LAST", "use_activation": false}']
    with pooling_vllm(trunk.folder, trunk.name, *as_trunk, *options) as url:
        yield url


@contextmanager
def pooling_vllm(folder: Path, name: str, *options: str) -> Iterator[str]:
    """The URL of a vLLM that serves a folder with its pooling runner."""
    with served_by_vllm(folder, name, "--runner", "pooling", *options) as url:
        yield url


@contextmanager
def served_by_vllm(folder: Path, name: str, *options: str) -> Iterator[str]:
    """The URL of a vLLM that serves a folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--served-model-name", name]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--block-size", str(BLOCK)]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    log = folder.with_name(f"{port}.log")
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--enforce-eager", *options], env=os.environ | offline, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a vLLM and its children; while it starts, it may ignore SIGTERM."""
    if process.poll() is not None:
        return
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    _, left = psutil.wait_procs(family, timeout=END_S)
    for one in left:
        one.kill()


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"vLLM ended: {log.read_text()[-3000:]}")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(f"vLLM was not ready after {START_S} s: {log.read_text()[-3000:]}")


def replies(step: int) -> tuple[Message, ...]:
    thought = f"Thought: Not here. garbagecan 1 needs one hot apple. {step} seen."
    return tuple(Message("assistant", f"{thought}\nAction: go to {p}") for p in PLACES)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_q_is_the_naive_scorers_and_the_history_comes_from_the_cache(trunk: Trunk, dtype: str) -> None:
    naive = NaiveScorer(load_qnet(embedded_path("qnet")))
    with vllm(trunk, "--enable-prefix-caching", "--dtype", dtype) as url, closing(trunk.connect(url)) as scorer:
        history = HISTORY
        for step in range(6):
            request = ScoreRequest(history, replies(step))
            [found], [expected] = scorer.score([request]), naive.score([request])
            pairs = zip(found.q_values, expected.q_values, strict=True)
            difference = max(abs(one - other) for one, other in pairs)
            seen = f"{dtype}, step {step}: max |dQ| {difference:.1e}, {found.cached_tokens} of "
            seen += f"{expected.computed_tokens} tokens cached"
            _log.info(seen)
            assert difference <= TOLERANCES[dtype], seen
            assert found.computed_tokens + found.cached_tokens == expected.computed_tokens
            # All but one of the candidates find the history's whole blocks.
            whole = len(trunk.loaded.renderer.encode_history(history)) // BLOCK * BLOCK
            assert found.cached_tokens >= (len(PLACES) - 1) * whole > 0, seen
            history = (*history, replies(step)[0], Message("user", f"You arrive at loc {step}."))
        batch = [ScoreRequest(HISTORY, replies(step)) for step in (7, 8)]
        for one, other in zip(scorer.score(batch), naive.score(batch), strict=True):
            assert one.q_values == pytest.approx(other.q_values, abs=TOLERANCES[dtype])


def test_a_vllm_without_prefix_caching_is_refused(trunk: Trunk) -> None:
    with (
        vllm(trunk, "--no-enable-prefix-caching", "--dtype", "float32") as url,
        pytest.raises(ConfigError, match=r"1,024 tokens.*--enable-prefix-caching"),
    ):
        trunk.connect(url)


def exported(folder: Path, head: HeadKind) -> tuple[NaiveScorer, Path]:
    """A random head on the embedded policy's trunk: its scorer, and what export-model wrote."""
    torch.manual_seed(0)
    qnet = QNet.from_trunk(embedded_path("policy"), head=head)
    tokenizer = AutoTokenizer.from_pretrained(embedded_path("policy"))
    manifest = Manifest(kind="qnet", name="random", read_at="last_token")
    save_checkpoint(folder / "q", model=qnet, tokenizer=tokenizer, manifest=manifest)
    command = ["export-model", str(folder / "q"), "--output", str(folder / "exported")]
    written = CliRunner().invoke(app, command)
    assert written.exit_code == 0, written.output
    return NaiveScorer(load_qnet(folder / "q")), folder / "exported"


@pytest.mark.parametrize("head", get_args(HeadKind))
def test_a_stock_vllm_answers_an_exported_model_with_q(head: HeadKind, tmp_path: Path) -> None:
    naive, folder = exported(tmp_path, head)
    [expected] = naive.score([ScoreRequest(HISTORY, replies(0))])
    rendered = naive.prepare(ScoreRequest(HISTORY, replies(0)))
    chat = [{"role": m.role, "content": m.content} for m in (*HISTORY, replies(0)[0])]
    with pooling_vllm(folder, "q", "--dtype", "float32") as url:

        def answered(path: str, **body: object) -> list[list[float]]:
            answer = httpx.post(f"{url}{path}", json={"model": "q"} | body, timeout=ANSWER_S)
            assert answer.status_code == 200, answer.text
            kinds = ("probs", "data", "embedding")
            found = [next(one[k] for k in kinds if k in one) for one in answer.json()["data"]]
            return found

        paths = ["/pooling", "/v1/embeddings"] if head == "mlp" else ["/pooling", "/classify"]
        for path in paths:
            q_values = answered(path, input=list(rendered.sequences))
            difference = max(abs(found - q) for [found], q in zip(q_values, expected.q_values, strict=True))
            seen = f"{head} by {path}: max |dQ| {difference:.1e} of Q {expected.q_values}"
            _log.info(seen)
            assert difference <= TOLERANCES["float32"], seen
            # The chat template ends a reply where Q is read, so messages do as well as tokens.
            [[of_messages]] = answered(path, messages=chat)
            assert of_messages == pytest.approx(expected.q_values[0], abs=TOLERANCES["float32"])


def test_jobs_play_alfworld_with_a_vllm_as_with_the_same_policy_here(tmp_path: Path) -> None:
    model = tmp_path / "policy"
    shutil.copytree(embedded_path("policy"), model)
    games: dict[str, Any] = {
        "environment": AlfWorldConfig(first_seed=700_000, count=3),
        "methods": ("greedy", "q-guided"),
        "candidates": 4,
        "seeds": (0,),
        "max_steps": 20,
    }
    quiet = Console(quiet=True)
    options = ["--dtype", "float32", "--enable-prefix-caching", "--max-model-len", "2048"]
    with served_by_vllm(model, "small", *options) as url:
        hosted = EvaluateConfig(output=tmp_path / "hosted", policy=f"{url}/v1#small", **games)
        played = run_evaluate(hosted, console=quiet)
    here = EvaluateConfig(output=tmp_path / "here", policy="embedded", **games)
    run_evaluate(here, console=quiet)
    assert played.complete
    assert played.failures == ()
    greedy, expected = (
        {
            row.task_id: (row.success, row.actions)
            for row in read_rows(config.output / "episodes.jsonl", EpisodeRow)
            if row.method == "greedy"
        }
        for config in (hosted, here)
    )
    assert greedy == expected  # the same tokens in, the same likeliest tokens out
    assert any(success for success, _ in greedy.values())
    assert played.usage is not None
    assert played.usage.completion_tokens > 0
    _log.info("usage %s, %s", played.usage, [(r.method, r.success_rate) for r in played.summary])


def test_a_classifier_on_a_real_vllm_is_a_q_model(tmp_path: Path) -> None:
    naive, folder = exported(tmp_path, "linear")
    loaded = load_remote_classifier(folder, name="q")
    with (
        pooling_vllm(folder, "q", "--dtype", "float32") as url,
        closing(RemoteClassifyScorer(loaded, ClassifyServer(url, model="q"))) as scorer,
    ):
        batch = [ScoreRequest(HISTORY, replies(step)) for step in (0, 1)]
        for found, expected in zip(scorer.score(batch), naive.score(batch), strict=True):
            assert found.q_values == pytest.approx(expected.q_values, abs=TOLERANCES["float32"])


def test_vllm_takes_part_in_the_benchmark_and_gives_the_same_q(tmp_path: Path) -> None:
    output = tmp_path / "score.json"
    command = ["score", "--params", "28m", "--points", "300x2x16", "--dtype", "float32"]
    command += ["--peers", "vllm,vllm-block32,http,vllm-http", "--sessions", "2"]
    command += ["--repetitions", "1", "--vllm-python", PYTHON, "--output", str(output)]
    benchmark = [sys.executable, "-m", "benchmarks", *command]
    done = subprocess.run(benchmark, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _log.info(done.stdout)
    run = Run.model_validate_json(output.read_text())
    [point] = run.points
    names = [row.name for row in point.contestants]
    assert names == ["ours", "naive", "vllm", "vllm-block32", "http", "vllm-http"]
    assert all(row.agrees for row in point.contestants)
    of_sessions = ["ours", "vllm", "vllm-block32", "http", "vllm-http"]
    assert [row.name for row in run.sessions] == of_sessions


def test_serve_starts_vllm_and_answers_with_the_best_of_its_candidates(tmp_path: Path) -> None:
    model = tmp_path / "policy"
    shutil.copytree(embedded_path("policy"), model)
    arguments = ["--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"]
    env = {
        "QGUIDE_VLLM_PYTHON": PYTHON,
        "QGUIDE_VLLM_ARGUMENTS": json.dumps(arguments),
        "QGUIDE_TIMEOUT_S": str(ANSWER_S),
        "TORCHDYNAMO_DISABLE": "1",  # the first request would wait for a C++ compiler
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    log = tmp_path / "stderr.log"
    messages = [{"role": m.role, "content": m.content} for m in HISTORY]
    body = {"messages": messages, "max_tokens": 40, "seed": 1, "logprobs": True}
    options = {"num_candidates": 4, "temperature": 1.5, "return_candidates": True}
    with serving("--vllm", str(model), env=env, log=log, start_s=START_S, forked=False) as url:
        chat = f"{url}/v1/chat/completions"
        answer = httpx.post(chat, json=body | {"qguide": options}, timeout=ANSWER_S).json()
        guidance = answer["qguide"]
        assert guidance["distinct_candidates"] > 1, guidance
        q_values = guidance["q_values"]
        best = guidance["candidates"][q_values.index(max(q_values))]["message"]
        [choice] = answer["choices"]
        assert choice["message"]["content"] == best["content"]
        assert len(choice["logprobs"]["content"]) > 1
        usage = answer["usage"]
        prompt = len(load_remote_trunk(embedded_path("qnet")).renderer.encode_history(HISTORY))
        assert usage["prompt_tokens"] == prompt  # once for all candidates
        assert 4 < usage["completion_tokens"] <= 160
        _log.info("candidates %s, usage %s", q_values, usage)
        streamed = httpx.post(chat, json=body | {"stream": True}, timeout=ANSWER_S).text
        assert streamed.endswith("data: [DONE]\n\n")
    assert processes_with(str(model)) == []
