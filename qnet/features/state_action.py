"""Families of features of a state, and of a candidate in it, for any agent that reads text.

Nothing here knows an environment. A family crosses something of the candidate (its whole action, or its skeleton, in
which each word stands for where it was read before) with something of the state (words of the task and of observations,
actions before, the step). Of the state only words of the hasher's vocabulary are read, of the candidate all. Beside
these stand facts (`qguide.qnet.features.facts`), which lie in the other half of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qguide.qnet.features.facts import Facts, candidate_families, facts_in
from qguide.qnet.features.hashing import (
    FACTS,
    QUANTILES,
    TASK,
    Families,
    Hasher,
    Hashes,
    Sparse,
    crossed,
    families_of,
    joined,
    pairs_of,
)
from qguide.qnet.features.words import (
    ActionWords,
    action_words,
    focused,
    named_parts,
    numbers_of,
    relation,
    sentences_of,
    skeleton,
    surroundings,
    words_of,
)
from qguide.qnet.types import INSTRUCTING, History, Message

FEATURES_VERSION: Final = 7
"""Rises whenever the same text gets other features, because weights belong to features."""

TASK_WORDS: Final = 60
"""Words that are read of a task."""
_LAST_WORDS: Final = 60
_RECENT_WORDS: Final = 120
_RECENT_OBSERVATIONS: Final = 6
_PAIRED_WORDS: Final = 40
_SURROUNDINGS: Final = 60
_ANSWER_WORDS: Final = 12
_BAG_WORDS: Final = 64
_MOST_STEPS: Final = 12
_MOST_REPETITIONS: Final = 3
_SIZES: Final = 24
_DONE: Final = 8
_PAIRED_IN_SENTENCE: Final = 20


@dataclass(frozen=True, slots=True)
class Words:
    """Parts of a history that the features read.

    Attributes:
        task: the first 60 different words of the first user message.
        last: words of the last observation; of a long one those that concern the task.
        recent: the same of the last six.
        all_last, earlier: all words of the last observation, and of those before it.
        answers: words of the observation after each action.
        sizes: how large the numbers of the last six observations are, each after its label.
        text: the last observations whole, in which the places of an action's words are looked up.
        opening: the message that states the task, in which they are looked up next.
    """

    task: tuple[str, ...]
    last: tuple[str, ...]
    recent: tuple[str, ...]
    all_last: frozenset[str]
    earlier: frozenset[str]
    actions: tuple[ActionWords, ...]
    answers: tuple[tuple[str, ...], ...]
    sizes: tuple[str, ...]
    text: tuple[str, ...]
    opening: str

    @property
    def step(self) -> int:
        """Number of actions before, bounded."""
        return min(len(self.actions), _MOST_STEPS)


@dataclass(frozen=True, slots=True)
class State:
    """A history as features read it.

    Attributes:
        alone: families of the state, from which its value is learned.
        beside_key, beside_form: families that stand beside a candidate's action, and beside its skeleton.
    """

    hasher: Hasher
    read: Words
    facts: Facts
    alone: Families
    beside_key: Families
    beside_form: Families


@dataclass(frozen=True, slots=True)
class _Found:
    """The sentence that the words of an action were read in, without those.

    Attributes:
        shared: number of those that the task has, too, bounded.
        source: words of the first sentence of the same text, such as a title.
        source_shared: number of those that the task has, too, bounded.
    """

    words: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    shared: int = 0
    source: frozenset[str] = frozenset()
    source_shared: int = 0


def state_of(history: History, hasher: Hasher) -> State:
    """The parts of a history, whatever its length."""
    start = _start_of(history, hasher)
    opening = history[start].text if history else ""
    actions, observed = _turns(opening, history[start + 1 :])
    task = _task_words(history[: start + 1], hasher)
    texts = tuple(text for text in observed if text)[-_RECENT_OBSERVATIONS:]
    last = texts[-1] if texts else ""
    each = _RECENT_WORDS // max(len(texts), 1)
    recent = [word for text in reversed(texts) for word in focused(text, task, most=max(each, 30))]
    read = Words(
        task=task,
        last=focused(last, task, most=_LAST_WORDS),
        recent=tuple(dict.fromkeys(recent)),
        all_last=frozenset(words_of(last)),
        earlier=frozenset(word for text in observed[:-1] for word in words_of(text)),
        actions=tuple(actions),
        answers=tuple(words_of(text) for text in observed[1:]),
        sizes=_sizes(texts, task, hasher),
        text=texts,
        opening=opening,
    )
    asked = [frozenset(), *(frozenset(action.words) for action in actions)]
    told = [(words, text) for words, text in zip(asked, observed, strict=True) if text][-_RECENT_OBSERVATIONS:]
    return State(hasher, read, facts_in(told, opening, task, hasher), *_families(read, hasher))


def _sizes(texts: Sequence[str], task: tuple[str, ...], hasher: Hasher) -> tuple[str, ...]:
    """Each quantile that a number reaches, and each that it does not, as words."""
    found: list[str] = []
    for label, number in dict.fromkeys(pair for text in texts for pair in numbers_of(text)):
        if (size := hasher.size(label, number, task)) is not None:
            found += [f"{label} {'>' if size > i else '<'} {i}" for i in range(QUANTILES)]
    return tuple(dict.fromkeys(found))[-_SIZES:]


def _start_of(history: History, hasher: Hasher) -> int:
    """Index of the message that states the task: the user's first that is no part of the frame."""
    users = [i for i, message in enumerate(history) if message.role == "user"]
    return next((i for i in users if not hasher.frames(history[i].text)), users[0] if users else 0)


