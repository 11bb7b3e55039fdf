"""Parquet files of rows, with a schema from the rows' types."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from qguide.qnet.errors import ConfigError
from qguide.qnet.support.extras import install

_ROWS_PER_GROUP = 1000


def write_parquet(path: Path, kind: type[BaseModel], rows: Iterable[BaseModel]) -> int:
    """Write rows of one kind; returns their number."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"parquet needs pyarrow, which is not installed; {install('parquet')}"
        ) from error
    schema = pyarrow.schema(_struct(kind))
    waiting, count = iter(rows), 0
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while group := [row.model_dump() for row in islice(waiting, _ROWS_PER_GROUP)]:
            writer.write_batch(pyarrow.RecordBatch.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _struct(kind: type[BaseModel]) -> Any:
    """The arrow struct of a model; a field that is not written becomes null."""
    import pyarrow

    return pyarrow.struct(
        [(name, _arrow_type(field.annotation)) for name, field in kind.model_fields.items()]
    )


def _arrow_type(annotation: Any) -> Any:
    import pyarrow

    plain = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int64()}
    plain[float] = pyarrow.float64()
    if annotation in plain:
        return plain[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _arrow_type(arguments[0])
    if origin is Literal:
        return _arrow_type(type(arguments[0]))
    if origin in (Union, UnionType):
        (one,) = (argument for argument in arguments if argument is not NoneType)
        return _arrow_type(one)
    if origin is tuple:
        return pyarrow.list_(_arrow_type(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _struct(annotation)
    raise TypeError(f"no column for {annotation}")
