"""The expert plays from texts alone, and its thoughts announce each action."""

from pathlib import Path
from random import Random

import pytest

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.alfworld.bundle import AlfWorldSuite, build_alfworld_suite, build_generated_suite
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert
from qguide.training.trajectory import parse_action

MAX_STEPS = 40
LEAST_WIN_RATE = 0.97
KITCHEN = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 2,"
    " a cabinet 1, a countertop 1, a diningtable 1, a fridge 1, a microwave 1, and a sinkbasin 1."
)
BEDROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a bed 1,"
    " a desk 2, a desk 1, a drawer 1, and a sidetable 1."
)

Script = list[tuple[str, str]]
"""An observation as the agent reads it, and the action that the expert takes on it."""

HEAT: Script = [
    (f"{KITCHEN}\n\nYour task is to: put a hot apple in cabinet.", "go to diningtable 1"),
    ("You arrive at loc 4. On the diningtable 1, you see a mug 1.", "go to countertop 1"),
    ("You arrive at loc 3. On the countertop 1, you see nothing.", "go to fridge 1"),
    ("You arrive at loc 5. The fridge 1 is closed.", "open fridge 1"),
    (
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1, and a apple 2.",
        "take apple 2 from fridge 1",
    ),
    ("You pick up the apple 2 from the fridge 1.", "go to microwave 1"),
    ("You arrive at loc 6. The microwave 1 is closed.", "heat apple 2 with microwave 1"),
    ("You heat the apple 2 using the microwave 1.", "go to cabinet 1"),
    ("You arrive at loc 1. The cabinet 1 is closed.", "open cabinet 1"),
    ("You open the cabinet 1. The cabinet 1 is open. In it, you see nothing.", "put apple 2 in/on cabinet 1"),
]
CLEAN_IN_PLACE: Script = [
    (f"{KITCHEN}\n\nYour task is to: clean some ladle and put it in sinkbasin.", ""),
    ("You arrive at loc 4. On the sinkbasin 1, you see a ladle 1.", "take ladle 1 from sinkbasin 1"),
    ("You pick up the ladle 1 from the sinkbasin 1.", "clean ladle 1 with sinkbasin 1"),
    ("You clean the ladle 1 using the sinkbasin 1.", "put ladle 1 in/on sinkbasin 1"),
]
COOL: Script = [
    (f"{KITCHEN}\n\nYour task is to: put a cool mug in diningtable.", ""),
    ("You arrive at loc 4. On the countertop 1, you see a mug 1.", "take mug 1 from countertop 1"),
    ("You pick up the mug 1 from the countertop 1.", "go to fridge 1"),
    ("You arrive at loc 5. The fridge 1 is closed.", "cool mug 1 with fridge 1"),
    ("You cool the mug 1 using the fridge 1.", "go to diningtable 1"),
]
SIMPLE: Script = [
    (f"{BEDROOM}\n\nYour task is to: put some pencil on desk.", "go to sidetable 1"),
    ("You arrive at loc 4. On the sidetable 1, you see a pen 1.", "go to drawer 1"),
    ("Nothing happens.", "examine drawer 1"),
    ("The drawer 1 is closed.", "open drawer 1"),
    ("You open the drawer 1. The drawer 1 is open. In it, you see a pencil 1.", "take pencil 1 from drawer 1"),
    ("You pick up the pencil 1 from the drawer 1.", "go to desk 1"),
]
LAMP_SEEN_BEFORE: Script = [
    (f"{BEDROOM}\n\nYour task is to: examine the cd with the desklamp.", "go to sidetable 1"),
    ("You arrive at loc 4. On the sidetable 1, you see a desklamp 1.", "go to desk 2"),
    ("You arrive at loc 1. On the desk 2, you see a cd 2, and a cd 3.", "take cd 3 from desk 2"),
    ("You pick up the cd 3 from the desk 2.", "go to sidetable 1"),
    ("You arrive at loc 4. On the sidetable 1, you see a desklamp 1.", "use desklamp 1"),
]
LAMP_NOT_SEEN_YET: Script = [
    (f"{BEDROOM}\n\nYour task is to: look at cd under the desklamp.", "go to sidetable 1"),
    ("You arrive at loc 4. On the sidetable 1, you see a cd 1.", "take cd 1 from sidetable 1"),
    ("You pick up the cd 1 from the sidetable 1.", "go to desk 2"),
    ("You arrive at loc 1. On the desk 2, you see nothing.", "go to desk 1"),
    ("You arrive at loc 2. On the desk 1, you see a desklamp 2.", "use desklamp 2"),
]
TWO: Script = [
    (f"{BEDROOM}\n\nYour task is to: put two cd in bed.", "go to sidetable 1"),
    ("You arrive at loc 4. On the sidetable 1, you see nothing.", "go to desk 2"),
    ("You arrive at loc 2. On the desk 2, you see a cd 1, and a cd 3.", "take cd 3 from desk 2"),
    ("You pick up the cd 3 from the desk 2.", "go to bed 1"),
    ("You arrive at loc 3. On the bed 1, you see a book 1.", "put cd 3 in/on bed 1"),
    ("You put the cd 3 in/on the bed 1.", "go to desk 2"),
    ("You arrive at loc 2. On the desk 2, you see a cd 1.", "take cd 1 from desk 2"),
    ("You pick up the cd 1 from the desk 2.", "go to bed 1"),
]
TWO_OF_WHICH_ONE_IS_THERE: Script = [
    (f"{BEDROOM}\n\nYour task is to: find two cd and put them in desk.", "go to sidetable 1"),
    ("You arrive at loc 4. On the sidetable 1, you see nothing.", "go to desk 2"),
    ("You arrive at loc 2. On the desk 2, you see nothing.", "go to desk 1"),
    ("You arrive at loc 5. On the desk 1, you see a cd 1.", "go to drawer 1"),
    ("You arrive at loc 6. On the drawer 1, you see a cd 2.", "take cd 2 from drawer 1"),
    ("You pick up the cd 2 from the drawer 1.", "go to desk 1"),
]


