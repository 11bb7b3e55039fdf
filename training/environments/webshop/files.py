"""WebShop's own files: its products, their attributes, and the instructions that people wrote."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, TypeAdapter

from qguide.qnet.errors import ConfigError
from qguide.training.environments.support.benchmark_files import read_entries
from qguide.training.environments.webshop.catalogue import Product, ShoppingGoal

_NO_PRICE: Final = (100.0,)
"""WebShop's price of a product that has none."""

_NO_LIMIT: Final = 1_000_000.0
_LIMITS: Final = tuple(10.0 * tens for tens in range(1, 100))
_SHUFFLE_SEED: Final = 233
"""WebShop orders its goals by this seed; its splits are parts of that order."""

_ID_LENGTH: Final = 10
_FILES: Final = "one of WebShop's files"


def _as_lines(value: object) -> object:
    return [value] if isinstance(value, str) else value or []


class _ProductEntry(BaseModel, frozen=True, extra="ignore"):
    """One product of `items_shuffle.json`."""

    asin: str
    name: str
    category: str
    query: str
    product_category: str
    full_description: str | None = ""
    small_description: Annotated[tuple[str, ...], BeforeValidator(_as_lines)] = ()
    pricing: str | None = None
    customization_options: dict[str, list[dict[str, Any]] | None] | str | None = None


class _AttributesEntry(BaseModel, frozen=True, extra="ignore"):
    """One product of `items_ins_v2.json`."""

    attributes: tuple[str, ...] = ()


class _InstructionEntry(BaseModel, frozen=True, extra="ignore"):
    """One instruction of `items_human_ins.json`."""

    instruction: str
    instruction_attributes: tuple[str, ...]
    instruction_options: tuple[str, ...] | dict[str, str] = ()


def read_products(products: Path, attributes: Path) -> list[Product]:
    """The products of WebShop's files, each id once."""
    entries = read_entries(products, "products", TypeAdapter(list[_ProductEntry]), _FILES)
    known = read_entries(attributes, "attributes", TypeAdapter(dict[str, _AttributesEntry]), _FILES)
    unique = {entry.asin: entry for entry in reversed(entries) if len(entry.asin) == _ID_LENGTH}
    kept = [entry for entry in entries if unique.get(entry.asin) is entry]
    return [
        Product(
            id=entry.asin,
            name=entry.name,
            kind=entry.category,
            category=tuple(part.strip() for part in entry.product_category.split("›")),
            query=entry.query.lower().strip(),
            description=entry.full_description or "",
            features=entry.small_description,
            attributes=known.get(entry.asin, _AttributesEntry()).attributes,
            options=_options(entry.customization_options),
            prices=parse_prices(entry.pricing),
        )
        for entry in kept
    ]


def read_goals(path: Path, products: Sequence[Product]) -> list[ShoppingGoal]:
    """The instructions for these products, in WebShop's order.

    WebShop draws the limit of the price anew at each start; here it depends on the goal alone.
    """
    entries = read_entries(path, "instructions", TypeAdapter(dict[str, list[_InstructionEntry]]), _FILES)
    goals = [goal for product in products for goal in _goals(product, entries.get(product.id, ()))]
    if not goals:
        raise ConfigError(
            f"instructions = {path} has none for the {len(products)} products; name the file that belongs to them"
        )
    Random(_SHUFFLE_SEED).shuffle(goals)
    return goals


def _options(customization: Mapping[str, list[dict[str, Any]] | None] | str | None) -> dict[str, tuple[str, ...]]:
    if not isinstance(customization, Mapping):
        return {}
    return {
        name.lower(): tuple(str(v["value"]).strip().replace("/", " | ").lower() for v in values)
        for name, values in customization.items()
        if values
    }


def parse_prices(text: str | None) -> tuple[float, ...]:
    """The price in a text such as "$9.98 to $15"; WebShop's price of a product without one."""
    found = re.findall(r"\$([\d,]*\.?\d+)", text or "")
    return tuple(float(price.replace(",", "")) for price in found[:2]) or _NO_PRICE


def _goals(product: Product, entries: Sequence[_InstructionEntry]) -> Iterator[ShoppingGoal]:
    for number, entry in enumerate(entries):
        if not entry.instruction_attributes:
            continue
        options = entry.instruction_options
        goal_id = f"{product.id}/{number}"
        limit = _price_limit(product.price, Random(goal_id))
        text = entry.instruction.strip(".")
        if limit < _NO_LIMIT:
            text = f"{text}, and price lower than {limit:.2f} dollars"
        chosen = tuple(options.values()) if isinstance(options, dict) else options
        yield ShoppingGoal(goal_id, product.id, text, entry.instruction_attributes, chosen, limit)


def _price_limit(price: float, rng: Random) -> float:
    above = [limit for limit in _LIMITS if limit > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else _NO_LIMIT
