"""All methods, networks and data sets that a user can choose, read from the registries."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from itta.adapters import ADAPTERS, Adapter
from itta.algorithms import ALGORITHMS, base
from itta.algorithms.base import Needs
from itta.data import DATASETS
from itta.estimators import ESTIMATORS
from itta.hparams import Draw, fields
from itta.nn import BACKBONES, OTHER_BACKBONES


def catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """Kind -> name -> facts, for `itta list`."""
    return {
        "algorithms": {
            name: {
                "about": a.paper,
                "needs": asdict(a.needs),
                "needs_in_words": in_words(a.needs),
                "hparams": hparams(a.Hparams),
            }
            for name, a in ALGORITHMS.items()
        },
        "adapters": {
            name: {
                "about": a.paper,
                "needs": asdict(a.needs) | {"predicts": a.predicts},
                "needs_in_words": adapter_in_words(a),
                "hparams": hparams(a.Hparams),
            }
            for name, a in ADAPTERS.items()
        },
        "estimators": {name: {"about": e.paper} for name, e in ESTIMATORS.items()},
        "backbones": {
            **{name: {"about": entry.about} for name, entry in BACKBONES.items()},
            **{form: {"about": about} for form, about in OTHER_BACKBONES.items()},
        },
        "datasets": {
            **{name: {"about": entry.about} for name, entry in DATASETS.items()},
            "FOLDER": {"about": "your own: root/domain/class/image"},
            "MANIFEST": {"about": "your own: a CSV or JSON file with domain, class and file"},
        },
    }


def in_full(entry: Mapping[str, Any]) -> str:
    """Write an entry on several lines: what it is, what it needs, and the hyper-parameters of its own."""
    lines = [entry["about"]]
    if "needs_in_words" in entry:
        lines.append(entry["needs_in_words"])
    for name, h in entry.get("hparams", {}).items():
        if h["own"]:
            searched = f" [{h['searched']}]" if h["searched"] else ""
            lines.append(f"- {name}={short(h['default'])}: {h['about']}{searched}")
    return "\n".join(lines)


def short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_words(needs: Needs) -> str:
    """Write what a method needs on one line.

    >>> in_words(Needs(domains=2, networks=("critic",), batch_prediction=True, single_source="split"))
    '≥ 2 domains; extra: critic; predicts by batch; one source domain: split'
    """
    facts = {
        f"≥ {needs.domains} domains": needs.domains > 1,
        f"≥ {needs.images} images per domain": needs.images > 1,
        f"≥ {needs.batch} images per step": needs.batch > 1,
        f"extra: {', '.join(needs.networks)}": needs.networks,
        f"second order: {needs.second_order}": needs.second_order,
        "predicts by batch": needs.batch_prediction,
        f"one source domain: {needs.single_source}": True,
    }
    return "; ".join(fact for fact, holds in facts.items() if holds)


def adapter_in_words(adapter: type[Adapter]) -> str:
    """Write what an adapter needs and does on one line."""
    needs = adapter.needs
    facts = {
        "batch normalisation": needs.batch_norm,
        f"≥ {needs.batch} images at a time": needs.batch > 1,
        f"from the source: {needs.source}": needs.source,
        f"a model trained with {needs.training}": needs.training,
        f"changes {needs.changes}": True,
        f"predicts {adapter.predicts} its update": needs.changes != "nothing",
    }
    return "; ".join(fact for fact, holds in facts.items() if holds)


def hparams(cls: type[Any]) -> dict[str, dict[str, Any]]:
    """Name -> default, meaning, searched range, where a regime differs, and whether the method declares it itself."""
    shared = fields(base.Hparams)
    return {
        f.name: {
            "default": f.default,
            "searched": text(f.metadata["search"]),
            "about": f.metadata["doc"],
            "own": f not in shared,  # an inherited field is the very same object
            "regimes": {
                regime: {"default": default, "searched": text(search)}
                for regime, (default, search) in f.metadata["regimes"].items()
            },
        }
        for f in fields(cls)
    }


def text(search: Draw | None) -> str | None:
    return search.text if search else None
