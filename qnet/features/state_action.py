"""Families of features of a state, and of a candidate in it, for any agent that reads text.

Nothing here knows an environment. A family crosses something of the candidate (its whole action, or
its skeleton, in which each word stands for where it was read before) with something of the state
(words of the task and of observations, actions before, the step).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qguide.qnet.features.hashing import Hasher, Hashes, Sparse, crossed
from qguide.qnet.features.words import (
    ActionWords,
    action_words,
    focused,
    relation,
    sentences_of,
    skeleton,
    words_of,
)
from qguide.qnet.types import History, Message

FEATURES_VERSION: Final = 1
"""Rises whenever the same text gets other features, because weights belong to features."""

_TASK_WORDS: Final = 60
_LAST_WORDS: Final = 60
_RECENT_WORDS: Final = 120
_RECENT_OBSERVATIONS: Final = 6
_PAIRED_WORDS: Final = 40
_ANSWER_WORDS: Final = 12
_BAG_WORDS: Final = 64
_MOST_STEPS: Final = 12
_MOST_REPETITIONS: Final = 3


@dataclass(frozen=True, slots=True)
class State:
    """Parts of a history that the features read.

    Attributes:
        task: the first 60 different words of the first user message.
        last: words of the last observation; of a long one those that concern the task.
        recent: the same of the last six.
        all_last, earlier: all words of the last observation, and of those before it.
        actions: the agent's, in order.
        answers: words of the observation after each action.
        text: the last observations whole, in which the places of an action's words are looked up.
    """

    task: tuple[str, ...]
    last: tuple[str, ...]
    recent: tuple[str, ...]
    all_last: frozenset[str]
    earlier: frozenset[str]
    actions: tuple[ActionWords, ...]
    answers: tuple[tuple[str, ...], ...]
    text: tuple[str, ...]

    @property
    def step(self) -> int:
        """Number of actions before, bounded."""
        return min(len(self.actions), _MOST_STEPS)


def state_of(history: History) -> State:
    """The parts of a history, whatever its length."""
    start = next((i for i, m in enumerate(history) if m.role == "user"), 0)
    actions, observed = _turns(history[start + 1 :])
    task = words_of(history[start].text)[:_TASK_WORDS] if history else ()
    answers = observed[1:]
    texts = tuple(text for text in observed if text)[-_RECENT_OBSERVATIONS:]
    last = texts[-1] if texts else ""
    each = _RECENT_WORDS // max(len(texts), 1)
    recent = [word for text in reversed(texts) for word in focused(text, task, most=max(each, 30))]
    return State(
        task=task,
        last=focused(last, task, most=_LAST_WORDS),
        recent=tuple(dict.fromkeys(recent)),
        all_last=frozenset(words_of(last)),
        earlier=frozenset(word for text in observed[:-1] for word in words_of(text)),
        actions=tuple(actions),
        answers=tuple(words_of(text) for text in answers),
        text=texts,
    )


def _turns(messages: Sequence[Message]) -> tuple[list[ActionWords], list[str]]:
    """Each action, and all that was observed before the first, then after each."""
    actions: list[ActionWords] = []
    observed: list[list[str]] = [[]]
    for message in messages:
        if message.role == "assistant":
            actions.append(action_words(message))
            observed.append([])
        else:
            observed[-1].append(message.text)
    return actions, ["\n".join(texts) for texts in observed]


def state_features(state: State, hasher: Hasher) -> Sparse:
    """Vector of a state, from which its value is learned."""
    names, family = _Namer(hasher).names, _Namer(hasher, "state").family
    task, last, recent = map(hasher.hashes, (state.task, state.last, state.recent))
    verbs = hasher.hashes({action.verb for action in state.actions})
    step = names(f"{state.step}")
    return hasher.sparse(
        [
            family("step", step),
            family("task", task),
            family("last", last),
            family("recent", recent),
            family("task-last", crossed(task[:_PAIRED_WORDS], last)),
            family("task-recent", crossed(task[:_PAIRED_WORDS], recent[:_PAIRED_WORDS])),
            family("verbs", verbs),
            family("verbs-step", crossed(step, verbs)),
        ]
    )


def candidate_features(state: State, candidate: Message, hasher: Hasher) -> Sparse:
    """Vector of a candidate in a state, from which its advantage is learned."""
    names, family = _Namer(hasher).names, _Namer(hasher, "candidate").family
    action = action_words(candidate)
    relations = [
        relation(word, task=state.task, last=state.all_last, earlier=state.earlier)
        for word in action.words
    ]
    key, verb, form = names(action.key), names(action.verb), names(skeleton(action, relations))
    acts = np.concatenate([key, form])
    task, last, recent = map(hasher.hashes, (state.task, state.last, state.recent))
    step, before = names(f"{state.step}"), [one.key for one in state.actions]
    said = names(f"{min(before.count(action.key), _MOST_REPETITIONS)}")
    verbs = {one.verb for one in state.actions}
    both = hasher.hashes(word for word in state.task if word in state.all_last)
    bag = hasher.hashes(dict.fromkeys(action.words[:_BAG_WORDS]))
    sentence, shared = _sentence_of(action, state)
    paired = crossed(task[:_PAIRED_WORDS], recent[:_PAIRED_WORDS])
    return hasher.sparse(
        [
            family("key", key),
            family("form", form),
            family("verb-step", crossed(verb, step)),
            family("form-step", crossed(form, step)),
            family("said", crossed(acts, said)),
            family("said-any", said),
            family("answer", crossed(acts, names(_answer_before(action, state)))),
            family("key-task", crossed(key, task)),
            family("form-task", crossed(form, task)),
            family("key-last", crossed(key, last)),
            family("form-last", crossed(form, last)),
            family("key-recent", crossed(key, recent)),
            family("form-recent", crossed(form, recent)),
            family("key-both", crossed(key, both)),
            family("key-task-recent", crossed(key, paired)),
            family("key-verbs", crossed(key, hasher.hashes(verbs))),
            family("form-verbs", crossed(form, hasher.hashes((*verbs, f"{len(verbs)} verbs")))),
            family("form-after", crossed(form, names(_last_turn(state)))),
            family("words", crossed(verb, bag)),
            family("sentence", crossed(verb, hasher.hashes(sentence))),
            family("shared", crossed(verb, names(f"{shared}"))),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Namer:
    """Hashes of names, and families of features whose hashes begin with the family's name."""

    hasher: Hasher
    of: str = ""

    def names(self, *texts: str) -> Hashes:
        return self.hasher.hashes(texts)

    def family(self, name: str, features: Hashes) -> Hashes:
        return crossed(self.names(f"{self.of} {name}"), features)


def _answer_before(action: ActionWords, state: State) -> str:
    """Beginning of what was observed when this was last done; "" if it never was."""
    pairs = zip(reversed(state.actions), reversed(state.answers), strict=True)
    return next((" ".join(a[:_ANSWER_WORDS]) for one, a in pairs if one.key == action.key), "")


def _last_turn(state: State) -> str:
    """The last action's verb and the beginning of its answer."""
    if not state.actions:
        return ""
    return " ".join((state.actions[-1].verb, *state.answers[-1][:3]))


def _sentence_of(action: ActionWords, state: State) -> tuple[Iterable[str], int]:
    """The sentence that the action's words were read in, and how much it shares with the task.

    Of several that hold as many of them, the one that shares most with the task; without the words
    of the action themselves.
    """
    wanted, task = set(action.words), set(state.task)
    best: tuple[int, int, set[str]] = (0, 0, set())
    for text in state.text:
        for sentence in sentences_of(text):
            own = set(sentence)
            if found := len(own & wanted):
                rest = own - wanted
                best = max(best, (found, len(rest & task), rest), key=lambda one: one[:2])
    return best[2] if len(best[2]) <= _LAST_WORDS else (), min(best[1], _MOST_REPETITIONS + 2)
