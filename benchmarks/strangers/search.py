"""A search task with long observations, as a bundle of its own; right or wrong.

    qguide environment check benchmarks.strangers.search:SEARCH

A question is answered from documents of several hundred words. An answer counts if it is right and
stands in a document that was opened: nobody can know it otherwise.
"""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from benchmarks.strangers.library import TOPICS, Document, library
from benchmarks.strangers.worlds import world_and_number
from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig, StepResult, Task
from qguide.training.trajectory import ChatFormat

NAME = "benchmarks.strangers.search:SEARCH"
HINT = "Actions: search[words], open[title], answer[text]."
SYSTEM = f"Answer the question from the library. {HINT} Write a thought, then `Action: …`."
_MOST_RESULTS = 5
_ACTION = re.compile(r"(search|open|answer)\[([^\[\]]+)\]")


class Search:
    """One question; see `qguide.training.environment.Environment`."""

    def __init__(self, seed: int) -> None:
        world, number = world_and_number(seed)
        self._library = library(world)
        self._town, self._topic = self._library.questions[number % len(self._library.questions)]
        self._opened: list[Document] = []
        self._running = False

    def reset(self) -> str:
        """Ask the question."""
        self._opened, self._running = [], True
        source = self._library.source[self._topic].lower()
        question = TOPICS[self._topic].question.format(town=self._town)
        return f"Question: {question}\nRule: for this only the {source} of a town counts. {HINT}"

    def step(self, action: str) -> StepResult:
        """Search, open a document or answer.

        Raises:
            EnvironmentFailureError: no episode is running.
        """
        if not self._running:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        found = _ACTION.fullmatch(action.strip())
        if found is None:
            return StepResult(f"That is no action. {HINT}", 0.0, terminated=False, valid=False)
        verb, said = found.groups()
        if verb == "search":
            return StepResult(self._search(said), 0.0, terminated=False)
        if verb == "answer":
            self._running = False
            return StepResult("Your answer is noted.", self._worth(said), terminated=True)
        document = self._library.documents.get(said)
        if document is None:
            return StepResult(f"No document is called {said}.", 0.0, terminated=False, valid=False)
        self._opened.append(document)
        return StepResult(f"{document.title}\n{document.text}", 0.0, terminated=False)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _search(self, query: str) -> str:
        """The titles and beginnings of the documents that share most words with a query."""
        words = set(re.findall(r"\w+", query.lower()))
        hits = {
            document: len(words & set(re.findall(r"\w+", document.title.lower())))
            for document in self._library.documents.values()
        }
        best = sorted((d for d in hits if hits[d]), key=lambda d: (-hits[d], d.title))
        lines = [f"- {d.title}: {d.text[:160]}…" for d in best[:_MOST_RESULTS]]
        return "\n".join(["Found:", *lines]) if lines else "Nothing was found; name a town."

    def _worth(self, answer: str) -> float:
        right = self._library.answers[self._town, self._topic]
        read = any(right in document.text for document in self._opened)
        return float(read and answer.strip().lower() == right.lower())


class Questions:
    """The questions of consecutive numbers; see `qguide.training.environment.Suite`."""

    name = "search"

    def __init__(self, first_seed: int, count: int) -> None:
        seeds = range(first_seed, first_seed + count)
        self.tasks: Sequence[Task] = [Task(f"question:{n}", _kind(n), str(n)) for n in seeds]

    def make(self, task: Task) -> Search:
        """A fresh, single-use episode of `task`."""
        return Search(int(task.source))

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


def _kind(seed: int) -> str:
    world, number = world_and_number(seed)
    questions = library(world).questions
    return questions[number % len(questions)][1]


class SearchConfig(EnvironmentConfig):
    """The `[environment]` table of the search task.

    Attributes:
        first_seed: number of the first question.
        count: number of questions.
    """

    name: Literal["benchmarks.strangers.search:SEARCH"] = "benchmarks.strangers.search:SEARCH"
    first_seed: int = Field(default=0, ge=0)
    count: int = Field(default=96, ge=1)


SEARCH = EnvironmentBundle(
    name=NAME,
    config=SearchConfig,
    build_suite=lambda config: Questions(config.first_seed, config.count),
    chat=ChatFormat(SYSTEM),
    harmless="search[town]",
)
