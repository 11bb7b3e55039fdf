"""A policy in an actor of a Ray cluster, for a job whose own machine has no GPU.

The job stays the one that grows trees and writes rows; only its batches of draws travel. A draw
depends on its seed, so a batch that an actor took with it is drawn again by the next one.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.types import BatchPolicy, Candidate, SampleRequest
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.registry import environment_config
from qguide.training.processes.messages import START_S, WorkerLostError
from qguide.training.rollouts.models import Inference, build_policy
from qguide.training.workers.config import Workers
from qguide.training.workers.host import EnvironmentSpec, enter, spec_of
from qguide.training.workers.pool import MAX_WORKER_LOSSES

T = TypeVar("T")


class PolicyActor:
    """A policy in a process that Ray started. Errors are answers, so that they keep their class."""

    def __init__(self, name: str, inference: Inference, spec: EnvironmentSpec) -> None:
        """Note what to build; the first call builds it."""
        self._name, self._inference, self._spec = name, inference, spec
        self._policy: BatchPolicy | None = None

    def policy_name(self) -> str | QGuideError:
        """The policy's name, which rows state as their source."""
        return self._answer(lambda policy: policy.name)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]] | QGuideError:
        """See `BatchPolicy`."""
        return self._answer(lambda policy: policy.sample_batch(requests))

    def _answer(self, ask: Callable[[BatchPolicy], T]) -> T | QGuideError:
        try:
            if self._policy is None:
                enter(self._spec)
                environment = environment_config(json.loads(self._spec.environment))
                self._policy = build_policy(self._name, self._inference, environment)
            return ask(self._policy)
        except QGuideError as error:
            return error


class RemotePolicy:
    """See `BatchPolicy`: the policy of an actor, which is replaced by a new one when it is lost."""

    def __init__(self, name: str, inference: Inference, environment: EnvironmentConfig, workers: Workers) -> None:
        """Start the actor and let it load the policy."""
        import ray

        gpus = ray.cluster_resources().get("GPU", 0.0)
        if gpus < workers.policy_gpus:
            raise ConfigError(
                f"workers.policy_gpus is {workers.policy_gpus:g}, and the Ray cluster has {gpus:g} "
                "GPUs; start Ray on a machine that has some, or set it to 0 to draw on a CPU"
            )
        self._class = ray.remote(PolicyActor).options(num_cpus=0, num_gpus=workers.policy_gpus, max_restarts=0)
        self._gpus = workers.policy_gpus
        self._arguments = (name, inference, spec_of(environment))
        self._actor: Any = None
        self.name: str = self._ask("policy_name")

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order."""
        drawn: list[list[Candidate]] = self._ask("sample_batch", requests)
        return drawn

    def _ask(self, method: str, *arguments: object) -> Any:
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
                    f"the actor of the policy {self._arguments[0]!r} did not start within "
                    f"{START_S:g} s: workers.policy_gpus is {self._gpus:g}, and each policy of a "
                    "job reserves as many on one machine; add GPUs, or set it lower"
                ) from error
            except RayError as error:
                self._actor = None
                if losses == MAX_WORKER_LOSSES:
                    raise WorkerLostError(
                        f"{losses} actors of the policy were lost during {method}; the last: "
                        f"{type(error).__name__} {error}"
                    ) from error
            else:
                if isinstance(answer, QGuideError):
                    raise answer
                return answer
        raise AssertionError

    def _started(self) -> Any:
        """The actor, which has loaded its policy."""
        import ray

        if self._actor is None:
            self._actor = self._class.remote(*self._arguments)
            ray.get(self._actor.policy_name.remote(), timeout=START_S)
        return self._actor
