"""The command that a verb proposes at its end; it works as it stands."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from itta.settings import DataAccess


def next_command(
    model: Path, data: str, domains: Sequence[str], targets: Sequence[str], access: DataAccess, own: Sequence[str] = ()
) -> str:
    """Propose to adapt the model to its target or, without a target, to predict the images of the data.

    ``own`` are the flags that name the user's own classes.
    """
    from itta.data import is_name

    named = is_name(data, access)  # its images may lie in no folder, so one of its domains is adapted to
    if targets or named:
        domain = (*targets, *domains)[0]
        words = ["itta", "adapt", str(model), data]
        words += [f"--domain={domain}"] if domain.startswith("-") else ["--domain", domain]
    else:
        words = ["itta", "predict", str(model), data]
    if named and access.data_root is not None:
        words += ["--data-root", str(access.data_root)]
    return shlex.join([*words, *own])