@pytest.mark.parametrize(
    "script", [HEAT, CLEAN_IN_PLACE, COOL, SIMPLE, LAMP_SEEN_BEFORE, LAMP_NOT_SEEN_YET, TWO, TWO_OF_WHICH_ONE_IS_THERE]
)
def test_each_goal_is_reached_step_by_step(script: Script) -> None:
    expert = AlfWorldExpert()
    for observation, expected in script:
        action = parse_action(expert.reply(observation))
        assert action == (expected or action)


def test_the_first_thought_states_need_plan_and_first_place() -> None:
    assert AlfWorldExpert().reply(HEAT[0][0]) == (
        "Thought: cabinet 1 needs one hot apple. I search diningtable, countertop, fridge,"
        " sinkbasin, microwave. First is diningtable 1.\nAction: go to diningtable 1"
    )


def test_every_thought_says_what_is_needed() -> None:
    expert = AlfWorldExpert()
    for observation, _ in TWO:
        assert " needs two cd. " in expert.reply(observation)


def test_a_thought_begins_with_what_was_seen() -> None:
    expert = AlfWorldExpert()
    thoughts = [expert.reply(observation).split("\n")[0] for observation, _ in SIMPLE]
    assert thoughts[1] == "Thought: Not here. desk 1 needs one pencil. Next is drawer 1."
    assert thoughts[4] == "Thought: pencil 1 is here. desk 1 needs one pencil. I take it."
    assert thoughts[5] == "Thought: I hold pencil 1. desk 1 needs one pencil. It goes to desk 1."


def test_after_a_mistake_the_expert_goes_on_with_what_it_wanted() -> None:
    for seed in range(20):
        expert = AlfWorldExpert()
        expert.reply(SIMPLE[0][0])
        mistaken = expert.deviate(Random(seed))
        assert mistaken.startswith("Thought: Not here. desk 1 needs one pencil. Next is ")
        place = parse_action(mistaken).removeprefix("go to ")
        seen = f"You arrive at loc 1. On the {place}, you see a pencil 1."
        assert parse_action(expert.reply(seen)) == f"take pencil 1 from {place}"


def test_every_name_in_an_action_is_in_the_thought_or_the_observation_before() -> None:
    for script in (HEAT, SIMPLE, LAMP_SEEN_BEFORE, TWO):
        expert = AlfWorldExpert()
        for observation, _ in script:
            thought, action = expert.reply(observation).split("\nAction: ")
            words = action.replace(" from ", " with ").split(" ", 1)[1].removeprefix("to ")
            for name in words.replace(" in/on ", " with ").split(" with "):
                assert name in f"{thought} {observation}"


def test_the_same_history_gets_the_same_words() -> None:
    first, second = AlfWorldExpert(), AlfWorldExpert()
    for observation, _ in TWO:
        assert first.reply(observation) == second.reply(observation)


def test_a_fruitless_search_begins_anew() -> None:
    room = "Looking quickly around you, you see a desk 1, and a shelf 1."
    expert = AlfWorldExpert()
    observation = f"{room}\n\nYour task is to: put some cup on shelf."
    visited = []
    for _ in range(4):
        visited.append(parse_action(expert.reply(observation)).removeprefix("go to "))
        observation = f"You arrive at loc 1. On the {visited[-1]}, you see nothing."
    assert visited == ["desk 1", "shelf 1", "desk 1", "shelf 1"]


def test_a_place_that_shows_nothing_is_given_up() -> None:
    expert = AlfWorldExpert()
    expert.reply(SIMPLE[0][0])
    assert parse_action(expert.reply("Nothing happens.")) == "examine sidetable 1"
    assert parse_action(expert.reply("Nothing happens.")) == "go to drawer 1"


