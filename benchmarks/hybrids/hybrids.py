"""Hybrid trunks beside an attention trunk of their size: a warm step, and a tree in training.

A round is one episode, whose history grows by what was chosen and observed, with M candidates at
every step, which all trunks score in turn. Then each reads one exploration tree, forward and
backward: packed, or branch by branch.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from statistics import median
from typing import Annotated, Any, Final

import torch
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, OutputFile, Words
from benchmarks.measurement.records import BenchRun
from benchmarks.measurement.shapes import SHAPES, Shape, build_qnet, spell
from benchmarks.measurement.tables import print_table
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.scoring.full_sequences import FullSequenceScorer
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.qnet.types import Message, Scorer, ScoreRequest
from qguide.training.optimization.packed_trees import PackedTree, QPlace
from qguide.training.q_training.options import QNetLossOptions
from qguide.training.q_training.qnet_loss import loss_of_tree

GOAL: Final = 1.3
"""Goal for a hybrid's warm step, in that of the attention trunk."""
ATTENTION: Final = "llama"
_CACHE_BYTES: Final = 2**30
_PASS_TOKENS: Final = 2048
_HEAD: Final = 64
_RECURRENT: Final[dict[str, str]] = {"lfm2": "conv", "granitemoehybrid": "mamba"}
"""Names of recurrent layers by architecture; `linear_attention` in the others."""

_SIZES: Final[dict[str, Callable[[Shape], dict[str, Any]]]] = {
    "lfm2": lambda _: {"block_auto_adjust_ff_dim": False},
    "qwen3_5_text": lambda shape: {
        "linear_num_key_heads": shape.kv_heads,
        "linear_num_value_heads": shape.heads,
        "linear_key_head_dim": _HEAD,
        "linear_value_head_dim": _HEAD,
    },
    "granitemoehybrid": lambda shape: {
        "shared_intermediate_size": shape.ffn,
        "num_local_experts": 0,
        "mamba_n_heads": 2 * shape.heads,
        "mamba_d_head": _HEAD,
        "mamba_n_groups": 1,
        "mamba_d_state": 64,
        "mamba_expand": 2,
    },
}
"""Sizes of the recurrent layers that make a trunk as large as the attention trunk."""

Advance = Callable[[str], None]


class HybridsBench(BenchOptions):
    """Options of `python -m benchmarks hybrids`.

    Attributes:
        output: JSON file.
        trunks: architectures beside the attention trunk.
        layers: number of layers, of which each fourth attends.
        hidden: width of the trunks.
        history_tokens: length of the first history; an eighth of it is observed at every step.
        candidates: M, and the siblings at each step of the tree.
        candidate_tokens: length of every candidate.
        steps: of an episode, and of the tree.
        rounds: episodes and trees of each trunk.
        seed: seed of weights and tokens.
        command: the command line.
    """

    output: OutputFile
    trunks: Annotated[tuple[str, ...], Words] = ("lfm2", "granitemoehybrid", "qwen3_5_text")
    layers: int = Field(default=8, ge=4, multiple_of=4)
    hidden: int = Field(default=512, ge=64, multiple_of=64)
    history_tokens: int = Field(default=240, ge=16)
    candidates: int = Field(default=5, ge=2)
    candidate_tokens: int = Field(default=12, ge=1)
    steps: int = Field(default=6, ge=2)
    rounds: int = Field(default=3, ge=1)
    seed: int = 0
    command: str = ""


