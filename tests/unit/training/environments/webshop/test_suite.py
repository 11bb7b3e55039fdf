"""Pages, clicks and purchases over the generated catalogue, and WebShop's own files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError
from qguide.training.environment import StepResult
from qguide.training.environments.webshop.bundle import WEBSHOP, ShoppingSuite, WebShopConfig, build_suite
from qguide.training.environments.webshop.catalogue import Catalogue, Product, ShoppingGoal
from qguide.training.environments.webshop.episode import INVALID, ShoppingEpisode
from qguide.training.environments.webshop.files import read_goals, read_products
from qguide.training.environments.webshop.generated import (
    CATALOGUE_SIZE,
    CATALOGUES,
    generated_goal,
    generated_products,
)

PRODUCTS = generated_products()
GOAL = generated_goal(0, PRODUCTS)
WANTED = next(product for product in PRODUCTS if product.id == GOAL.product_id)


def open_shop(**options: object) -> ShoppingEpisode:
    suite = build_suite(WebShopConfig.model_validate({"count": 1, "turns": 30, **options}))
    episode = suite.make(suite.tasks[0])
    episode.reset()
    return episode


def play(episode: ShoppingEpisode, *actions: str) -> StepResult:
    for action in actions:
        result = episode.step(action)
        assert result.valid, (action, result)
    return result


def test_the_catalogue_is_always_the_same_and_its_numbers_differ() -> None:
    assert generated_products() == PRODUCTS
    assert len({product.id for product in PRODUCTS}) == len(PRODUCTS) == 300


def test_no_two_catalogues_share_a_product() -> None:
    catalogues = [generated_products(seed) for seed in range(CATALOGUES)]
    names = {product.name for products in catalogues for product in products}
    assert len(names) == CATALOGUES * CATALOGUE_SIZE
    ids = {product.id for products in catalogues for product in products}
    assert len(ids) == CATALOGUES * CATALOGUE_SIZE
    assert all(generated_goal(7, products, seed) for seed, products in enumerate(catalogues))


def test_every_solution_buys_all_that_was_asked_for() -> None:
    suite = build_suite(WebShopConfig(count=100))
    for task in suite.tasks:
        episode = suite.make(task)
        assert "Instruction:" in episode.reset()
        replies = suite.gold_replies(task)
        result = play(episode, *(WEBSHOP.chat.parse_action(reply) for reply in replies))
        assert (result.reward, result.terminated) == (1, True)
        assert WEBSHOP.is_success(result.reward, result.terminated)


def lamp(id_: str, price: float, *colors: str, attribute: str = "dimmable") -> Product:
    return Product(
        id=id_,
        name=f"Brisk Desk Lamp {id_}, Usb Port, {attribute.title()}",
        kind="home",
        category=("lighting", "desk lamps"),
        query="desk lamp",
        description="",
        features=(),
        attributes=("usb port", attribute),
        options={"color": colors},
        prices=(price,),
    )


def lamp_shop(*products: Product, turns: int = 10) -> ShoppingSuite:
    """A shop that lists these lamps in their order, and a goal: a red one below 30 dollars."""
    goal = ShoppingGoal("red", products[-1].id, "a red lamp", ("usb port", "dimmable"), ("red",), 30.0)
    catalogue = Catalogue(products)
    assert catalogue.search("usb port dimmable desk lamp") == [*products]
    return ShoppingSuite("lamps", catalogue, [goal], turns=turns)


LAMPS = (
    lamp("B0A", 29.0, "pink"),
    lamp("B0B", 31.0, "red"),
    lamp("B0C", 19.0, "white", "pink"),
    lamp("B0D", 9.0, "black"),
    lamp("B0E", 25.0, "pink", "red"),
)


def test_a_solution_opens_what_fits_by_the_results_until_one_has_the_options() -> None:
    suite = lamp_shop(*LAMPS[:3], LAMPS[4])
    assert suite.gold_replies(suite.tasks[0]) == [
        "Thought: I search for it.\nAction: search[usb port dimmable desk lamp]",
        "Thought: B0A could be it.\nAction: click[B0A]",
        "Thought: It has no red.\nAction: click[< Prev]",
        # B0B is over the price, which the results show.
        "Thought: B0C could be it.\nAction: click[B0C]",
        "Thought: It has no red.\nAction: click[< Prev]",
        "Thought: B0E could be it.\nAction: click[B0E]",
        "Thought: It should be red.\nAction: click[red]",
        "Thought: This is what I need.\nAction: click[Buy Now]",
    ]


@pytest.mark.parametrize(
    ("turns", "opened"), [(10, "ACDE"), (9, "ACE"), (8, "ACE"), (7, "AE"), (6, "AE"), (5, "E"), (4, "E")]
)
def test_a_solution_leaves_turns_for_the_purchase(turns: int, opened: str) -> None:
    suite = lamp_shop(*LAMPS, turns=turns)
    replies = suite.gold_replies(suite.tasks[0])
    clicks = [reply.partition("click[B0")[2] for reply in replies]
    assert "".join(click[:1] for click in clicks) == opened
    assert len(replies) <= turns
    episode = suite.make(suite.tasks[0])
    episode.reset()
    assert play(episode, *(WEBSHOP.chat.parse_action(reply) for reply in replies)).reward == 1


def test_options_that_were_not_chosen_cost_their_parts() -> None:
    episode = open_shop()
    play(episode, f"search[{WANTED.name}]", f"click[{WANTED.id}]")
    assert episode.step("click[buy now]").reward == pytest.approx(3 / 5)


def test_the_last_choice_of_an_option_counts() -> None:
    color, size = GOAL.options
    other = next(value for value in WANTED.options["color"] if value != color)
    clicks = [f"click[{value}]" for value in (color, size, other)]
    episode = open_shop()
    play(episode, f"search[{WANTED.name}]", f"click[{WANTED.id}]", *clicks)
    assert episode.step("click[Buy Now]").reward == pytest.approx(4 / 5)


def test_choices_stay_on_other_tabs_and_are_lost_with_the_product() -> None:
    clicks = [f"click[{value}]" for value in GOAL.options]
    for left, parts in (("click[Features]", 5), ("click[< Prev]", 3)):
        episode = open_shop()
        play(episode, f"search[{WANTED.name}]", f"click[{WANTED.id}]", *clicks, left)
        play(episode, "click[< Prev]" if parts == 5 else f"click[{WANTED.id}]")
        assert episode.step("click[Buy Now]").reward == pytest.approx(parts / 5)


def test_results_are_shown_ten_a_page() -> None:
    episode = open_shop()
    first = play(episode, f"search[{WANTED.query}]").observation
    assert "Page 1 (Total results: 50)\n[Next >]\n[B0" in first
    assert first.count("[B0") == 10
    second = play(episode, "click[Next >]").observation
    assert "Page 2 (Total results: 50)\n[< Prev]\n[Next >]" in second
    assert play(episode, "click[< Prev]").observation == first
    last = play(episode, *["click[Next >]"] * 4).observation
    assert "[Next >]" not in last
    assert "Instruction:" in play(episode, "click[Back to Search]").observation


def test_tabs_say_what_the_page_does_not() -> None:
    episode = open_shop()
    page = play(episode, f"search[{WANTED.name}]", f"click[{WANTED.id}]").observation
    assert WANTED.attributes[2] not in page
    assert WANTED.attributes[2] in play(episode, "click[Description]").observation
    play(episode, "click[< Prev]")
    assert WANTED.attributes[2] in play(episode, "click[Attributes]").observation


def test_only_buttons_of_the_page_can_be_clicked() -> None:
    episode = open_shop()
    for action in ("click[Buy Now]", "click[Back to Search]", "search[]", "buy", ""):
        assert episode.step(action).observation == INVALID
    play(episode, f"search[{WANTED.query}]", "click[Next >]")
    for action in ("click[Buy Now]", "click[red]", "click[B000000000]"):
        assert not episode.step(action).valid
    play(episode, f"search[{WANTED.name}]", f"click[{WANTED.id}]", "click[Features]")
    for action in ("click[Buy Now]", "click[Description]", f"click[{GOAL.options[0]}]"):
        assert not episode.step(action).valid


def test_every_button_that_a_page_shows_can_be_clicked() -> None:
    suite = build_suite(WebShopConfig(count=1, turns=30))
    routes: tuple[tuple[str, ...], ...] = (
        (),
        (f"search[{WANTED.query}]",),
        (f"search[{WANTED.query}]", "click[Next >]"),
        (f"search[{WANTED.name}]", f"click[{WANTED.id}]"),
        (f"search[{WANTED.name}]", f"click[{WANTED.id}]", "click[Features]"),
    )
    for visited in routes:
        episode = suite.make(suite.tasks[0])
        page = episode.reset()
        for action in visited:
            page = episode.step(action).observation
        buttons = re.findall(r"\[(.+?)\]", page)
        assert bool(buttons) == bool(visited)
        for button in buttons:
            again = suite.make(suite.tasks[0])
            again.reset()
            play(again, *visited, f"click[{button}]")


def test_a_product_of_another_page_cannot_be_clicked() -> None:
    episode = open_shop()
    first = play(episode, f"search[{WANTED.query}]").observation
    shown = next(product for product in PRODUCTS if f"[{product.id}]" in first)
    play(episode, "click[Next >]")
    assert not episode.step(f"click[{shown.id}]").valid


def test_an_episode_is_cut_off_after_its_turns() -> None:
    episode = open_shop(turns=2)
    results = [episode.step("search[lamp]") for _ in range(2)]
    assert [(result.truncated, result.terminated) for result in results] == [(False, False), (True, False)]


def entry(number: int, **changes: object) -> dict[str, Any]:
    return {
        "asin": f"B00000000{number}",
        "name": f"Mug {number}",
        "category": "home",
        "query": " Mugs ",
        "product_category": "Home › Kitchen › Mugs",
        "full_description": None,
        "small_description": "Holds a lot",
        "pricing": "$9.98$1,015.50",
        "customization_options": {"Color": [{"value": " Red/Blue ", "image": None}], "Size": None},
        "images": ["x"],
        **changes,
    }


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A catalogue in the form of WebShop's files."""
    products = [
        entry(1),
        entry(2, pricing="", customization_options="", small_description=["a", "b"]),
        entry(2, name="the same number again"),
        entry(3, asin="nan"),
    ]
    wishes = [
        {
            "asin": "B000000001",
            "instruction": "i need a red mug.",
            "instruction_attributes": ["hand made"],
            "instruction_options": ["red | blue"],
        },
        {"instruction": "any", "instruction_attributes": [], "instruction_options": []},
    ]
    more = [{"instruction": "a mug", "instruction_attributes": ["a"], "instruction_options": {"size": "l"}}]
    texts = {
        "products": products,
        "attributes": {"B000000001": {"attributes": ["hand made"], "instruction": "x"}},
        "instructions": {"B000000001": wishes, "B000000002": more, "B999999999": wishes},
    }
    for name, value in texts.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return {name: tmp_path / f"{name}.json" for name in texts}


