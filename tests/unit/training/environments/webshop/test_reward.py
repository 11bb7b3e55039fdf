"""The reward of a purchase on worked cases, and what recorded purchases say about it."""

import json
import lzma
import re
from dataclasses import replace
from pathlib import Path

import pytest

from qguide.training.environments.webshop.catalogue import Product, ShoppingGoal
from qguide.training.environments.webshop.episode import purchase_reward, type_match
from qguide.training.environments.webshop.files import parse_prices

MUG = Product(
    id="B000000001",
    name="Alvora Ceramic Mug with Lid",
    kind="home",
    category=("Home", "Kitchen", "Mugs"),
    query="mugs",
    description="It is dishwasher safe.",
    features=("Lead Free glaze",),
    attributes=("hand made",),
    options={"color": ("dark blue", "red"), "size": ("12 oz", "16 oz")},
    prices=(19.99,),
)
GOAL = ShoppingGoal("g", MUG.id, "a mug", ("hand made", "dishwasher safe"), ("dark blue", "12 oz"), price_limit=20)


@pytest.mark.parametrize(
    ("chosen", "parts"),
    [
        (("dark blue", "12 oz"), 5),
        (("12 oz",), 4),
        ((), 3),
        (("red", "16 oz"), 3),
        (("blue", "oz 12"), 5),  # colours by their name, words in any order
    ],
)
def test_each_wish_that_is_met_counts_the_same(chosen: tuple[str, ...], parts: int) -> None:
    assert purchase_reward(MUG, GOAL, MUG, chosen) == pytest.approx(parts / 5)


def test_a_price_above_the_limit_costs_one_part() -> None:
    dear = replace(MUG, prices=(19.0, 23.0))
    assert dear.price_text == "$19 to $23"
    assert replace(MUG, prices=(12345.67, 9.5)).price_text == "$12345.67 to $9.50"
    assert purchase_reward(dear, GOAL, MUG, GOAL.options) == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("wish", "met"),
    [
        ("hand made", True),
        ("made by hand", True),  # all words of the shorter text are there
        ("lead free", True),
        ("dishwasher safe", True),
        ("ceramic", True),
        ("oven safe", False),
    ],
)
def test_attributes_are_found_in_all_texts_of_a_product(wish: str, met: bool) -> None:
    goal = replace(GOAL, attributes=(wish,), options=())
    assert purchase_reward(MUG, goal, MUG, ()) == pytest.approx((1 + met) / 2)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"name": "Brisk Mug"}, 1.0),  # the same search
        ({"name": "Brisk Mug", "query": "cups"}, 1.0),  # two categories in common
        ({"name": "Brisk Mug", "query": "cups", "category": ("Home", "Cups")}, 1.0),  # 1 of 4 words
        ({"name": "Brisk Soap", "query": "cups"}, 0.0),
    ],
)
def test_the_type_is_told_by_search_category_and_name(changes: dict[str, object], match: float) -> None:
    assert type_match(replace(MUG, **changes), MUG) == match  # type: ignore[arg-type]


def test_few_common_words_are_half_a_match_or_hardly_one() -> None:
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"  # twelve
    other = replace(MUG, query="cups", category=("x",), name="Alpha")
    assert type_match(other, replace(MUG, name="alpha beta gamma delta epsilon")) == 0.5
    assert type_match(other, replace(MUG, name=words)) == 0.1


def test_a_department_in_common_is_no_category_in_common() -> None:
    words = "alpha beta gamma delta epsilon"
    wanted = replace(MUG, name=words, category=("Women", "Shoes"), kind="fashion")
    other = replace(MUG, name="Alpha", category=("Women", "Coats"), kind="fashion", query="coats")
    assert type_match(other, wanted) == 0.5
    assert type_match(replace(other, category=("Women", "Shoes", "Boots")), wanted) == 1.0


def test_recorded_rewards_have_the_formulas_form(recorded_shopping_episodes: Path) -> None:
    """Check the form of the formula only; `purchase_reward` is not run on these episodes.

    Their goals are not in the data, but the limit of the price is. A reward of 1 needs a price
    within the limit, and any reward is type × (parts met) / (parts).
    """
    checked = agree = 0
    for episode in json.loads(lzma.decompress(recorded_shopping_episodes.read_bytes())):
        limit = re.search(r"price lower than ([\d.]+)", episode["instruction"])
        prices: tuple[float, ...] = ()
        bought = False
        for action, observation in episode["steps"]:
            if shown := re.search(r"^Price: (.*?) *$", observation, re.M):
                prices = parse_prices(shown[1])
            bought |= action == "click[Buy Now]" and observation[:10] in ("", "Your score")
        if limit is None or not bought or not prices:
            continue
        fits = {price <= float(limit[1]) for price in (min(prices), max(prices))}
        if len(fits) == 2:  # WebShop draws a price of the range, which is not recorded
            continue
        possible = {0.0} | {
            match * (met + max(fits)) / (wishes + 1)
            for match in (1.0, 0.5, 0.1)
            for wishes in range(1, 9)
            for met in range(wishes + 1)
        }
        checked += 1
        agree += any(abs(episode["reward"] - value) < 1e-3 for value in possible)
    assert (checked, agree) == (444, 444)
