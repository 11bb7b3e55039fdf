"""Properties of every generated game, whatever actions are taken."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.game.generator import generate_game

SEEDS = st.integers(min_value=0, max_value=10_000)


def walk(seed: int, steps: int = 25) -> PythonEnvironment:
    """An unfinished episode after a random walk."""
    rng = random.Random(seed)
    environment = PythonEnvironment(generate_game(seed))
    environment.reset()
    for _ in range(steps):
        verbs = {action.split()[0] for action in environment.admissible_actions()}
        verb = rng.choice(sorted(verbs))
        actions = [a for a in environment.admissible_actions() if a.split()[0] == verb]
        if environment.step(rng.choice(actions)).terminated:
            environment.reset()
    return environment


@settings(max_examples=40)
@given(seed=SEEDS, choice=st.randoms(use_true_random=False))
def test_every_admissible_action_is_valid(seed: int, choice: random.Random) -> None:
    environment = walk(seed)
    assert environment.step(choice.choice(environment.admissible_actions())).valid


@settings(max_examples=40)
@given(seed=SEEDS, other_seed=SEEDS)
def test_an_action_from_elsewhere_is_valid_exactly_where_it_is_admissible(seed: int, other_seed: int) -> None:
    environment, elsewhere = walk(seed), walk(other_seed)
    for action in elsewhere.admissible_actions():
        if environment.won:
            break
        admissible = action in environment.admissible_actions()
        assert environment.step(action).valid == admissible


@settings(max_examples=40)
@given(seed=SEEDS)
def test_an_invalid_action_leaves_everything_as_it_was(seed: int) -> None:
    environment = walk(seed)
    before = environment.admissible_actions(), environment.step("look").observation
    assert not environment.step("take everything from everywhere").valid
    assert (environment.admissible_actions(), environment.step("look").observation) == before
