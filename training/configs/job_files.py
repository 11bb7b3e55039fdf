"""Job files: a TOML file and its `--set` overrides become a validated configuration.

    qguide sft --config sft.toml --set optimization.epochs=3 --set output=runs/sft

A value after `=` is read as TOML (3, 0.5, true, ["a", "b"]); a value that is not TOML is a string.
A file with `extends = "../sft.toml"` takes every field that it does not set itself from that file.
That path is relative to the file; all other paths are relative to the working directory.
What is not found below `training/` there is the package's file of that name.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from qguide.qnet.errors import HIDDEN, ConfigError, without_secrets
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.registry import DEFAULT_ENVIRONMENT, environment_config, find_environment, table_of
from qguide.training.shipped_files import shipped_path

C = TypeVar("C", bound=BaseModel)

_MOST_BYTES = 4 * 1024**2


def load_config(
    kind: type[C], path: Path | None, overrides: Sequence[str] = (), *, options: Mapping[str, object] | None = None
) -> C:
    """Read the configuration of a job.

    Args:
        overrides: "field=value" or "table.field=value"; later ones replace earlier ones.
        options: values of command line options by "table.field"; None means not given. They
            replace those of the file, and `overrides` replace them.
    """
    values = read_tables(path) if path is not None else {}
    _expand_environment(kind, values)
    for name, value in (options or {}).items():
        if value is not None:
            _set(values, name, value)
    _override(values, overrides)
    _expand_environment(kind, values)
    with _explained(kind, values, place=str(path) if path is not None else "the command line"):
        return kind.model_validate(values)


def _expand_environment(kind: type[BaseModel], values: dict[str, Any]) -> None:
    """Let `environment = "name"` be the table that it is short for, in jobs that have one."""
    field = kind.model_fields.get("environment")
    if field is not None and field.annotation is EnvironmentConfig and "environment" in values:
        values["environment"] = table_of(values["environment"])


def _override(values: dict[str, Any], overrides: Sequence[str]) -> None:
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            shown = without_secrets(override)
            raise ConfigError(f"--set {shown!r} has no value; write field=value")
        _set(values, name.strip(), _parse(text.strip()))


def read_environment(given: Mapping[str, object], overrides: Sequence[str] = ()) -> EnvironmentConfig:
    """The validated `[environment]` table of a command that has no job file."""
    values = dict(given)
    _override(values, overrides)
    with _explained(EnvironmentConfig, values, place="the command line"):
        return environment_config(values)


@contextmanager
def _explained(kind: type[BaseModel], values: Mapping[str, Any], *, place: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(problem, kind, values)}" for problem in _first_of(error.errors()))
        raise ConfigError(f"{place} is not a valid {kind.__name__}:\n{problems}") from error


def _first_of(problems: Sequence[ErrorDetails]) -> Iterator[ErrorDetails]:
    """The problems without lists that are short only because items of theirs are refused."""
    refused = {problem["loc"][:-1] for problem in problems}
    return (problem for problem in problems if problem["type"] != "too_short" or problem["loc"] not in refused)


def read_tables(path: Path, *, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a TOML file's tables, merged over those of the file that it extends."""
    path = shipped_path(path).resolve()
    if path in above:
        circle = " -> ".join(str(file) for file in (*above, path))
        raise ConfigError(f"{circle} extend each other; remove one `extends`")
    values = read_toml(path)
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends is {base!r}; name a file, relative to this one")
    return _merged(read_tables(path.parent / base, above=(*above, path)), values)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(below[name], above[name])
        for name in below.keys() & above.keys()
        if isinstance(below[name], dict) and isinstance(above[name], dict)
    }
    return below | above | both


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file's tables."""
    try:
        with path.open("rb") as file:  # which may be a device without an end
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name an existing job file") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path} has more than {_MOST_BYTES:,} bytes, as no job file has; give another file")
    try:
        values = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it there") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply; flatten it") from error
    for name, value in values.items():
        _require_no_nul(name, value)
    return values


def _require_no_nul(name: str, value: object) -> None:
    """Refuse a character that neither a path nor an argument of a process may hold."""
    match value:
        case str() if "\0" in value:
            raise ConfigError(f"{name} = {value!r} has a NUL character; remove it")
        case dict():
            for field, inner in value.items():
                _require_no_nul(f"{name}.{field}", inner)
        case list():
            for inner in value:
                _require_no_nul(name, inner)


def _set(values: dict[str, Any], name: str, value: object) -> None:
    _require_no_nul(name, value)
    *tables, field = name.split(".")
    if not all((*tables, field)):
        raise ConfigError(f"--set {name!r}: part of the name is empty; write table.field=value")
    for part in tables:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{name}: {part} is {_shown(part, inner)}, not a table; set {part} as a whole")
        values = inner
    values[field] = value


def _parse(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _explain(problem: ErrorDetails, kind: type[BaseModel], values: Mapping[str, Any]) -> str:
    """One line with the field, its value, the mistake and the remedy."""
    name = ".".join(str(part) for part in problem["loc"]) or kind.__name__
    match problem["type"]:
        case "extra_forbidden":
            fields = _fields_at(kind, problem["loc"][:-1], values)
            known = ", ".join(fields) or "none here"
            return f"{name}: there is no such field; the fields are {known}"
        case "missing":
            return f"{name}: is missing; set it in the file or with --set {name}=…"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not problem["loc"]:  # a mistake of several fields together; the message names them
        return message
    shown = _shown(str(problem["loc"][-1]), problem["input"])
    settable = ".".join(takewhile(lambda part: not part.isdigit(), name.split(".")))
    return f"{name} = {shown}: {message}; change it there or with --set {settable}=…"


def _shown(field: str, value: object) -> str:
    """A value in a message: shortened, and without what may be a key or a password."""
    if "key" in field:
        return HIDDEN
    text = repr(_without_secrets(value))
    return text if len(text) <= 80 else text[:77] + "..."


def _without_secrets(value: object) -> object:
    match value:
        case str():
            return without_secrets(value)
        case Mapping():
            return {name: HIDDEN if "key" in str(name) else _without_secrets(part) for name, part in value.items()}
        case list() | tuple():
            return [_without_secrets(part) for part in value]
    return value


def _fields_at(kind: type[BaseModel], path: Sequence[int | str], values: Mapping[str, Any]) -> list[str]:
    model, here = _table_of(kind, values), values
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        here = here.get(str(part), {}) if isinstance(here, Mapping) else {}
        model = _table_of(field.annotation, here) if field is not None else None
    return sorted(getattr(model, "model_fields", {}))


def _table_of(model: Any, values: Mapping[str, Any]) -> Any:
    """The class that validates a table; that of `[environment]` depends on its name."""
    if model is not EnvironmentConfig:
        return model
    return find_environment(values.get("name", DEFAULT_ENVIRONMENT)).config
