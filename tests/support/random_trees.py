"""Random trees of tokens, as long as a test needs them."""

import random

from qguide.qnet.engine.token_trie import TokenTrie

MOST_TOKENS_OF_A_BRANCH = 60
VOCABULARY = 250


def random_tree(tokens: int, *, seed: int) -> TokenTrie:
    """A tree of so many tokens whose branches leave any token, in any order."""
    rng = random.Random(seed)
    tree = TokenTrie()
    while len(tree) < tokens:
        # Mostly from the end of a branch, so that paths become long.
        stem = len(tree) - 1 if rng.random() < 0.6 else rng.randrange(-1, len(tree))
        length = min(rng.randint(1, MOST_TOKENS_OF_A_BRANCH), tokens - len(tree))
        tree.extend(stem, [rng.randrange(1, VOCABULARY) for _ in range(length)])
    return tree