def _task_words(opening: History, hasher: Hasher) -> tuple[str, ...]:
    """Words of the task; of a long one, such as behind instructions, those of the vocabulary.

    System messages state a part of it where they differ between tasks.
    """
    *before, task = (message.text for message in opening) if opening else ("",)
    if hasher.vocabulary is not None:
        told = zip(opening, before, strict=False)
        before = [text for one, text in told if one.role in INSTRUCTING and not hasher.frames(text)]
        task = "\n".join((*before, task))
    words = words_of(task)
    return (words if len(words) <= TASK_WORDS else tuple(hasher.known(words, TASK)))[:TASK_WORDS]


def _turns(opening: str, messages: Sequence[Message]) -> tuple[list[ActionWords], list[str]]:
    """Each action, and all that was observed before the first, then after each."""
    actions: list[ActionWords] = []
    observed: list[list[str]] = [[]]
    for message in messages:
        if message.role == "assistant":
            actions.append(action_words(message, "\n".join(observed[-1]) or opening))
            observed.append([])
        else:
            observed[-1].append(message.text)
    return actions, ["\n".join(texts) for texts in observed]


def _families(read: Words, hasher: Hasher) -> tuple[Families, Families, Families]:
    """Families of the state itself, and those that stand beside an action and its skeleton."""
    task = hasher.words(read.task, TASK)
    last, recent = hasher.words(read.last), hasher.words(read.recent)
    verbs = list(dict.fromkeys(action.verb for action in read.actions))
    done, step = hasher.hashes(verbs), hasher.hashes([f"{read.step}"])
    paired = crossed(task[:_PAIRED_WORDS], recent[:_PAIRED_WORDS])
    near, beside = _surroundings(read, hasher)
    facts = hasher.hashes(dict.fromkeys((*read.sizes, *_done(read))))
    together = pairs_of(facts)
    of_state = {
        "step": step,
        "task": task,
        "last": last,
        "recent": recent,
        "task-last": crossed(task[:_PAIRED_WORDS], last),
        "task-recent": paired,
        "near": near,
        "beside": beside,
        "verbs": done,
        "verbs-step": crossed(step, done),
        "facts": facts,
        "facts-paired": together,
    }
    of_key = {
        "key": hasher.hashes([""]),
        "key-task": task,
        "key-last": last,
        "key-recent": recent,
        "key-both": hasher.words((word for word in read.task if word in read.all_last), TASK),
        "key-task-recent": paired,
        "key-near": near,
        "key-task-beside": crossed(task[:_PAIRED_WORDS], beside),
        "key-verbs": done,
        "key-facts": facts,
    }
    of_form = {
        "form": hasher.hashes([""]),
        "form-step": step,
        "form-task": task,
        "form-last": last,
        "form-recent": recent,
        "form-beside": beside,
        "form-verbs": hasher.hashes([*verbs, f"{len(verbs)} verbs"]),
        "form-facts": facts,
        "form-facts-paired": together,
        "form-after": hasher.hashes([_last_turn(read)]),
    }
    return (families_of(of_state, hasher), families_of(of_key, hasher), families_of(of_form, hasher))


def _done(read: Words) -> list[str]:
    """The last actions, to stand beside what is known of numbers."""
    return [f"done {action.key}" for action in read.actions[-_DONE:]]


