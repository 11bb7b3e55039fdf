"""Every chat template renders, and what a model saw stays a prefix of what it sees next."""

from functools import cache
from time import strftime
from typing import Any

import pytest

from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import History, Message, ScoreRequest, ToolCall
from qguide.training.jobs.sft import Demonstration, sft_sequence
from qguide.training.optimization.packed_trees import pack_tree
from tests.support.chat_templates import OWN_TEMPLATES, tokenizer_of, trl_templates, trl_training_templates
from tests.support.labels import labelled
from tests.support.tiny_models import config_of

FAMILIES = trl_templates() | OWN_TEMPLATES
TWINS = trl_training_templates()
# Nothing in these templates depends on what comes later, so they print what the model saw.
AS_PRINTED = ("lfm2", "llama3_2", "phi3", "qwen2_5", "qwen3", "gemma3", "cohere2", "like phi 4")
EVERY = [
    pytest.param(
        family,
        template,
        control,
        id=f"{family}{'' if control else ' as text'}",
        marks=[] if control or family in AS_PRINTED else [pytest.mark.slow],
    )
    for family, template in (FAMILIES | TWINS).items()
    for control in (True, False)
    if control or family not in TWINS
]

LOOK = ToolCall("look", '{"where": "desk 1", "times": 2}')
SEE = ToolCall("see", "{}")


def says(text: str, *calls: ToolCall) -> Message:
    return Message("assistant", text, calls)


def user(text: str) -> Message:
    return Message("user", text)


def tool(text: str) -> Message:
    return Message("tool", text)


SYSTEM = Message("system", "Be brief.")
GAME = (user("find it"), says("open drawer 1"), user("It is open."), says("take pen 2"), user("Ok."))
THOUGHTFUL = says("<think>\nnowhere else\n</think>\n\nopen drawer 1")
CONVERSATIONS: dict[str, History] = {
    "a game": GAME,
    "a game with a system message": (SYSTEM, *GAME),
    "a developer's message": (Message("developer", "Be brief."), *GAME),
    "a system message alone": (SYSTEM, says("hello"), user("find it"), says("open drawer 1")),
    "thoughts": (user("find it"), THOUGHTFUL, user("It is open."), THOUGHTFUL, user("Ok.")),
    "calls": (
        *(SYSTEM, user("find it"), says("", LOOK), tool("a pen 2"), says("I see.", LOOK)),
        *(tool("a mug 1"), says("done"), user("more"), says("bye"), user("Ok.")),
    ),
    "several calls": (
        *(user("find it"), says("", LOOK, SEE), tool("a pen 2"), tool("a mug 1")),
        *(says("Both.", LOOK, LOOK), tool("a cup 3"), tool("a key 4"), says("done"), user("Ok.")),
    ),
    "roles in any order": (
        *(user("first"), user("second"), says("one"), says("two"), user("third"), SYSTEM),
        *(user("fourth"), says("three"), tool("a result"), user("fifth"), says(""), user("Ok.")),
    ),
    "an action at the start": (says("look"), user("a desk 1"), says("go to desk 1")),
}


@cache
def renderer_of(family: str, template: str, control: bool = True) -> Renderer:
    return Renderer(tokenizer_of(family, template, control=control))


def text_of(renderer: Renderer, token_ids: list[int]) -> str:
    return str(renderer.tokenizer.decode(token_ids))


@pytest.mark.parametrize(("family", "template", "control"), EVERY)
def test_a_state_and_its_action_begin_every_later_state(family: str, template: str, control: bool) -> None:
    renderer = renderer_of(family, template, control)
    for history in CONVERSATIONS.values():
        states = [renderer.encode_state(history[:end]) for end in range(len(history) + 1)]
        episodes = [renderer.encode_episode(history[:end]) for end in range(len(history) + 1)]
        for number, message in enumerate(history):
            if message.role != "assistant":
                continue
            state = states[number]
            acted = state.token_ids + renderer.encode_candidate(message)
            spans = [*state.action_spans, (len(state.token_ids), len(acted))]
            for end in range(number + 1, len(history) + 1):
                later, episode = states[end], episodes[end]
                assert later.token_ids[: len(acted)] == acted
                assert later.action_spans[: len(spans)] == spans
                assert episode.token_ids == later.token_ids[: len(episode.token_ids)]
                assert episode.action_spans == later.action_spans


@pytest.mark.parametrize(("family", "template", "control"), EVERY)
def test_everything_that_was_said_is_in_the_tokens(family: str, template: str, control: bool) -> None:
    renderer = renderer_of(family, template, control)
    for name, history in CONVERSATIONS.items():
        text = text_of(renderer, renderer.encode_history(history))
        at = 0
        for message in history:
            if name == "roles in any order" and message == SYSTEM:
                continue  # a template may print it before the actions
            # A template may print a call before or behind what is said with it.
            start = at
            for words in [message.content] if message != THOUGHTFUL else ["open drawer 1"]:
                assert text.find(words, at) >= 0, (name, words, text)
                at = text.index(words, at)
            for call in message.tool_calls:
                for word in [call.name] + (["where", "desk 1"] if call == LOOK else []):
                    assert word in text[start:], (name, word, text)


