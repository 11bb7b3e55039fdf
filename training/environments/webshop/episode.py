"""One WebShop episode: searches, clicks and a purchase."""

import re
from collections.abc import Sequence
from typing import Final

from rapidfuzz import fuzz, utils

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environment import StepResult
from qguide.training.environments.webshop.catalogue import Catalogue, Product, ShoppingGoal

_ALIKE: Final = 85
"""Two texts are alike if their token set ratio is higher; word order does not count."""

_TITLE_MATCH: Final = 0.2
_HARDLY_A_MATCH: Final = 0.1
_COLORS: Final = (
    "black", "blue", "brown", "gold", "gray", "green", "grey", "orange", "pink", "purple", "red",
    "silver", "white", "yellow",
)  # fmt: skip
_COMMON_WORDS: Final = frozenset({"a", "an", "and", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"})


def purchase_reward(product: Product, goal: ShoppingGoal, wanted: Product, chosen: Sequence[str]) -> float:
    """Reward of buying a product, in [0, 1]."""
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


BACK: Final = "Back to Search"
NEXT: Final = "Next >"
PREVIOUS: Final = "< Prev"
BUY: Final = "Buy Now"
TABS: Final = ("Description", "Features", "Attributes")
INSTRUCTION_OPENING: Final = "Instruction:"
PER_PAGE: Final = 10


def search_page(instruction: str) -> str:
    """The first page: the instruction. Nothing can be clicked here, so nothing is in brackets."""
    return f"WebShop\n{INSTRUCTION_OPENING}\n{instruction}\nSearch"


def results_page(found: Sequence[Product], number: int) -> str:
    """One page of results, numbered from 1."""
    shown = found[(number - 1) * PER_PAGE : number * PER_PAGE]
    lines = [f"[{BACK}]", f"Page {number} (Total results: {len(found)})"]
    lines += [f"[{button}]" for button in result_buttons(found, number)]
    lines += [f"[{product.id}]\n{product.name}\n{product.price_text}" for product in shown]
    return "\n".join(lines)


def result_buttons(found: Sequence[Product], number: int) -> list[str]:
    """The buttons that lead to other pages of results."""
    pages = (len(found) + PER_PAGE - 1) // PER_PAGE
    return [PREVIOUS] * (number > 1) + [NEXT] * (number < pages)


def product_page(product: Product) -> str:
    """A product with its options."""
    options = [f"{name} {''.join(f'[{value}]' for value in values)}" for name, values in product.options.items()]
    buttons = [f"[{button}]" for button in (*TABS, BUY)]
    price = f"Price: {product.price_text}"
    return "\n".join((f"[{BACK}]", f"[{PREVIOUS}]", *options, product.name, price, *buttons))


def tab_page(product: Product, tab: str) -> str:
    """The text behind one of a product's tabs."""
    texts = {
        "Description": product.description,
        "Features": "\n".join(product.features),
        "Attributes": ", ".join((*product.attributes, product.kind, *product.category)),
    }
    return f"[{BACK}]\n[{PREVIOUS}]\n{texts[tab] or 'Nothing is said here.'}"


BOUGHT: Final = "Thank you for your purchase."
INVALID: Final = "Nothing happens. Use search[words], or click[button] with a button of this page."
_ACTION: Final = re.compile(r"(search|click)\[(.*)\]", re.I | re.S)


class ShoppingEpisode:
    """See `qguide.training.environment.Environment`. Only a purchase has a reward.

    As in ReAct's episodes, a search can be made from every page.
    """

    def __init__(self, catalogue: Catalogue, goal: ShoppingGoal, turns: int) -> None:
        self._catalogue, self._goal, self._turns = catalogue, goal, turns
        self._running = False
        self._taken = 0
        self._found: Sequence[Product] = ()
        self._page = 0
        self._product: Product | None = None
        self._tab = ""
        self._chosen: dict[str, str] = {}

    def reset(self) -> str:
        """The search page, with the instruction."""
        self._running, self._taken = True, 0
        return self._open_search()

    def step(self, action: str) -> StepResult:
        """Take "search[words]" or "click[button]"."""
        if not self._running:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        self._taken += 1
        parsed = _ACTION.fullmatch(action.strip())
        kind, words = (parsed[1].lower(), parsed[2].strip()) if parsed else ("", "")
        product = None if self._tab else self._product
        if kind == "click" and product is not None and words.lower() == BUY.lower():
            self._running = False
            return StepResult(BOUGHT, self._reward(product), terminated=True)
        observation = self._search(words) if kind == "search" else self._click(kind, words.lower())
        over = self._taken >= self._turns
        self._running = not over
        valid = observation is not None
        return StepResult(observation or INVALID, 0.0, False, valid=valid, truncated=over)

    def close(self) -> None:
        """Leave the shop; safe to call twice."""
        self._running = False

    def _reward(self, product: Product) -> float:
        wanted = self._catalogue.by_id[self._goal.product_id]
        return purchase_reward(product, self._goal, wanted, list(self._chosen.values()))

    def _open_search(self) -> str:
        self._found, self._page, self._product, self._tab = (), 0, None, ""
        return search_page(self._goal.instruction)

    def _search(self, words: str) -> str | None:
        if not words:
            return None
        self._found = self._catalogue.search(words)
        return self._open_results(1)

    def _open_results(self, page: int) -> str:
        self._page, self._product, self._tab = page, None, ""
        return results_page(self._found, page)

    def _open_product(self, product: Product) -> str:
        if self._product is not product:
            self._chosen = {}
        self._product, self._tab = product, ""
        return product_page(product)

    def _click(self, kind: str, button: str) -> str | None:
        """The page behind a button; None if this page has no such button."""
        if kind != "click" or not self._page:
            return None
        if button == BACK.lower():
            return self._open_search()
        if self._product is None:
            return self._click_result(button)
        if button == PREVIOUS.lower():
            return self._open_product(self._product) if self._tab else self._open_results(self._page)
        return None if self._tab else self._click_product(self._product, button)

    def _click_result(self, button: str) -> str | None:
        buttons = {name.lower() for name in result_buttons(self._found, self._page)}
        if button in buttons:
            return self._open_results(self._page + (1 if button == NEXT.lower() else -1))
        shown = results_page(self._found, self._page).lower()
        product = next((one for one in self._found if one.id.lower() == button), None)
        return self._open_product(product) if product and f"[{button}]" in shown else None

    def _click_product(self, product: Product, button: str) -> str | None:
        for tab in TABS:
            if button == tab.lower():
                self._tab = tab
                return tab_page(product, tab)
        for name, values in product.options.items():
            if button in values:
                self._chosen[name] = button
                return f"You have chosen {button}."
        return None
