"""Implementations of scoring, which must all compute the same Q.

    ours           `SharedPrefixScorer.score`, from messages to numbers
    match-features the same with a value head that reads match features, and gives them no weight
    naive          each full sequence alone, stock kernels, no cache: the reference
    naive-packed   the same with our kernels, which separates the algorithm from the kernels
    padded         all full sequences as one right-padded batch
    full-sequences what serves trunks that cannot be packed: the history once per step, no cache
    dynamic-cache  transformers' DynamicCache, with candidates packed behind it by a 4D mask
    vllm           vLLM's pooling runner with prefix caching and its default block size
    vllm-block32   the same with blocks of 32 tokens
    http           a `/v1/score` call of `qguide serve` with one client
    vllm-http      the same sequences as texts to `/pooling` of a vLLM server

`ours`, `full-sequences` and those over HTTP get messages or texts and pay for rendering; all others
get token ids. All share one set of weights and apply the value head only at the candidates' last
tokens. The last four run in separate processes (`remote`), whose CPU time is measured.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from benchmarks.measurement.measure import Timing, clock_here
from benchmarks.measurement.names import Local, Name
from benchmarks.measurement.steps import Step, TokenizedStep
from qguide.qnet.engine.packed_model import DEFAULT_TOKENS_PER_FORWARD, PackedModel, hidden_states_of, history_segment
from qguide.qnet.engine.prefix_cache import Entry
from qguide.qnet.engine.recurrent_states import name_of_cache
from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.models.qnet import QNet, ValueHead
from qguide.qnet.models.qnet_config import MATCH_WIDTH
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.scoring.full_sequences import FullSequenceScorer
from qguide.qnet.scoring.value_head import SharedPrefixScorer


class Baseline(Protocol):
    """One implementation of scoring."""

    def prepare(self, step: Step) -> None:
        """Score the previous step, which fills the cache; not measured."""
        ...

    def score(self, step: Step) -> list[float]:
        """Q of each candidate of the step; measured."""
        ...

    def clock(self) -> Timing:
        """Time spent since a fixed moment."""
        ...


class ManySessions(Baseline, Protocol):
    """An implementation that can score steps of many sessions at once."""

    def score_all(self, steps: Sequence[Step]) -> list[list[float]]:
        """Q of each candidate of each step; measured."""
        ...


def build_baselines(names: Sequence[Local], loaded: LoadedQNet, *, cache_bytes: int) -> dict[Name, Baseline]:
    """Build the implementations of this process by name, with shared weights."""
    stock = _with_shared_weights(loaded.model)
    packed = _with_shared_weights(loaded.model)
    matching = _with_match_features(loaded)  # before a packed model has changed what is copied

    def build(name: Local) -> Baseline:
        match name:
            case "ours":
                return Ours(loaded, cache_bytes=cache_bytes)
            case "match-features":
                return Ours(matching, cache_bytes=cache_bytes)
            case "naive":
                return Naive(stock)
            case "naive-packed":
                return NaivePacked(packed)
            case "padded":
                return Padded(stock)
            case "full-sequences":
                return FullSequences(replace(loaded, model=stock))
            case "dynamic-cache":
                return DynamicCached(stock)

    return {name: build(name) for name in names}


class Ours:
    """The server's scorer, called as the server calls it."""

    def __init__(self, loaded: LoadedQNet, *, cache_bytes: int) -> None:
        self._device = str(loaded.model.device)
        self._scorer = SharedPrefixScorer(loaded, cache_bytes=cache_bytes)

    def prepare(self, step: Step) -> None:
        """Score the previous step, which leaves its history and candidates in the cache."""
        self._scorer.score([step.request_before])

    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        return self.score_all([step])[0]

    def score_all(self, steps: Sequence[Step]) -> list[list[float]]:
        """Q of each candidate of many sessions in one call."""
        results = self._scorer.score([step.request for step in steps])
        return [list(result.q_values) for result in results]

    def clock(self) -> Timing:
        """This process's."""
        return clock_here(self._device)


class Naive:
    """One forward pass per full sequence; without a mask, so that causal kernels are used."""

    def __init__(self, model: QNet) -> None:
        self._model = model

    def clock(self) -> Timing:
        """This process's."""
        return clock_here(str(self._model.device))

    def prepare(self, step: Step) -> None:
        """Nothing is kept."""

    @torch.inference_mode()
    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        return [self._q(token_ids) for token_ids in step.now.sequences]

    def _q(self, token_ids: list[int]) -> float:
        tokens = torch.tensor([token_ids], device=self._model.device)
        hidden_BTD = self._model.trunk(input_ids=tokens, use_cache=False).last_hidden_state
        return float(self._model.head(hidden_BTD[0, -1]))


class NaivePacked:
    """One forward pass of our kernels per full sequence, without a cache."""

    def __init__(self, model: QNet) -> None:
        self._device = str(model.device)
        self._head = model.head
        self._packed = PackedModel(
            model.trunk, hidden_states_of(model.trunk), cache_bytes=0, tokens_per_forward=DEFAULT_TOKENS_PER_FORWARD
        )

    def prepare(self, step: Step) -> None:
        """Nothing is kept."""

    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        segments = (history_segment(Entry(), ids, read_last=True) for ids in step.now.sequences)
        with torch.inference_mode():
            return [float(self._head(self._packed.run([piece]))) for piece in segments]

    def clock(self) -> Timing:
        """This process's."""
        return clock_here(self._device)


