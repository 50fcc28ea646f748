"""Train on several image domains, adapt at test time without labels, and know honestly whether it helped."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from itta.adapters import adapt
    from itta.estimators import estimate
    from itta.estimators.full_collection import collect
    from itta.models.wrapped import wrap
    from itta.run.workbench import evaluate, predict, train
    from itta.store.saved import load, save

PUBLIC = {  # name -> module, imported on first use
    "adapt": "itta.adapters",
    "collect": "itta.estimators.full_collection",
    "estimate": "itta.estimators",
    "evaluate": "itta.run.workbench",
    "load": "itta.store.saved",
    "predict": "itta.run.workbench",
    "save": "itta.store.saved",
    "train": "itta.run.workbench",
    "wrap": "itta.models.wrapped",
}
__all__ = ["__version__", "adapt", "collect", "estimate", "evaluate", "load", "predict", "save", "train", "wrap"]


def __getattr__(name: str) -> Any:
    """Import a public function on first use: reading records must not need torch."""
    if name in PUBLIC:
        return getattr(import_module(PUBLIC[name]), name)
    raise AttributeError(f"module 'itta' has no attribute {name!r}")
