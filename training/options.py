"""Base of everything that a job file says."""

from pydantic import BaseModel, ConfigDict


class JobOptions(BaseModel):
    """A job's configuration, or a table of it; names that it does not know are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
