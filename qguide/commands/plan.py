"""`qguide plan`: the memory of a GPU that a trunk takes, scoring and training, before it is had."""

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from qguide.commands.errors import shown_errors
from qguide.qnet.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from qguide.qnet.engine.model_memory import ScoringMemory

GPUS: Final = {
    "a100": 80,
    "a100-40": 40,
    "b200": 180,
    "h100": 80,
    "h200": 141,
    "l4": 24,
    "l40s": 48,
    "rtx4090": 24,
    "rtx5090": 32,
    "t4": 16,
}
"""Gigabytes (10^9 bytes) of memory."""

USED: Final = 0.9
"""Share that is planned: the rest is the driver's, the libraries' and lost between allocations."""

_TREE_TOKENS: Final = 8192
_RANK: Final = 16
_MOST_REASON: Final = 240
"""Characters of a reason that are shown."""


def plan(
    model: Annotated[str, typer.Option(help="A folder with config.json, or a name on the hub.")],
    gpu: Annotated[str, typer.Option(help=f"{', '.join(GPUS)}, or gigabytes.")] = "h200",
    history: Annotated[int, typer.Option(min=1, help="Tokens of a history.")] = 8192,
    sessions: Annotated[int, typer.Option(min=1, help="Histories kept at once.")] = 64,
    candidates: Annotated[int, typer.Option(min=1, help="Of a step; a hybrid keeps a state behind each.")] = 5,
    tokens_per_forward: Annotated[int, typer.Option(min=1, help="Longest packed row of a forward pass.")] = 2048,
) -> None:
    """Plan a GPU's memory: weights, cache per token, sessions that fit, and a training step.

    Only the model's configuration is read.
    """
    with shown_errors():
        import torch

        from qguide.qnet.engine.model_memory import scoring_memory
        from qguide.qnet.models.text_model import read_text_config

        available = int(_gigabytes(gpu) * 1e9 * USED)
        config = read_text_config(model)
        memory = scoring_memory(
            config, history=history, tokens_per_forward=tokens_per_forward, dtype=torch.bfloat16, candidates=candidates
        )
        typer.echo(f"{model} on {gpu}: {available / 2**30:.1f} GiB are planned ({USED:.0%})\n")
        for line in (*_scoring(memory, available, history, sessions), "", *_training(config, available)):
            typer.echo(line)


def _gigabytes(gpu: str) -> float:
    known = GPUS.get(gpu.lower())
    if known is None and not re.fullmatch(r"\d+(\.\d+)?", gpu):
        raise ConfigError(f"gpu is {gpu!r}; take one of {', '.join(GPUS)}, or a number of gigabytes")
    return known or float(gpu)


def _scoring(memory: "ScoringMemory", available: int, history: int, sessions: int) -> list[str]:
    lines = ["Scoring in bfloat16", f"  weights            {_gib(memory.weights)}   {memory.parameters:,} parameters"]
    if memory.failure is not None:
        return [*lines, f"  no more is planned: {_reason(memory.failure)}"]
    most = memory.sessions(available)
    fit = "fit" if most >= sessions else "do not fit"
    return [
        *lines,
        f"  a forward pass     {_gib(memory.forward)}",
        f"  cache per token    {memory.token / 2**10:8.1f} KiB",
        *(
            [f"  a state            {memory.state / 2**20:8.2f} MiB   behind a history and each candidate"]
            * bool(memory.state)
        ),
        f"  a history          {_gib(memory.session)}   of {history:,} tokens",
        f"  {sessions:,} sessions".ljust(20) + f" {_gib(sessions * memory.session)}   {fit}; {most:,} is the most",
        f"  QGUIDE_CACHE_BYTES={sessions * memory.session}",
    ]


def _training(config: "PretrainedConfig", available: int) -> list[str]:
    from qguide.training.optimization.training_memory import trained_trunk

    lines = ["Training a QNet in bfloat16, with gradient checkpointing"]
    for name, rank in ((f"adapters of rank {_RANK}", _RANK), ("all weights", None)):
        try:
            trunk = trained_trunk(config, adapter_rank=rank)
        except Exception as error:  # a foreign architecture can fail in any way
            lines.append(f"  {name:<20} not planned: {_reason(error)}")
            continue
        step, longer = (trunk.memory(tokens).total for tokens in (_TREE_TOKENS, 2 * _TREE_TOKENS))
        per_token = (longer - step) // _TREE_TOKENS
        room = max(0, available - step + _TREE_TOKENS * per_token) // per_token
        found = f"trees of up to {room:,} tokens fit" if room else "no tree fits: use several GPUs"
        lines.append(f"  {name:<20} {_gib(step)}   a tree of {_TREE_TOKENS:,} tokens; {found}")
    return lines


def _reason(error: Exception) -> str:
    """A failure, on one line."""
    said = " ".join(str(error).split())
    said = said if len(said) <= _MOST_REASON else f"{said[:_MOST_REASON]} …"
    return f"its layers do not run without weights ({type(error).__name__}: {said})"


def _gib(size: int) -> str:
    return f"{size / 2**30:8.2f} GiB"