class TrunkRow(BaseModel):
    """CPU seconds of one trunk, round by round.

    Attributes:
        parameters: of the trunk.
        warm_s: medians of the warm steps of an episode.
        tree_s: loss and gradients of one tree.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    parameters: int
    warm_s: tuple[float, ...] = ()
    tree_s: tuple[float, ...] = ()


class HybridsRun(BenchRun):
    """A benchmark of hybrids; the attention trunk's row comes first.

    Attributes:
        tree_tokens: distinct tokens of the tree.
    """

    complete: bool = True
    tree_tokens: int
    rows: tuple[TrunkRow, ...]

    def warm_ratio(self, row: TrunkRow) -> float:
        """A trunk's warm step, in the attention trunk's."""
        return median(row.warm_s) / median(self.rows[0].warm_s)

    def tree_ratio(self, row: TrunkRow) -> float:
        """A trunk's training on the tree, in the attention trunk's."""
        return median(row.tree_s) / median(self.rows[0].tree_s)


def hybrids_bench(config: HybridsBench, *, advance: Advance = lambda _: None) -> HybridsRun:
    """Measure every trunk in turns, and write the results.

    Args:
        advance: called with a description before each episode, and before each trunk's tree.

    Raises:
        ConfigError: a trunk cannot read trees.
    """
    tree = _tree(config)
    names = (ATTENTION, *config.trunks)
    nets = {name: build_trunk(name, config) for name in names}
    scorers = {name: _scorer(name, net) for name, net in nets.items()}
    warm_s: dict[str, list[float]] = {name: [] for name in names}
    tree_s: dict[str, list[float]] = {name: [] for name in names}
    for number in range(config.rounds):
        advance(f"round {number + 1}: warm steps")
        for name, step_s in _warm_s(scorers, config, number).items():
            warm_s[name].append(step_s)
        for name in names:
            advance(f"round {number + 1}: tree of {name}")
            if not number:
                _tree_s(nets[name], tree)  # the first tree also tries the architecture
            tree_s[name].append(_tree_s(nets[name], tree))
    rows = [
        TrunkRow(
            name=name,
            parameters=sum(p.numel() for p in nets[name].model.trunk.parameters()),
            warm_s=tuple(warm_s[name]),
            tree_s=tuple(tree_s[name]),
        )
        for name in names
    ]
    run = HybridsRun(
        command=config.command,
        machine=describe_machine(device="cpu", threads=torch.get_num_threads()),
        tree_tokens=len(tree),
        rows=tuple(rows),
    )
    config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def build_trunk(name: str, config: HybridsBench) -> LoadedQNet:
    """A QNet with random weights on a trunk of this architecture.

    Raises:
        ConfigError: transformers has no such architecture.
    """
    heads = config.hidden // _HEAD
    shape = replace(
        SHAPES["28m"],
        hidden=config.hidden,
        layers=config.layers,
        heads=heads,
        kv_heads=max(1, heads // 2),
        ffn=config.hidden * 11 // 4,
    )
    if name == ATTENTION:
        trunk = None
    elif name in CONFIG_MAPPING:
        recurrent = _RECURRENT.get(name, "linear_attention")
        attends = "attention" if recurrent == "mamba" else "full_attention"
        sizes: dict[str, Any] = {
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.ffn,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": _HEAD,
            "layer_types": [*[recurrent] * 3, attends] * (config.layers // 4),
        }
        if name in _SIZES:
            sizes |= _SIZES[name](shape)
        trunk = AutoConfig.for_model(name, **sizes)
    else:
        raise ConfigError(f"trunks={name!r} is no architecture of transformers; choose another")
    return build_qnet(name, shape, seed=config.seed, dtype=torch.float32, device="cpu", trunk=trunk)


def _scorer(name: str, net: LoadedQNet) -> Scorer:
    if name == ATTENTION:
        return SharedPrefixScorer(net)
    return FullSequenceScorer(net, tokens_per_forward=_PASS_TOKENS, cache_bytes=_CACHE_BYTES)


def _warm_s(scorers: Mapping[str, Scorer], config: HybridsBench, number: int) -> dict[str, float]:
    """Median CPU time of the steps of one episode after its first, by trunk.

    The trunks score each step in turn, so that what else the machine does slows all of them.
    """
    random = Random(f"{config.seed} {number}")
    history: tuple[Message, ...] = (Message("user", _words(random, config.history_tokens)),)
    times: dict[str, list[float]] = {name: [] for name in scorers}
    for _ in range(config.steps):
        candidates = tuple(
            Message("assistant", _words(random, config.candidate_tokens)) for _ in range(config.candidates)
        )
        for name, scorer in scorers.items():
            began = time.process_time()
            scorer.score([ScoreRequest(history, candidates)])
            times[name].append(time.process_time() - began)
        observed = Message("user", _words(random, config.history_tokens // 8))
        history = (*history, candidates[0], observed)
    return {name: median(steps[1:]) for name, steps in times.items()}


def _tree(config: HybridsBench) -> PackedTree:
    """A path of some steps, with siblings of its action at each."""
    random = Random(config.seed)
    tree, path = PackedTree(), _tokens(random, config.history_tokens)
    for _ in range(config.steps):
        actions = [_tokens(random, config.candidate_tokens) for _ in range(config.candidates)]
        for action in actions:
            tree.label(QPlace(tree.add(path + action)[-1], random.random()))
        path = path + actions[0] + _tokens(random, config.history_tokens // 8)
    tree.label(QPlace(tree.add(path)[-1], random.random()))
    return tree


def _tree_s(net: LoadedQNet, tree: PackedTree) -> float:
    """CPU time of the loss of a tree and its gradients."""
    net.model.zero_grad()
    began = time.process_time()
    with torch.enable_grad():
        loss_of_tree(net.model, tree, QNetLossOptions()).total.backward()
    return time.process_time() - began


def _words(random: Random, tokens: int) -> str:
    return spell(_tokens(random, tokens))


def _tokens(random: Random, number: int) -> list[int]:
    return [random.randrange(1, SHAPES["28m"].vocabulary) for _ in range(number)]


def print_hybrids(run: HybridsRun, console: Console) -> None:
    """Print the medians, and whether the goal is kept."""
    title = f"CPU ms of a warm step, and of training on a tree of {run.tree_tokens:,} tokens"
    rows = (
        (
            row.name,
            f"{row.parameters / 1e6:.0f}",
            f"{median(row.warm_s) * 1e3:,.0f}",
            f"{run.warm_ratio(row):.2f}",
            f"{median(row.tree_s) * 1e3:,.0f}",
            f"{run.tree_ratio(row):.2f}",
        )
        for row in run.rows
    )
    print_table(console, title, ("", "million", "warm step", "×", "tree", "×"), rows)
    missed = [row.name for row in run.rows if run.warm_ratio(row) > GOAL]
    found = f"missed by {', '.join(missed)}" if missed else "kept"
    console.print(f"goal for a warm step, {GOAL:g} × attention's: {found}", highlight=False)
