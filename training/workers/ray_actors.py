"""Workers of a Ray cluster: actors that hold environments, and tasks that rows are spread over.

An actor that dies is not restarted by Ray: its episodes would be gone, and the job takes them up
elsewhere itself. Requests and replies are small, so they travel beside Ray's object store and
arrive while it is full.
"""

import logging
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.packages import install
from qguide.training.processes.messages import (
    READY,
    START_S,
    Reply,
    Request,
    WorkerClosedError,
    WorkerLostError,
    load_reply,
    pickled_reply_to,
)
from qguide.training.workers.config import Workers
from qguide.training.workers.host import EnvironmentHost, EnvironmentSpec, enter, spec_of
from qguide.training.workers.pool import WorkerPool

_BATCH_BYTES: Final = 2**21
"""Rows of one task: it costs Ray milliseconds, and so does labelling a small tree."""


class Stored(Protocol):
    """Rows as they are written."""

    @property
    def nbytes(self) -> int:
        """Length of the rows."""


T = TypeVar("T", bound=Stored)
Result = TypeVar("Result")


class HostActor:
    """An environment host in a process that Ray started."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._host: EnvironmentHost | None = None

    def answer(self, request: Request) -> bytes:
        """The pickled reply to one request."""
        return pickled_reply_to(self, request)

    def __getattr__(self, method: str) -> Any:
        """A method of the host, which is built when it is first needed, so that errors are told."""
        if method.startswith("_"):
            raise AttributeError(method)
        if self._host is None:
            self._host = EnvironmentHost(self._spec)
        return getattr(self._host, method)


class RayWorker:
    """One actor."""

    def __init__(self, actor: Any, *, timeout_s: float) -> None:
        self._actor = actor
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._ready: Reply | None = None

    def ask(self, request: Request) -> Reply:
        """See `EnvironmentWorker`."""
        from ray.exceptions import RayError

        with self._lock:  # what waits in the actor's own queue would seem to take its time
            try:
                if self._ready is None:
                    self._ready = self._exchange(READY, START_S)
                if self._ready.error is not None:
                    return self._ready
                return self._exchange(request, self._timeout_s)
            except RayError as error:  # it died, its node did, it was silent, or the store is full
                self.close()
                reason = str(error).strip().splitlines()[0] if str(error) else ""
                raise WorkerLostError(
                    f"a Ray worker was lost during {request.method}: {type(error).__name__} {reason}"
                ) from error

    def _exchange(self, request: Request, timeout_s: float) -> Reply:
        import ray

        actor = self._actor
        if actor is None:
            raise WorkerClosedError("the worker was closed")
        return load_reply(ray.get(actor.answer.remote(request), timeout=timeout_s), request.method)

    def close(self) -> None:
        """Kill the actor; its node's processes end with it."""
        import ray

        actor, self._actor = self._actor, None
        if actor is not None and ray.is_initialized():
            ray.kill(actor)


def ray_pool(spec: EnvironmentSpec, workers: Workers) -> WorkerPool:
    """Actors of one cluster, which ends with them if it was started here."""
    cluster = ExitStack()
    cluster.enter_context(connected(workers))
    import ray

    actor = ray.remote(HostActor).options(num_cpus=workers.cpus, max_restarts=0)

    def start() -> RayWorker:
        return RayWorker(actor.remote(spec), timeout_s=workers.timeout_s)

    return WorkerPool(start, workers.count, leave=cluster.close)


@contextmanager
def connected(workers: Workers) -> Iterator[None]:
    """A cluster with room for all workers, if they are Ray's; one that is started here ends with the block."""
    if workers.executor != "ray":
        yield
        return
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's own choice, 15, lets every other program of the machine go first.
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray
    except ImportError as error:
        raise ConfigError(
            f"workers.executor is 'ray', which is not installed; {install('ray')}, or set it to another one"
        ) from error
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(
                address=workers.address or "local",
                include_dashboard=None if workers.address else False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except Exception as error:  # a plain one where the machine is too busy to start it
            raise ConfigError(
                f"workers.address is {workers.address!r}: {error}; start a cluster there "
                "(ray start --head), or leave the address out"
            ) from error
    try:
        _require_room(workers, ray.nodes())
        yield
    finally:
        if started:
            ray.shutdown()


def _require_room(workers: Workers, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Check that all workers can run at once.

    The episodes that are seated on the rest would wait for twenty minutes and fail. A cluster
    that grows on demand is refused, too, until it has grown: one that never will looks the
    same.
    """
    count, cpus = workers.count, workers.cpus
    if not cpus:
        return
    alive = [node["Resources"].get("CPU", 0.0) for node in nodes if node["Alive"]]
    room = sum(int(node_cpus / cpus + 1e-9) for node_cpus in alive)
    if room < count:
        raise ConfigError(
            f"workers.count is {count} with workers.cpus {cpus:g} each, and the Ray cluster "
            f"has room for {room}: {sum(alive):g} CPUs on {len(alive)} nodes; add machines, or "
            "set workers.count or workers.cpus lower"
        )


def spread(function: Callable[[T], Result], items: Iterable[T], workers: Workers) -> Iterator[Result]:
    """Results of a function for each item, in order, computed here or by tasks of a Ray cluster.

    Items travel as they are, so what they were read from need not be on every machine. So many batches
    are on the way that each worker has its next one; what comes first waits for its place.
    """
    if workers.executor == "inline":
        yield from map(function, items)
        return
    batches = _batches(items)
    first = next(batches, None)
    if first is None:  # a cluster costs seconds
        return
    with connected(workers):
        import ray

        run = ray.remote(_results).options(num_cpus=workers.cpus)
        # Ray's own pickle takes a format of the user's that has a lambda, too.
        job = ray.put((ray.cloudpickle.dumps(function), spec_of(None), workers.timeout_s))
        on_the_way: deque[Any] = deque()
        for batch in chain([first], batches):
            on_the_way.append(run.remote(job, batch))
            if len(on_the_way) > 2 * workers.count:
                yield from _arrived(on_the_way.popleft())
        while on_the_way:
            yield from _arrived(on_the_way.popleft())


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    batch: list[T] = []
    nbytes = 0
    for item in items:
        batch.append(item)
        nbytes += item.nbytes
        if nbytes >= _BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _results(job: tuple[bytes, EnvironmentSpec, float], batch: Sequence[Any]) -> list[Any]:
    pickled, spec, timeout_s = job
    enter(spec)  # first, because the function may be found nowhere else
    function = pickle.loads(pickled)

    def late(*_: object) -> None:
        raise ConfigError(
            f"a task or record took more than {timeout_s:g} s; if nothing hangs, set workers.timeout_s higher"
        )

    signal.signal(signal.SIGALRM, late)
    results = []
    try:
        for item in batch:
            signal.setitimer(signal.ITIMER_REAL, timeout_s)
            results.append(function(item))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return results


def _arrived(batch: Any) -> list[Any]:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        results: list[Any] = ray.get(batch)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, QGuideError) else error) from None
    except RayError as error:
        raise WorkerLostError(f"a batch of rows was lost with its Ray workers: {error}; start the job again") from error
    return results
