"""Test-time methods. ``ADAPTERS`` is the registry: the command line, the docs and the tests read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from itta.adapters.base import Adapter
from itta.adapters.bn_adapt import BNAdapt
from itta.adapters.cotta import CoTTA
from itta.adapters.eata import EATA
from itta.adapters.guard import Guard
from itta.adapters.itta import ITTA
from itta.adapters.itta_plus import ITTAPlus
from itta.adapters.lame import LAME
from itta.adapters.memo import MEMO
from itta.adapters.mt3 import MT3
from itta.adapters.note import NOTE
from itta.adapters.roid import ROID
from itta.adapters.rotta import RoTTA
from itta.adapters.sar import SAR
from itta.adapters.shot import SHOT
from itta.adapters.source import Source
from itta.adapters.t3a import T3A
from itta.adapters.tent import Tent
from itta.adapters.ttt import TTT
from itta.adapters.ttt_plus import TTTPlus
from itta.errors import InputError
from itta.hparams import default, sensible_numbers
from itta.models.trained import Trained
from itta.models.wrapped import wrap
from itta.registry import find_class

ADAPTERS: dict[str, type[Adapter]] = {
    a.name: a
    for a in (
        *(Source, Tent, BNAdapt, CoTTA, EATA, LAME, MEMO, MT3, NOTE, ROID, RoTTA, SAR, SHOT, T3A, TTT, TTTPlus),
        *(ITTA, ITTAPlus),
    )
}


def find_adapter(name: str, file: Path | None = None) -> type[Adapter]:
    """Return the method of a registered name, or import the user's own from ``package.module:Class``.

    ``file`` is the file that holds the name, if a file does. Then only registered names count.
    """
    return find_class("adapter", name, ADAPTERS, Adapter, file)


@torch.inference_mode(False)  # an adapter needs tensors that can learn, wherever it is made
def adapt(
    trained: nn.Module,
    method: str | type[Adapter] = "itta+",
    guard: bool | Mapping[str, Any] | None = None,
    **hp: Any,
) -> Adapter:
    """Make an adapter for a trained model, or for any network, which `itta.wrap` wraps with its defaults.

    The settings are the fields of the method's Hparams.

    ``guard`` is True, False or settings of `Guard`. A guard watches the adapter and undoes harmful updates. By default
    only `itta+` is guarded.
    """
    cls = find_adapter(method) if isinstance(method, str) else method
    if isinstance(trained, Adapter):
        raise InputError(f"{trained.name} is an adapter already: give the model that it was made for.")
    trained = trained if isinstance(trained, Trained) else wrap(trained)
    settings = default(cls.Hparams, **hp)
    with sensible_numbers(settings):
        adapter = cls(trained, settings)
    guard = cls.guarded if guard is None else guard
    if guard is False:
        return adapter
    return Guard(trained, adapter, default(Guard.Hparams, **{**cls.guard, **({} if guard is True else guard)}))


__all__ = ["ADAPTERS", "Adapter", "Guard", "adapt", "find_adapter"]