def test_a_target_that_takes_nothing_is_exchanged() -> None:
    expert = AlfWorldExpert()
    for observation, _ in SIMPLE:
        expert.reply(observation)
    arrived = "You arrive at loc 2. On the desk 1, you see nothing."
    assert parse_action(expert.reply(arrived)) == "put pencil 1 in/on desk 1"
    assert parse_action(expert.reply("Nothing happens.")) == "go to desk 2"


def test_a_lamp_that_does_not_work_is_given_up() -> None:
    expert = AlfWorldExpert()
    for observation, _ in LAMP_NOT_SEEN_YET:
        expert.reply(observation)
    assert parse_action(expert.reply("Nothing happens.")) == "go to bed 1"


def test_a_door_that_does_not_open_is_given_up() -> None:
    expert = AlfWorldExpert()
    for observation, _ in HEAT[:4]:
        expert.reply(observation)
    assert parse_action(expert.reply("Nothing happens.")) == "go to sinkbasin 1"


def test_what_another_agent_cooled_must_be_heated_again() -> None:
    expert = AlfWorldExpert()
    for observation, _ in HEAT[:7]:
        expert.reply(observation)
    expert.reply("You heat the apple 2 using the microwave 1.")
    expert.follow("Thought: Back.\nAction: cool apple 2 with fridge 1")
    again = parse_action(expert.reply("You cool the apple 2 using the fridge 1."))
    assert again == "heat apple 2 with microwave 1"


def test_it_begins_from_whatever_another_agent_began_with() -> None:
    expert = AlfWorldExpert()
    first = expert.reply(SIMPLE[0][0])
    expert.follow("Thought: What do I carry?\nAction: inventory")
    assert expert.reply("You are not carrying anything.") == first


def test_it_goes_on_from_what_another_agent_did() -> None:
    expert = AlfWorldExpert()
    expert.reply(SIMPLE[0][0])
    expert.follow("Thought: I like the bed.\nAction: go to bed 1")
    seen = "You arrive at loc 3. On the bed 1, you see a book 1, and a pencil 2."
    assert parse_action(expert.reply(seen)) == "take pencil 2 from bed 1"
    expert.follow("Thought: A book!\nAction: take book 1 from bed 1")
    taken = "You pick up the book 1 from the bed 1."
    assert parse_action(expert.reply(taken)) == "put book 1 in/on bed 1"
    put = "You put the book 1 in/on the bed 1."
    assert parse_action(expert.reply(put)) == "take pencil 2 from bed 1"


@pytest.mark.parametrize("forgetful", [False, True])
def test_only_a_forgetful_expert_does_not_come_back_to_what_another_overlooked(forgetful: bool) -> None:
    expert = AlfWorldExpert(forgetful=forgetful)
    expert.reply(SIMPLE[0][0])
    expert.follow("Thought: I like the bed.\nAction: go to bed 1")
    seen = "You arrive at loc 3. On the bed 1, you see a pencil 2."
    assert parse_action(expert.reply(seen)) == "take pencil 2 from bed 1"
    expert.follow("Thought: Not here.\nAction: go to desk 1")
    onwards = parse_action(expert.reply("You arrive at loc 1. On the desk 1, you see nothing."))
    assert onwards.startswith("go to ")
    assert (onwards == "go to bed 1") == (not forgetful)


def test_anothers_failure_changes_nothing_that_is_known() -> None:
    expert = AlfWorldExpert()
    for observation, _ in LAMP_SEEN_BEFORE[:2]:
        expert.reply(observation)
    wanted = expert.reply("You arrive at loc 1. On the desk 2, you see a cd 3.")
    expert.follow("Thought: …\nAction: take cd 3 from desk 1")
    assert expert.reply("Nothing happens.") == wanted


def test_a_text_without_a_task_is_refused() -> None:
    with pytest.raises(EnvironmentFailureError, match="no ALFWorld task"):
        AlfWorldExpert().reply("You are in the middle of a room.")


def play(environment: PythonEnvironment) -> float:
    """The outcome of one episode."""
    expert, observation = AlfWorldExpert(), environment.reset()
    for _ in range(MAX_STEPS):
        result = environment.step(parse_action(expert.reply(observation)))
        if result.terminated:
            return result.reward
        observation = result.observation
    return 0.0


def win_rate(suite: AlfWorldSuite) -> float:
    """The share of a suite that the expert wins in the Python engine."""
    rewards = []
    for task in suite.tasks:
        environment = suite.make(task)
        assert isinstance(environment, PythonEnvironment)
        rewards.append(play(environment))
    return sum(rewards) / len(rewards)


def test_real_games_that_were_never_counted_are_won(real_games_dir: Path) -> None:
    assert win_rate(build_alfworld_suite(real_games_dir)) >= LEAST_WIN_RATE


def test_generated_games_are_won() -> None:
    assert win_rate(build_generated_suite(first_seed=0, count=100)) >= LEAST_WIN_RATE
