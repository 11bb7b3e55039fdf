"""Score requests as tokens, equal candidates once; nothing here needs torch."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.decision.history_window import RequestSize
from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.errors import HistoryTooLongError, MalformedHistoryError
from qguide.qnet.models.match_features import match_features, observed_features, turns_of
from qguide.qnet.models.options import HeadFeatures
from qguide.qnet.rendering.renderer import RenderedEpisode, Renderer
from qguide.qnet.sliced_scorer import CacheUse, CachingScorer, Slices
from qguide.qnet.types import History, ScoreRequest, ScoreResult
from qguide.qnet.work import TokenUsage

if TYPE_CHECKING:
    from qguide.qnet.engine.full_sequences import FullSequenceModel
    from qguide.qnet.engine.packed_model import PackedModel, Passes
    from qguide.qnet.models.checkpoint import LoadedQNet
    from qguide.qnet.models.classifier import RemoteClassifier

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RenderedRequest:
    """A request as tokens, equal candidates once.

    Attributes:
        action_spans: [start, end) of each action in the history.
        candidates: in the order of their tokens; each with the observation after it, where Q is read there.
        action_lengths: tokens of the action in each of `candidates`.
        index: which of `candidates` each of the request's candidates is.
        tree: trie of the candidates' tokens; common prefixes are stored once.
        paths: where each of `candidates` has its tokens in the tree.
        features: (C, F) of `candidates`; None where the value head reads none.
    """

    history: list[int]
    action_spans: list[tuple[int, int]]
    candidates: list[list[int]]
    action_lengths: list[int]
    index: list[int]
    tree: TokenTrie
    paths: list[list[int]]
    cache_salt: str = ""
    features: NDArray[np.float32] | None = None

    @property
    def salted_history(self) -> tuple[str, list[int]]:
        """The key of its history in a prefix cache."""
        return self.cache_salt, self.history

    @property
    def sequences(self) -> Iterator[list[int]]:
        """History and candidate of each of the request's candidates, equal ones repeated."""
        return (self.history + self.candidates[i] for i in self.index)

    def new_tokens(self, known: int) -> int:
        """Number of tokens for a trunk that knows the history's first `known` ones."""
        return len(self.history) - known + len(self.tree)


@dataclass(frozen=True, slots=True)
class RequestRenderer:
    """Makes tokens of the requests to one Q model.

    Attributes:
        context: most tokens of history and candidate together.
        features: what the value head reads beside hidden states. They are made here, beside the
            device and not on its thread: they depend on tokens alone.
        needs_history: the first token of an action has to follow another.
    """

    renderer: Renderer
    name: str
    context: int
    reads_observation: bool = False
    features: HeadFeatures = "none"
    needs_history: bool = False

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens."""
        request.require_readable(name=self.name, reads_observation=self.reads_observation)
        state = self.renderer.encode_state(request.history, most_tokens=self.context)
        if self.needs_history and not state.token_ids:
            raise MalformedHistoryError(
                "the history has 0 tokens, so the reply's first one has no probability; give a message"
            )
        actions = [
            tuple(self.renderer.encode_candidate(candidate, most_tokens=self.context))
            for candidate in request.candidates
        ]
        answers = _encode_observations(self.renderer, request, self.context)
        encoded = [(*action, *seen) for action, seen in zip(actions, answers, strict=True)]
        tokens = len(state.token_ids) + max(map(len, encoded))
        require_fit(tokens, name=self.name, context=self.context)
        rendered = plan_request(state, encoded, list(map(len, actions)), request.cache_salt)
        if self.features == "none":
            return rendered
        return replace(rendered, features=_features(rendered))

    def prepare_history(self, request: ScoreRequest) -> tuple[str, list[int]]:
        """The key of a history in a prefix cache, before its candidates are known."""
        state = self.renderer.encode_state(request.history, most_tokens=self.context)
        require_fit(len(state.token_ids), name=self.name, context=self.context)
        return request.cache_salt, state.token_ids


def request_size(renderer: Renderer, request: ScoreRequest, context: int) -> RequestSize:
    """Number of tokens of a request, however many they are."""
    actions = [len(renderer.encode_candidate(candidate)) for candidate in request.candidates]
    answers = map(len, _encode_observations(renderer, request, None))
    behind = [action + answer for action, answer in zip(actions, answers, strict=True)]
    return RequestSize(renderer.exchange_tokens(request.history), max(behind, default=0), context)


def plan_request(
    state: RenderedEpisode, encoded: Sequence[tuple[int, ...]], action_lengths: Sequence[int], cache_salt: str
) -> RenderedRequest:
    """A state and the tokens of each candidate behind it, equal ones once.

    Args:
        action_lengths: number of tokens of the action at each candidate's beginning.
    """
    # In order, so that the tree's branches lie one after the other.
    length_of = dict(zip(encoded, action_lengths, strict=True))
    distinct = {token_ids: i for i, token_ids in enumerate(sorted(length_of))}
    tree = TokenTrie()
    return RenderedRequest(
        state.token_ids,
        state.action_spans,
        candidates=[list(token_ids) for token_ids in distinct],
        action_lengths=[length_of[token_ids] for token_ids in distinct],
        index=[distinct[token_ids] for token_ids in encoded],
        tree=tree,
        paths=[tree.add(token_ids) for token_ids in distinct],
        cache_salt=cache_salt,
    )


def require_fit(tokens: int, *, name: str, context: int) -> None:
    """Refuse a history that with its longest candidate exceeds the context."""
    if tokens > context:
        raise HistoryTooLongError(
            f"history and candidate have {tokens:,} tokens; {name} takes {context:,}; shorten the history"
        )


def _encode_observations(renderer: Renderer, request: ScoreRequest, context: int | None) -> list[list[int]]:
    """The tokens between each candidate and the reply after it; none where there is nothing."""
    if not request.observations:
        return [[] for _ in request.candidates]
    return [
        renderer.encode_observation(request.history, action, observation, most_tokens=context)
        for action, observation in zip(request.candidates, request.observations, strict=True)
    ]


def head_features(requests: Sequence[RenderedRequest]) -> NDArray[np.float32] | None:
    """(R, F) of all requests' candidates, one after the other; None where none are read."""
    features = [request.features for request in requests if request.features is not None]
    return np.concatenate(features) if features else None