def test_webshops_files_are_read(files: dict[str, Path]) -> None:
    first, second = read_products(files["products"], files["attributes"])
    assert (first.kind, first.category) == ("home", ("Home", "Kitchen", "Mugs"))
    assert (first.query, first.features, first.attributes) == ("mugs", ("Holds a lot",), ("hand made",))
    assert first.options == {"color": ("red | blue",)}
    assert first.prices == (9.98, 1015.50)
    assert (second.name, second.prices, second.options) == ("Mug 2", (100.0,), {})
    goals = {goal.id: goal for goal in read_goals(files["instructions"], [first, second])}
    assert goals.keys() == {"B000000001/0", "B000000002/0"}
    goal = goals["B000000001/0"]
    assert goal.price_limit > first.price
    assert goal.instruction == (f"i need a red mug, and price lower than {goal.price_limit:.2f} dollars")
    assert goals["B000000002/0"].options == ("l",)


def test_a_catalogue_of_ones_own_is_played(files: dict[str, Path]) -> None:
    suite = build_suite(WebShopConfig.model_validate(files))
    task = next(task for task in suite.tasks if task.id == "B000000001/0")
    episode = suite.make(task)
    episode.reset()
    replies = [WEBSHOP.chat.parse_action(reply) for reply in suite.gold_replies(task)]
    assert play(episode, *replies).reward == 1


def test_missing_and_malformed_files_are_named(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"products .*products\.json, attributes None .*instructions None"):
        WebShopConfig(products=files["products"])
    with pytest.raises(ConfigError, match=r"attributes = .*none"):
        read_products(files["products"], tmp_path / "none")
    with pytest.raises(ConfigError, match="products = "):
        read_products(files["instructions"], files["attributes"])
    with pytest.raises(ConfigError, match=r"instructions = .*instructions\.json .* 0 products"):
        read_goals(files["instructions"], [])
