"""Models in actors of a Ray cluster, for a job whose own machine has no GPU.

The job stays the one that grows trees and writes rows; only its batches travel. A draw depends on
its seed, and a value on nothing but its request, so what an actor took with it is asked of the next
one.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, Literal, TypeVar

from cachetools import LRUCache

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.types import BatchPolicy, Candidate, SampleRequest, Scorer, ScoreRequest, ScoreResult
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.registry import environment_config
from qguide.training.processes.messages import START_S, WorkerLostError
from qguide.training.rollouts.models import Inference, build_policy, build_scorer
from qguide.training.workers.config import Workers
from qguide.training.workers.host import EnvironmentSpec, enter, spec_of
from qguide.training.workers.pool import MAX_WORKER_LOSSES

T = TypeVar("T")
Remote = TypeVar("Remote", bound="_Actors")
Kind = Literal["policy", "q"]
_HISTORIES: Final = 65_536
"""Histories whose actor is remembered; more are seldom open at once."""
_MOST: Final = 1.5
"""An actor's part of a batch, in even shares: beyond it, reading a history again takes less time than waiting."""


class ModelActor:
    """A model in a process that Ray started. Errors are answers, so that they keep their class."""

    def __init__(self, kind: Kind, name: str, inference: Inference, spec: EnvironmentSpec) -> None:
        """Note what to build; the first call builds it."""
        self._arguments = (kind, name, inference, spec)
        self._model: BatchPolicy | Scorer | None = None

    def get(self, attribute: str) -> Any | QGuideError:
        """An attribute of the model."""
        return self._answer(lambda model: getattr(model, attribute))

    def call(self, method: str, requests: Sequence[Any]) -> list[Any] | QGuideError:
        """Answers of the model to a batch."""
        return self._answer(lambda model: getattr(model, method)(requests))

    def _answer(self, ask: Callable[[BatchPolicy | Scorer], T]) -> T | QGuideError:
        try:
            if self._model is None:
                self._model = _build(*self._arguments)
            return ask(self._model)
        except QGuideError as error:
            return error


def _build(kind: Kind, name: str, inference: Inference, spec: EnvironmentSpec) -> BatchPolicy | Scorer:
    enter(spec)
    if kind == "q":
        return build_scorer(name, inference)
    return build_policy(name, inference, environment_config(json.loads(spec.environment)))


class _Replaced:
    """An actor, which is replaced by a new one when it is lost."""

    def __init__(self, model: str, gpus: float, *arguments: object) -> None:
        import ray

        self._class = ray.remote(ModelActor).options(num_cpus=0, num_gpus=gpus, max_restarts=0)
        self._model, self._gpus, self._arguments = model, gpus, arguments
        self._actor: Any = None

    def ask(self, method: str, *arguments: object) -> Any:
        """The answer of the actor."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        for losses in range(1, MAX_WORKER_LOSSES + 1):
            try:
                answer = ray.get(getattr(self._started(), method).remote(*arguments))
            except RayTaskError:  # a bug
                raise
            except GetTimeoutError as error:  # of its start alone
                ray.kill(self._actor)
                raise ConfigError(
                    f"an actor of {self._model} did not start within {START_S:g} s: it reserves {self._gpus:g} "
                    "GPUs, and so does every other one of the job, each on one machine; add GPUs, or set "
                    "workers.policy_gpus or workers.q_gpus lower"
                ) from error
            except RayError as error:
                self._actor = None
                if losses == MAX_WORKER_LOSSES:
                    raise WorkerLostError(
                        f"{losses} actors of {self._model} were lost during {method}; the last: "
                        f"{type(error).__name__} {error}"
                    ) from error
            else:
                if isinstance(answer, QGuideError):
                    raise answer
                return answer
        raise AssertionError

    def _started(self) -> Any:
        import ray

        if self._actor is None:
            self._actor = self._class.remote(*self._arguments)
            ray.get(self._actor.get.remote("name"), timeout=START_S)
        return self._actor


class _Actors:
    """The actors of one model, which share each batch.

    Attributes:
        gpus: GPUs that all of them reserve.
    """

    kind: ClassVar[Kind]

    def __init__(
        self,
        name: str,
        inference: Inference,
        environment: EnvironmentConfig,
        workers: Workers,
        *,
        reserved_gpus: float = 0.0,
    ) -> None:
        """Start them and let them load the model, all at once."""
        import ray

        kind = self.kind
        count, gpus = workers.actors_of(kind)
        there = ray.cluster_resources().get("GPU", 0.0)
        if there < reserved_gpus + count * gpus - 1e-9:  # what rounding adds to tenths
            others = f", of which other models of the job reserve {reserved_gpus:g}" if reserved_gpus else ""
            raise ConfigError(
                f"workers.{kind}_actors is {count} with workers.{kind}_gpus {gpus:g} each, and the Ray cluster has "
                f"{there:g} GPUs{others}; start Ray on more machines with GPUs, or set workers.{kind}_gpus lower, "
                "to 0 to run on CPUs"
            )
        self.gpus = count * gpus
        model = f"the {'Q model' if kind == 'q' else 'policy'} {name!r}"
        self._actors = [_Replaced(model, gpus, kind, name, inference, spec_of(environment)) for _ in range(count)]
        self._asked = Counter[int]()
        self._places: LRUCache[int, int] = LRUCache(_HISTORIES)
        with ThreadPoolExecutor(count) as threads:
            self.name: str
            self.name, *_ = threads.map(lambda one: one.ask("get", "name"), self._actors)
        self._read_traits()

    def _read_traits(self) -> None:
        """Ask for what callers read of the model beside its name."""

    def _call(self, method: str, requests: Sequence[SampleRequest | ScoreRequest]) -> list[Any]:
        parts: dict[int, list[int]] = {}
        most = math.ceil(_MOST * len(requests) / len(self._actors))
        for number, request in enumerate(requests):
            parts.setdefault(self._place(request, parts, most), []).append(number)
        answers: list[Any] = [None] * len(requests)

        def answer(place: int, part: list[int]) -> None:
            found = self._actors[place].ask("call", method, [requests[number] for number in part])
            for number, one in zip(part, found, strict=True):
                answers[number] = one

        with ThreadPoolExecutor(max(1, len(parts))) as threads:
            list(threads.map(answer, parts.keys(), parts.values()))
        return answers

    def _place(self, request: SampleRequest | ScoreRequest, parts: dict[int, list[int]], most: int) -> int:
        """The actor that has the longest beginning of the history in its cache, or the one with the least work.

        None gets more than `most` requests, as when the episodes of all others have ended.
        """
        history = request.history
        part = [len(parts.get(place, ())) for place in range(len(self._actors))]
        beginnings = (self._places.get(hash(history[:end])) for end in range(len(history), 0, -1))
        place = next((place for place in beginnings if place is not None and part[place] < most), None)
        if place is None:
            place = min(range(len(part)), key=lambda one: (part[one], self._asked[one]))
        self._asked[place] += 1
        self._places[hash(history)] = place
        return place


class RayPolicy(_Actors):
    """See `BatchPolicy`: the policy of Ray actors."""

    kind = "policy"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order."""
        return self._call("sample_batch", requests)


class RayScorer(_Actors):
    """See `Scorer`: the Q model of Ray actors."""

    kind = "q"

    def _read_traits(self) -> None:
        self.reads_observation: bool = self._actors[0].ask("get", "reads_observation")
        self.ranks: bool = self._actors[0].ask("get", "ranks")

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q(s, a) of each candidate, in the requests' order."""
        return self._call("score", requests)