class Padded:
    """All full sequences in one right-padded batch."""

    def __init__(self, model: QNet) -> None:
        self._model = model

    def prepare(self, step: Step) -> None:
        """Nothing is kept."""

    @torch.inference_mode()
    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        sequences = step.now.sequences
        lengths = [len(token_ids) for token_ids in sequences]
        tokens_BT = torch.zeros((len(sequences), max(lengths)), dtype=torch.long)
        for row, token_ids in zip(tokens_BT, sequences, strict=True):
            row[: len(token_ids)] = torch.tensor(token_ids)
        last_B = torch.tensor(lengths)
        real_BT = (torch.arange(max(lengths)) < last_B[:, None]).long()
        device = self._model.device
        hidden_BTD = self._model.trunk(
            input_ids=tokens_BT.to(device), attention_mask=real_BT.to(device), use_cache=False
        ).last_hidden_state
        rows_B = torch.arange(len(lengths), device=device)
        return numbers(self._model.head(hidden_BTD[rows_B, last_B.to(device) - 1]))

    def clock(self) -> Timing:
        """This process's."""
        return clock_here(str(self._model.device))


class FullSequences:
    """The server's scorer of trunks that cannot be packed, on this one."""

    def __init__(self, loaded: LoadedQNet) -> None:
        self._device = str(loaded.model.device)
        self._scorer = FullSequenceScorer(loaded, tokens_per_forward=DEFAULT_TOKENS_PER_FORWARD)

    def prepare(self, step: Step) -> None:
        """Nothing is kept."""

    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        [result] = self._scorer.score([step.request])
        return list(result.q_values)

    def clock(self) -> Timing:
        """This process's."""
        return clock_here(self._device)


class DynamicCached:
    """transformers' DynamicCache: history in the cache, candidates behind it, then a crop.

    Before the crop, keys and values of the chosen candidate are moved behind the history, so that
    this baseline computes no more tokens than ours.
    """

    def __init__(self, model: QNet) -> None:
        self._model = model
        self._cache = DynamicCache()

    @torch.inference_mode()
    def prepare(self, step: Step) -> None:
        """Score the previous step; its candidates stay in the cache."""
        self._cache = DynamicCache()
        self._forward(step.before)

    @torch.inference_mode()
    def score(self, step: Step) -> list[float]:
        """Q of each candidate."""
        self._keep_chosen(step)
        return self._forward(step.now)

    def clock(self) -> Timing:
        """This process's."""
        return clock_here(str(self._model.device))

    def _keep_chosen(self, step: Step) -> None:
        lengths = [len(candidate) for candidate in step.before.candidates]
        to = len(step.before.history)
        start = to + sum(lengths[: step.chosen])
        kept = lengths[step.chosen]
        for layer in self._cache.layers:
            assert isinstance(layer, DynamicLayer)
            for columns in (layer.keys, layer.values):
                assert columns is not None
                columns[:, :, to : to + kept] = columns[:, :, start : start + kept].clone()
        self._cache.crop(-(sum(lengths) - kept))

    def _forward(self, step: TokenizedStep) -> list[float]:
        """Run the uncached end of the history and all candidates as one row."""
        known = int(self._cache.get_seq_length())
        start = len(step.history)
        tokens = step.history[known:]
        positions = list(range(known, start))
        owners = [0] * len(tokens)
        last = []
        for owner, candidate in enumerate(step.candidates, start=1):
            tokens = tokens + candidate
            positions += range(start, start + len(candidate))
            owners += [owner] * len(candidate)
            last.append(len(tokens) - 1)
        device = self._model.device
        hidden_BTD = self._model.trunk(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.tensor([positions], device=device),
            attention_mask=_tree_mask(owners, known).to(device),
            use_cache=True,
            **{name_of_cache(self._model.trunk): self._cache},
        ).last_hidden_state
        return numbers(self._model.head(hidden_BTD[0, last]))


def _tree_mask(owners: list[int], known: int) -> Tensor:
    """Mask of shape (1, 1, T, known + T), true where a token sees another; owner 0 is history."""
    owner_T = torch.tensor(owners)
    shared = (owner_T[None, :] == 0) | (owner_T[:, None] == owner_T[None, :])
    seen = torch.cat([torch.ones((len(owners), known), dtype=torch.bool), shared.tril()], dim=1)
    return seen[None, None]


def _with_shared_weights(model: QNet) -> QNet:
    """A copy of the model that shares its parameters but has its own attention setting."""
    return deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def _with_match_features(loaded: LoadedQNet) -> LoadedQNet:
    """The same Q model with match features computed and read, whose weights are 0.

    Their cost is that of any match features; Q stays that of all other implementations.
    """
    model = _with_shared_weights(loaded.model)
    plain = loaded.model.head.state_dict()
    width, hidden_size = plain["hidden.0.weight"].shape
    head = ValueHead(hidden_size, width, features="match-1").to(plain["hidden.0.weight"])
    unread = torch.zeros((width, MATCH_WIDTH)).to(plain["hidden.0.weight"])
    weights = plain | {"hidden.0.weight": torch.cat([plain["hidden.0.weight"], unread], dim=1)}
    head.load_state_dict(weights, strict=False)  # the match layers keep their random weights
    model.head = head.eval()
    # A renderer of its own: it must not find what the other one has just rendered.
    return replace(loaded, model=model, renderer=Renderer(loaded.renderer.tokenizer))


def numbers(q_B: Tensor) -> list[float]:
    """Q-values as Python floats."""
    return [float(q) for q in q_B.tolist()]
