"""The `[workers]` table of a job: where its environments and policies run."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from qguide.training.options import JobOptions

THIS_MACHINE: Final = ""


class Workers(JobOptions):
    """Processes that hold a job's environments.

    The field is not called `engine`: that is an environment's own, as ALFWorld's "textworld".

    Attributes:
        executor: "inline" plays environments in the job's own process, "processes" in processes of
            this machine, "ray" in actors of a Ray cluster.
        count: number of processes or actors; each takes one step at a time.
        address: of the Ray cluster, for example "auto" or "ray://head:10001"; "" starts one on this
            machine for the length of the job.
        cpus: CPUs that a Ray actor reserves.
        timeout_s: longest wait for one step, after which a worker is killed and replaced; for rows that Ray reads,
            longest time for those of one task, after which the job ends.
        policy_actors: Ray actors that draw from each local policy of the job; 0 draws in the job's own
            process. Hosted policies and the expert are not concerned.
        policy_gpus: GPUs that each of them reserves; a part of one is possible. The device is
            `inference.device`, "cuda" for the one that it gets.
        q_actors: Ray actors that hold each Q model whose weights are here; 0 scores in the job's own
            process.
        q_gpus: GPUs that each of them reserves.
    """

    executor: Literal["inline", "processes", "ray"] = "inline"
    count: int = Field(default=2, ge=1)
    address: str = THIS_MACHINE
    cpus: float = Field(default=1.0, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    policy_actors: int = Field(default=0, ge=0)
    policy_gpus: float = Field(default=1.0, ge=0)
    q_actors: int = Field(default=0, ge=0)
    q_gpus: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _what_is_rays_needs_ray(self) -> Self:
        if self.address and self.executor != "ray":
            raise ValueError(
                f"address is {self.address!r} and executor {self.executor!r}; only Ray has an "
                "address, so set executor to 'ray' or leave it out"
            )
        if (self.policy_actors or self.q_actors) and self.executor != "ray":
            raise ValueError(
                f"policy_actors is {self.policy_actors}, q_actors {self.q_actors} and executor {self.executor!r}; "
                "actors are Ray's, so set executor to 'ray' or both to 0"
            )
        return self

    def actors_of(self, kind: Literal["policy", "q"]) -> tuple[int, float]:
        """Number of actors of each local policy or Q model, and the GPUs that each of them reserves."""
        return (self.q_actors, self.q_gpus) if kind == "q" else (self.policy_actors, self.policy_gpus)


def _for_rows(workers: Workers) -> Workers:
    if workers.executor == "processes" or workers.policy_actors or workers.q_actors:
        raise ValueError(
            f"executor is {workers.executor!r}, policy_actors {workers.policy_actors} and q_actors {workers.q_actors}, "
            "but rows are spread over tasks of Ray alone; set executor to 'ray' or 'inline', and the actors to 0"
        )
    return workers


RowWorkers = Annotated[Workers, AfterValidator(_for_rows)]
"""Workers of a job that spreads rows and plays nothing."""
