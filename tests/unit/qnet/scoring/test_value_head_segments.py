"""Score plans: each token is computed once, with few masked pairs."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.engine.prefix_cache import Entry
from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.scoring.rendered_requests import RenderedRequest
from qguide.qnet.scoring.value_head import BLOCK_TOKENS, segments

HISTORY = list(range(100, 130))
LIKE = torch.zeros(())

candidates = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2 * BLOCK_TOKENS), min_size=1, max_size=12)


def request_of(sequences: list[list[int]]) -> RenderedRequest:
    distinct = sorted(map(list, {tuple(sequence) for sequence in sequences}))
    tree = TokenTrie()
    paths = [tree.add(sequence) for sequence in distinct]
    lengths = [len(candidate) for candidate in distinct]
    return RenderedRequest(HISTORY, [], distinct, lengths, list(range(len(distinct))), tree, paths)


@given(candidates, st.integers(0, len(HISTORY) - 1))
def test_every_token_of_a_candidate_sees_what_comes_before_it_and_nothing_else(
    sequences: list[list[int]], known: int
) -> None:
    request = request_of(sequences)
    entry = Entry(token_ids=HISTORY[:known])
    sees: dict[int, list[int]] = {}
    token_of = dict(enumerate(HISTORY[:known]))
    for segment in segments(request, entry, read=[], like=LIKE):
        for row, (token, position) in enumerate(zip(segment.token_ids, segment.positions, strict=True)):
            column = segment.column + row
            assert column not in token_of
            token_of[column] = token
            own = segment.columns(row + 1)
            shown = [True] * len(own) if segment.bias is None else (segment.bias[row] == 0).tolist()
            columns = [c for part in segment.seen for c in part]
            sees[column] = columns + [c for c, visible in zip(own, shown, strict=False) if visible]
            assert position == len(sees[column]) - 1
    assert sorted(token_of) == list(range(len(HISTORY) + len(request.tree)))
    for candidate, path in zip(request.candidates, request.paths, strict=True):
        for end, token in enumerate(path, start=1):
            seen = [token_of[column] for column in sees[len(HISTORY) + token]]
            assert seen == HISTORY + candidate[:end]


@given(candidates)
def test_what_is_masked_stays_small(sequences: list[list[int]]) -> None:
    for segment in segments(request_of(sequences), Entry(), read=[], like=LIKE):
        assert segment.bias is None or segment.bias.numel() <= BLOCK_TOKENS**2


def test_candidates_apart_are_not_masked_from_each_other() -> None:
    sequences = [[first, *range(BLOCK_TOKENS)] for first in range(5)]
    found = list(segments(request_of(sequences), Entry(), read=[], like=LIKE))
    assert [len(segment.token_ids) for segment in found] == [len(HISTORY), *[BLOCK_TOKENS + 1] * 5]
    assert [segment.bias for segment in found] == [None] * 6
    assert {segment.seen for segment in found[1:]} == {(range(len(HISTORY)),)}
