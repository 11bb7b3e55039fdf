"""WebShop's reward: attributes, options and price that match, times the match of the type.

As in section 3 of the paper. The published code differs in what docs/train/webshop.md lists: among
others, it takes the nouns of a name from a tagger that has to be downloaded, asks for sizes to the
letter, and finds chosen options in the product's texts.
"""

from collections.abc import Sequence
from typing import Final

from rapidfuzz import fuzz, utils

from qguide.training.environments.webshop.catalogue import Goal, Product

_ALIKE: Final = 85
"""Two texts are alike if their token set ratio is higher; word order does not count."""

_TITLE_MATCH: Final = 0.2
_HARDLY_A_MATCH: Final = 0.1
_COLORS: Final = (
    "black", "blue", "brown", "gold", "gray", "green", "grey", "orange", "pink", "purple", "red",
    "silver", "white", "yellow",
)  # fmt: skip
_COMMON_WORDS: Final = frozenset(
    {"a", "an", "and", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"}
)


def purchase_reward(product: Product, goal: Goal, wanted: Product, chosen: Sequence[str]) -> float:
    """Reward of buying a product, in [0, 1].

    Args:
        chosen: values of the options that were chosen.
    """
    attributes = sum(_has_attribute(product, wish) for wish in goal.attributes)
    options = sum(_is_chosen(wish, chosen) for wish in goal.options)
    price = product.price <= goal.price_limit
    wishes = len(goal.attributes) + len(goal.options) + 1
    return type_match(product, wanted) * (attributes + options + price) / wishes


def type_match(product: Product, wanted: Product) -> float:
    """1 for the same type of product, else 0.5, 0.1 or 0, by the words that the names share."""
    names = _name_words(wanted.name)
    shared = len(names & _name_words(product.name)) / len(names) if names else _TITLE_MATCH
    if shared == 0:
        return 0.0
    if shared < _HARDLY_A_MATCH:
        return 0.1
    same_query = product.query == wanted.query
    same_category = len(set(product.category) & set(wanted.category)) >= 2
    return 1.0 if same_query or same_category or shared > _TITLE_MATCH else 0.5


def _has_attribute(product: Product, wish: str) -> bool:
    if any(_alike(attribute, wish) for attribute in product.attributes):
        return True
    texts = (product.name, " ".join(product.features), product.description)
    return any(wish in text.lower() for text in texts)


def _is_chosen(wish: str, chosen: Sequence[str]) -> bool:
    return any(_alike(_color(value), _color(wish)) for value in chosen)


def _alike(one: str, other: str) -> bool:
    return round(fuzz.token_set_ratio(one, other, processor=utils.default_process)) > _ALIKE


def _color(text: str) -> str:
    return next((color for color in _COLORS if color in text), text)


def _name_words(name: str) -> set[str]:
    words = utils.default_process(name).split()
    return {word for word in words if word.isalpha()} - _COMMON_WORDS
