"""Rows as columns of parquet, and back.

A field that was not written is null. A dictionary is a list of names and values, because few tools
read maps.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from math import isfinite, isnan
from types import NoneType, UnionType
from typing import IO, Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.packages import install

PARQUET: Final = ".parquet"

_AT_ONCE: Final = 1000
"""Rows of a group, which are written and read at once."""


def read_parquet(file: IO[bytes], kind: type[BaseModel], *, name: str) -> Iterator[bytes]:
    """The rows of a kind as lines of JSON."""
    pyarrow = _pyarrow()
    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=_AT_ONCE):
            for row in batch.to_pylist():
                yield _line(row, kind, name=name)
    except pyarrow.ArrowInvalid as error:
        raise RecordError(f"{name} is not parquet ({error}); name another file") from error


def read_records(file: IO[bytes], *, name: str) -> Iterator[bytes]:
    """The rows of anybody's parquet, each as JSON.

    What JSON has no form for, such as a time, is text. NaN is a value that is missing, as tables write it.
    """
    pyarrow = _pyarrow()
    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=_AT_ONCE // 10):
            yield from map(_record, batch.to_pylist())
    except pyarrow.ArrowException as error:
        raise RecordError(f"{name} cannot be read as parquet: {error}") from error


def _record(row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, default=str, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(row), default=str).encode()


def _finite(value: Any) -> Any:
    """The value with null for NaN, and the name of an infinity, which is refused only where it is read."""
    match value:
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list():
            return list(map(_finite, value))
        case float() if not isfinite(value):
            return None if isnan(value) else str(value)
    return value


def _line(columns: dict[str, Any], kind: type[BaseModel], *, name: str) -> bytes:
    try:
        return json.dumps(_fields(columns, kind)).encode() + b"\n"
    except (AttributeError, LookupError, TypeError) as error:
        raise RecordError(
            f"{name}: its columns are not those of a {kind.__name__} ({error}); write it by "
            "`qguide export-data --format parquet`, or name another file"
        ) from error


def write_parquet(file: IO[bytes], kind: type[BaseModel], rows: Iterable[BaseModel]) -> int:
    """Write rows of one kind; returns their number."""
    pyarrow = _pyarrow()
    schema = pyarrow.schema(_struct(kind))
    waiting, count = iter(rows), 0
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while group := [_columns(row) for row in islice(waiting, _AT_ONCE)]:
            writer.write_batch(pyarrow.RecordBatch.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"parquet needs pyarrow, which is not installed; {install('parquet')}") from error
    return pyarrow


def _columns(row: BaseModel) -> dict[str, object]:
    return {
        name: [{"name": key, "value": each} for key, each in value.items()]
        if get_origin(type(row).model_fields[name].annotation) is dict
        else value
        for name, value in row.model_dump().items()
    }


def _fields(columns: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """The fields that were written as these columns: a null is a field that was left out, if it may be."""
    known = kind.model_fields
    return {
        name: _value(value, known[name].annotation) if name in known else value
        for name, value in columns.items()
        if value is not None or (name in known and known[name].exclude_if is None)
    }


def _value(value: Any, annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if value is None:
        return None
    if origin in (Annotated, Union, UnionType):
        return _value(value, next(one for one in arguments if one is not NoneType))
    if origin is tuple:
        return [_value(each, arguments[0]) for each in value]
    if origin is dict:
        return {each["name"]: _value(each["value"], arguments[1]) for each in value}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _fields(value, annotation)
    return value


def _struct(kind: type[BaseModel]) -> Any:
    """The arrow struct of a model; a field that is not written becomes null."""
    return _pyarrow().struct([(name, _arrow_type(field.annotation)) for name, field in kind.model_fields.items()])


def _arrow_type(annotation: Any) -> Any:
    pyarrow = _pyarrow()
    plain: dict[Any, Any] = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int64()}
    plain[float] = pyarrow.float64()
    if annotation in plain:
        return plain[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _arrow_type(arguments[0])
    if origin is Literal:
        return _arrow_type(type(arguments[0]))
    if origin in (Union, UnionType):
        types = {_arrow_type(argument) for argument in arguments if argument is not NoneType}
        (one,) = types  # a name of ours and a user's are both text
        return one
    if origin is dict:
        fields = zip(("name", "value"), map(_arrow_type, arguments), strict=True)
        return pyarrow.list_(pyarrow.struct(fields))
    if origin is tuple:
        return pyarrow.list_(_arrow_type(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _struct(annotation)
    raise TypeError(f"no column for {annotation}")
