"""Tensors on disk: one safetensors file, written at once, with facts as JSON in its header."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from itta.errors import InputError, first_line
from itta.files import checksum, complete, refuse_pipe
from itta.schema import parse_json


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """Write one file and return its checksum; a reader, or a crash, sees the old file or the new one."""
    with complete(path, "tensors") as temporary:
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, temporary, {"json": json.dumps(metadata)})
        return checksum(temporary)


def load_tensors(path: Path, sha256: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the facts of a file; with ``sha256``, refuse a file with another checksum."""
    with reading_tensors(path):
        if sha256 and checksum(path) != sha256:
            raise InputError(
                f"{path} is not the file that was saved with its model.json (its checksum differs): it is damaged, or "
                "of another run; copy both files from the same run."
            )
        with safe_open(path, framework="pt") as file:
            metadata = parse_json((file.metadata() or {}).get("json", "{}"))
            if not isinstance(metadata, dict):
                raise InputError("its facts are not an object")
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of the tensors in a file, without the tensors."""
    with reading_tensors(path), safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


@contextmanager
def reading_tensors(path: Path) -> Iterator[None]:
    """Say in one line which file cannot be read."""
    try:
        refuse_pipe(path)
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise unreadable(path, error) from error
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> InputError:
    if not path.exists():
        return InputError(f"there is no file {path}: copy the whole directory again.")
    return InputError(
        f"cannot read {path} ({first_line(error)}): the file is damaged or is not a safetensors file. Copy it again, "
        "or delete it."
    )


def check_finite_tensors(tensors: Mapping[str, Tensor], what: str, cure: str) -> None:
    """Refuse tensors with NaN or infinite values."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{what} are not finite (NaN or infinite values in {name}): {cure}.")