@pytest.mark.parametrize(("family", "template", "control"), EVERY)
def test_sft_q_training_and_serving_make_the_same_tokens(family: str, template: str, control: bool) -> None:
    renderer = renderer_of(family, template, control)
    history, action = CONVERSATIONS["calls"][:4], CONVERSATIONS["calls"][4]
    served = renderer.encode_history(history) + renderer.encode_candidate(action)
    cloned = sft_sequence(renderer, Demonstration((*history, action)), observation_weight=0.0)
    label = labelled((*history, action), labels={1: 0.5, 2: 1.0})
    [tree] = pack_tree(renderer, label, loss_on="last", min_label_margin=0.1, max_length=9999, max_tokens=9999)
    assert cloned.token_ids == served
    assert [*tree.token_ids] == served
    assert cloned.columns["weight"][-1] == 1.0
    assert tree.weight[len(served) - 1] == 1.0


@pytest.mark.parametrize(("family", "template", "control"), EVERY)
def test_thoughts_are_in_a_finished_turn_exactly_where_the_traits_say_so(
    family: str, template: str, control: bool
) -> None:
    renderer = renderer_of(family, template, control)
    kept = renderer.traits.thinking == "kept"
    for message in (THOUGHTFUL, says(THOUGHTFUL.content, LOOK)):
        said = text_of(renderer, renderer.encode_candidate(message))
        assert "open drawer 1" in said
        assert ("nowhere else" in said) == kept


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_survives_the_way_through_tokens(family: str) -> None:
    renderer = renderer_of(family, FAMILIES[family])
    said = says("go to desk 1")
    assert renderer.decode_reply(renderer.encode_candidate(said)) == said


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_ends_with_a_token_that_stops_a_policy(family: str) -> None:
    renderer = renderer_of(family, FAMILIES[family])
    assert renderer.encode_candidate(says("go to desk 1"))[-1] in renderer.stop_token_ids


@pytest.mark.parametrize("family", AS_PRINTED)
def test_a_game_is_what_the_template_prints(family: str) -> None:
    tokenizer = tokenizer_of(family, FAMILIES[family])
    rows: list[Any] = [{"role": message.role, "content": message.content} for message in GAME]
    printed = str(tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True))
    renderer = Renderer(tokenizer)
    found = text_of(renderer, renderer.encode_history(GAME))
    assert found == printed.replace(strftime("%d %b %Y"), "26 Jul 2024")


@pytest.mark.parametrize("family", ["like llama 3.x", "like smollm 3", "like granite", "gptoss"])
def test_the_tokens_are_the_same_every_day(family: str) -> None:
    renderer = renderer_of(family, FAMILIES[family])
    text = text_of(renderer, renderer.encode_history(GAME))
    dates = ("26 Jul 2024", "26 July 2024", "July 26, 2024", "2024-07-26")
    assert any(date in text for date in dates)


@pytest.mark.parametrize(
    ("family", "system"), [("gemma", "folded"), ("gemma3", "first user turn"), ("qwen3", "own turn")]
)
def test_the_traits_say_where_a_system_message_goes(family: str, system: str) -> None:
    assert renderer_of(family, FAMILIES[family]).traits.system == system


def test_a_system_message_alone_has_a_turn_where_the_template_wants_a_user() -> None:
    renderer = renderer_of("qwen3_5_think", FAMILIES["qwen3_5_think"])
    state = text_of(renderer, renderer.encode_history((SYSTEM,)))
    assert state == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize("family", ["qwen3", "gptoss", "gemma3", "like minimax", "like mistral"])
def test_the_fast_scorer_computes_a_steps_new_tokens_alone(family: str) -> None:
    renderer = renderer_of(family, FAMILIES[family])
    trunk = config_of("llama", context=512, vocab_size=len(renderer.tokenizer)).to_dict()
    qnet = QNet(QNetConfig(trunk=trunk, head_width=16)).eval()
    loaded = LoadedQNet("tiny", qnet, renderer, Manifest(kind="qnet", name="tiny"))
    naive, fast = NaiveScorer(loaded), SharedPrefixScorer(loaded)
    history: History = (SYSTEM, GAME[0])
    known = 0
    for number in range(3):
        candidates = (says(f"open drawer {number}"), THOUGHTFUL)
        request = ScoreRequest(history, candidates)
        [reference], [found] = naive.score([request]), fast.score([request])
        assert found.q_values == pytest.approx(reference.q_values, abs=1e-5)
        assert found.cached_tokens >= known
        chosen = candidates[number % 2]
        known = len(renderer.encode_history(history)) + len(renderer.encode_candidate(chosen))
        history = (*history, chosen, user(f"It is open: {number}."))