def _features(request: RenderedRequest) -> NDArray[np.float32]:
    tails = [candidate[length:] for candidate, length in zip(request.candidates, request.action_lengths, strict=True)]
    if not any(tails):
        turns = turns_of(request.history, request.action_spans)
        return match_features(turns, request.candidates)
    actions = [candidate[:length] for candidate, length in zip(request.candidates, request.action_lengths, strict=True)]
    return np.concatenate(
        [
            observed_features(request.history, request.action_spans, action, tail)
            for action, tail in zip(actions, tails, strict=True)
        ]
    )


@dataclass(frozen=True, slots=True)
class ConversationRenderer:
    """Makes tokens of the requests to a classifier: each conversation as its template prints it.

    What the conversations of a request begin with alike takes the place of the history, whatever
    the template does with earlier turns.

    Attributes:
        pad_token_id: transformers' classifiers read at the last token that is not this one, so it
            is left out at the end; None where they read at the last token.
    """

    renderer: Renderer
    name: str
    context: int
    pad_token_id: int | None
    reads_observation: ClassVar[bool] = False

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens."""
        request.require_readable(name=self.name, reads_observation=False)
        whole = [self._encode((*request.history, said)) for said in request.candidates]
        require_fit(max(map(len, whole)), name=self.name, context=self.context)
        # Each candidate keeps a token of its own, at which it is read.
        alike = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*whole, strict=False)))
        shared = min(alike, *(len(one) - 1 for one in whole))
        state = RenderedEpisode(whole[0][:shared], [])
        behind = [tuple(one[shared:]) for one in whole]
        return plan_request(state, behind, list(map(len, behind)), request.cache_salt)

    def prepare_history(self, request: ScoreRequest) -> None:
        """Nothing: where a conversation begins to differ is known from the candidates alone."""
        return None

    def _encode(self, messages: History) -> list[int]:
        token_ids = self.renderer.encode_conversation(messages, most_tokens=self.context)
        while len(token_ids) > 1 and token_ids[-1] == self.pad_token_id:
            token_ids.pop()
        return token_ids


def request_renderer(
    loaded: "LoadedQNet | RemoteClassifier", context: int, features: HeadFeatures = "none"
) -> RequestRenderer | ConversationRenderer:
    """The renderer of requests to a Q model that takes so many tokens."""
    if loaded.conversations:
        return ConversationRenderer(loaded.renderer, loaded.name, context, loaded.conversations.pad_token_id)
    return RequestRenderer(loaded.renderer, loaded.name, context, loaded.manifest.reads_observation, features)


def results_of(
    requests: Sequence[RenderedRequest], q_values: Sequence[float], computed: Sequence[int], cached: Sequence[int]
) -> list[ScoreResult]:
    """Result of each request.

    Args:
        q_values: of all requests' distinct candidates, one after the other.
        computed: tokens of each request that went through the trunk.
        cached: its tokens that were known.
    """
    results, start = list[ScoreResult](), 0
    for request, fresh, known in zip(requests, computed, cached, strict=True):
        results.append(ScoreResult(tuple(q_values[start + i] for i in request.index), fresh, known))
        start += len(request.candidates)
    return results


def metered(passes: "Passes[Result]", spent: Counter[int]) -> Slices[Result]:
    """The same work as slices, with the tokens that each owner's segments cost added to `spent`."""
    try:
        batch = next(passes)
        while True:
            for segment in batch:
                spent[segment.owner] += len(segment.token_ids)
            yield {owner: TokenUsage(tokens, 0) for owner, tokens in spent.items()}
            batch = next(passes)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        passes.close()


class RenderingScorer(CachingScorer):
    """A scorer of rendered requests, and the models that keep histories for it."""

    context: int

    def __init__(
        self,
        requests: RequestRenderer | ConversationRenderer,
        readers: "Sequence[PackedModel | FullSequenceModel[Any]]" = (),
    ) -> None:
        self.name = requests.name
        self.context = requests.context
        self.reads_observation = requests.reads_observation
        self.reads_ahead = bool(readers)
        self._requests = requests
        self._readers = tuple(readers)

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens; raises what `score` does."""
        return self._requests.prepare(request)

    def prepare_history(self, request: ScoreRequest) -> tuple[str, list[int]] | None:
        """The tokens of a history without candidates; None for a classifier."""
        return self._requests.prepare_history(request)

    def read_ahead(self, prepared: tuple[str, list[int]], *, begin: Callable[[int], None]) -> Iterator[None]:
        """Read a history into the caches; see `qguide.qnet.device.scoring_worker`."""
        return chain.from_iterable(one.read_ahead(prepared, begin=begin) for one in self._readers)

    @property
    def cache(self) -> CacheUse:
        """Use of all caches now."""
        stores = [one.store for one in self._readers]
        return CacheUse(sum(s.nbytes for s in stores), sum(s.evictions for s in stores))

    def close(self) -> None:
        """Let go of every history; it scores no more."""
        for one in self._readers:
            one.store.clear()
