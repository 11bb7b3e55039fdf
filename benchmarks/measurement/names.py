"""Names of the compared implementations, and what each is compared with."""

from typing import Literal, get_args

Local = Literal["ours", "naive", "match-features", "naive-packed", "padded", "full-sequences", "dynamic-cache"]
Remote = Literal["vllm", "vllm-block32", "http", "vllm-http"]
Name = Local | Remote
LOCAL: tuple[Local, ...] = get_args(Local)
REMOTE: tuple[Remote, ...] = get_args(Remote)
NAMES: tuple[Name, ...] = (*LOCAL, *REMOTE)
OF_MANY_SESSIONS: tuple[Name, ...] = ("ours", *REMOTE)
OURS: Name = "ours"
REFERENCE: Name = "naive"


def over(name: str) -> Name:
    """The implementation that another is compared with: ours, or ours over HTTP."""
    return "http" if name == "vllm-http" else OURS
