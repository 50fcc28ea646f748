"""Tensors on disk: one safetensors file, written at once, with facts as JSON in its header."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from itta.errors import InputError
from itta.files import complete


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write one file; a reader, or a crash, sees the old one or the new one."""
    with complete(path) as temporary:
        save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, {"json": json.dumps(metadata)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the facts of a file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("json", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}. The file is damaged or is not a safetensors file.") from error
