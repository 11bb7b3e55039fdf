"""Base of everything that a job file says."""

from pydantic import BaseModel


class JobOptions(BaseModel, frozen=True, extra="forbid"):
    """A job's configuration, or a table of it; names that it does not know are refused."""
