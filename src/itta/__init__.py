"""Train on several image domains, adapt at test time without labels, and know honestly whether it helped."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from itta.adapters import adapt
    from itta.store.model import load

__all__ = ["__version__", "adapt", "load"]


def __getattr__(name: str) -> Any:
    """Import `load` and `adapt` on first use: reading records must not need torch."""
    if name == "load":
        from itta.store.model import load

        return load
    if name == "adapt":
        from itta.adapters import adapt

        return adapt
    raise AttributeError(f"module 'itta' has no attribute {name!r}")