def _surroundings(read: Words, hasher: Hasher) -> tuple[Hashes, Hashes]:
    """Words of the task with what the last observation says around them, and that without them.

    "You carry soaked copper." tells that it is soaked, and of whatever the task is about.
    """
    last = read.text[-1] if read.text else ""
    found = surroundings(last, frozenset(hasher.known(read.task, TASK)))[:_SURROUNDINGS]
    near = dict.fromkeys(" ".join(each) for each in found)
    beside = dict.fromkeys(around for _, around in found)
    return hasher.hashes(near), hasher.hashes(beside or [""])


def state_features(state: State) -> Sparse:
    """Vector of a state, from which its value is learned."""
    hasher, facts = state.hasher, state.facts
    of_facts = families_of({"fact": facts.told, "facts": facts.paired}, hasher)
    return joined(hasher.sparse([state.alone]), hasher.sparse([of_facts], FACTS))


def candidate_features(state: State, candidate: Message) -> Sparse:
    """Vector of a candidate in a state, from which its advantage is learned."""
    hasher, read = state.hasher, state.read
    action = action_words(candidate, read.text[-1] if read.text else read.opening)
    told = frozenset((*read.task, *words_of(read.opening)))
    relations = [relation(word, task=told, last=read.all_last, earlier=read.earlier) for word in action.words]
    skeletal = skeleton(action, relations)
    key, form, verb = (hasher.hashes([text]) for text in (action.key, skeletal, action.verb))
    said = f"{min([one.key for one in read.actions].count(action.key), _MOST_REPETITIONS)}"
    found = _sentence_of(action, read)
    sentence, task = hasher.words(found.words), hasher.words(read.task, TASK)[:_PAIRED_WORDS]
    of_verb = {
        "verb-step": hasher.hashes([f"{read.step}"]),
        "words": hasher.hashes(dict.fromkeys(action.words[:_BAG_WORDS])),
        "named": hasher.hashes(named_parts(action)),
        "sentence": sentence,
        "shared": hasher.hashes([f"{found.shared}"]),
        "task-sentence": crossed(task, sentence),
        "source": hasher.hashes([f"{found.source_shared}"]),
        "task-source": crossed(task, hasher.words(found.source)),
    }
    of_rest = {
        "rest": hasher.hashes([""]),
        "rest-sentence": sentence,
        "rest-sentence-paired": pairs_of(sentence[:_PAIRED_IN_SENTENCE]),
        "rest-task-sentence": crossed(task, sentence),
    }
    of_acts = {"said": hasher.hashes([said]), "answer": hasher.hashes([_answer_before(action, read)])}
    of_words = hasher.sparse(
        [
            state.beside_key.beside(key),
            state.beside_form.beside(form),
            families_of(of_verb, hasher).beside(verb),
            families_of(of_rest, hasher).beside(hasher.hashes([action.without(found.held)])),
            families_of(of_acts, hasher).beside(np.concatenate([key, form])),
            families_of({"said-any": hasher.hashes([said])}, hasher),
        ]
    )
    return joined(of_words, hasher.sparse(candidate_families(state.facts, action, skeletal, hasher), FACTS))


def _answer_before(action: ActionWords, state: Words) -> str:
    """Beginning of what was observed when this was last done; "" if it never was."""
    pairs = zip(reversed(state.actions), reversed(state.answers), strict=True)
    return next((" ".join(a[:_ANSWER_WORDS]) for one, a in pairs if one.key == action.key), "")


def _last_turn(state: Words) -> str:
    if not state.actions:
        return ""
    return " ".join((state.actions[-1].verb, *state.answers[-1][:3]))


def _sentence_of(action: ActionWords, state: Words) -> _Found:
    """The sentence that the action's words were read in.

    Of several that hold as many of them, the one that shares most with the task.
    """
    wanted, task = frozenset(action.words), frozenset(state.task)
    best, rank = _Found(), (0, 0)
    for text in (*state.text, state.opening):
        sentences = sentences_of(text)
        for sentence in sentences:
            own = frozenset(sentence)
            rest = own - wanted
            shared = 0 if text is state.opening else len(rest & task)
            if (found := (len(own & wanted), shared)) > rank and found[0]:
                source = frozenset(sentences[0]) - own
                most = _MOST_REPETITIONS + 2
                best = _Found(
                    rest if len(rest) <= _LAST_WORDS else frozenset(),
                    own & wanted,
                    min(found[1], most),
                    source if len(source) <= _LAST_WORDS else frozenset(),
                    min(len(source & task), most),
                )
                rank = found
    return best
