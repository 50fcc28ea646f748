"""Read JSON that somebody else may have written: within limits, and as the types that a dataclass declares.

msgspec checks the types. It reads our own dataclasses, needs no other package, is imported in a third of pydantic's
time (0.03 s), and refuses NaN, numbers out of range and text that is not UTF-8.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from itta.errors import InputError, first_line
from itta.files import refuse_pipe
from itta.text import printable

T = TypeVar("T")
MAX_BYTES = 16 * 2**20  # of a file that describes something
MAX_DEPTH = 32  # objects and lists within each other
MAX_CLASSES = 100_000
MAX_IMAGE_SIZE = 4096
MAX_NAME = 4096  # characters
MAX_INTEGER = 2**53  # every number up to here is exact in JSON

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_CLASSES)]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Seed = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
ImageSize = Annotated[int, Meta(ge=1, le=MAX_IMAGE_SIZE)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
Positive = Annotated[float, Meta(ge=1e-12, le=1e12)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


def parse_json(data: bytes | str) -> Any:
    """Parse JSON; every mistake in it is an `InputError` with a reason and no file name.

    >>> parse_json(b'{"lr": 0.1}')
    {'lr': 0.1}
    >>> parse_json('{"lr": NaN}')
    Traceback (most recent call last):
    itta.errors.InputError: not JSON: JSON is malformed: invalid character (byte 7)
    """
    try:
        values = msgspec.json.decode(data)
    except RecursionError:
        raise too_deep() from None
    except (ValueError, OverflowError) as error:  # msgspec's own errors are ValueErrors
        raise InputError(f"not JSON: {first_line(error)}") from None
    check_depth(values, data if isinstance(data, bytes) else data.encode())
    return values


def check_depth(values: Any, data: bytes) -> None:
    """Refuse objects and lists nested more deeply than our own files ever are; ``data`` is the JSON of the values."""
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return
    level = [values]
    for _ in range(MAX_DEPTH):
        level = [
            v
            for parent in level
            for v in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(v, (dict, list))
        ]
        if not level:
            return
    raise too_deep()


def too_deep() -> InputError:
    return InputError(f"objects and lists are nested more than {MAX_DEPTH} deep")


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a file of at most so many bytes."""
    refuse_pipe(path)
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"it is larger than {limit / 2**20:g} MB")
    return data


def read_json(path: Path, limit: int = MAX_BYTES) -> Any:
    """Read a JSON file within a limit; a mistake is an `InputError` without the file's name, which `damaged` adds."""
    return parse_json(read_bytes(path, limit))


@contextmanager
def damaged(path: Path, cure: str) -> Iterator[None]:
    """Name the file in every `InputError` of the block, and say what to do."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path} is damaged or not ours ({str(error).rstrip('.')}): {cure}.") from error


def conform(cls: type[T], values: Any, **given: Any) -> T:
    """Make a dataclass from an object of JSON; fields in ``given`` are taken as they are.

    Unknown and missing fields, wrong types and numbers out of range are an `InputError`.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Size:
    ...     pixels: ImageSize
    >>> conform(Size, {"pixels": 32})
    Size(pixels=32)
    >>> conform(Size, {"pixels": "32"})
    Traceback (most recent call last):
    itta.errors.InputError: Expected `int`, got `str` - at `$.pixels`
    """
    checked = convert(values, shape_of(cls, tuple(given)))  # type: ignore[arg-type]
    present = ((name, getattr(checked, name)) for name in checked.__struct_fields__)
    return cls(**{name: value for name, value in present if value is not msgspec.UNSET}, **given)


def convert(values: Any, shape: Any) -> Any:
    """Check values of JSON against a type."""
    try:
        return msgspec.convert(values, shape)
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(printable(first_line(error))) from None


@cache
def shape_of(cls: type[Any], given: tuple[str, ...]) -> Any:
    """Return the fields of a dataclass, without those given, as a type that msgspec checks."""
    hints = get_type_hints(cls, include_extras=True)
    shape: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for f in fields(cls):
        if f.init and f.name not in given:
            needed = f.default is MISSING and f.default_factory is MISSING
            shape.append((f.name, hints[f.name]) if needed else (f.name, hints[f.name], msgspec.UNSET))
    return msgspec.defstruct(cls.__name__, shape, kw_only=True, forbid_unknown_fields=True)


def check_schema(values: Any, newest: int) -> None:
    """Refuse an object that is none, or of a later version of its format."""
    if not isinstance(values, dict):
        raise InputError("it is not an object")
    version = values.get("schema", 1)
    if not isinstance(version, int) or isinstance(version, bool):
        raise InputError("its schema is not a number")
    if version > newest:
        raise InputError(f"schema {version}, and this version reads up to {newest}: update itta.")


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries that are finite numbers, for curves and means.

    >>> numbers_of({"step": 1, "loss": float("nan"), "name": "x", "flag": True})
    {'step': 1}
    """
    return {
        k: v
        for k, v in values.items()
        if isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) <= 1e300 and math.isfinite(v)
    }
