"""What there is to choose from, read off the registries."""

from typing import Any

from itta.adapters import ADAPTERS
from itta.algorithms import ALGORITHMS
from itta.data.emoji import STYLES
from itta.hparams import fields
from itta.nn import BACKBONES


def catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """Kind -> name -> facts, for `itta list`."""
    return {
        "algorithms": {name: {"about": a.paper, "hparams": hparams(a.Hparams)} for name, a in ALGORITHMS.items()},
        "adapters": {
            name: {"about": a.paper, "predicts": f"{a.predicts} its update", "hparams": hparams(a.Hparams)}
            for name, a in ADAPTERS.items()
        },
        "backbones": {
            **{name: {"about": about(make)} for name, make in BACKBONES.items()},
            "timm:MODEL": {"about": "any model of timm (needs the extra itta[timm])"},
        },
        "datasets": {
            "emoji": {"about": f"EmojiStyles, embedded: 12 classes drawn in the styles {', '.join(STYLES)}"},
            "FOLDER": {"about": "your own: root/domain/class/image"},
        },
    }


def hparams(cls: type[Any]) -> dict[str, dict[str, Any]]:
    return {
        f.name: {"default": f.default, "about": f.metadata["doc"], "searched": f.metadata["search"] is not None}
        for f in fields(cls)
    }


def about(make: Any) -> str:
    """The first sentence of the module that defines a backbone."""
    import sys

    text = sys.modules[make.__module__].__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())
