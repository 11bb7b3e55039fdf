"""The shop's pages as text; what stands in brackets can be clicked."""

from collections.abc import Sequence
from typing import Final

from qguide.training.environments.webshop.catalogue import Product

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
    options = [
        f"{name} {''.join(f'[{value}]' for value in values)}"
        for name, values in product.options.items()
    ]
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
