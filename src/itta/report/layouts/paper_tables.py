"""The tables of the paper, each a layout.

Improved Test-Time Adaptation for Domain Generalization. Chen, Zhang, Song, Shan, Liu, CVPR 2023.
https://arxiv.org/abs/2304.04494
"""

from typing import Any

from itta.report.layouts.base import (
    ADAPTER_DEFAULTS,
    MODEL_DEFAULTS,
    Average,
    Layout,
    Row,
    leave_one_out,
    one_to_one,
    with_average,
)

LABELS: dict[str, tuple[str, ...]] = {  # the paper's names of the domains
    "PACS": ("Art", "Cartoon", "Photo", "Sketch"),
    "VLCS": ("Caltech", "LabelMe", "Sun", "VOC"),
    "OfficeHome": ("Art", "Clipart", "Product", "Real"),
    "TerraIncognita": ("L100", "L38", "L43", "L46"),
    "DomainNet": ("Clipart", "Infograph", "Painting", "Quickdraw", "Real", "Sketch"),
}
METHODS = (
    "ERM", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL", "SagNet", "ARM", "VREx",
    "RSC", "SelfReg", "MixStyle", "Fish", "SD", "CAD", "CondCAD", "Fishr",
)  # fmt: skip


def ours(label: str, algorithm: str = "itta", adapter: str = "itta", **changes: Any) -> Row:
    """A row with the paper's settings, except for the changes. The name of a change says whether it is of the training
    or of the adapter."""
    model, settings = MODEL_DEFAULTS.get(algorithm, {}), ADAPTER_DEFAULTS.get(adapter, {})
    assert changes.keys() <= {*model, *settings}, f"{label}: neither the model nor the adapter has such a setting"
    return Row(
        label,
        algorithm,
        adapter,
        {k: changes.get(k, v) for k, v in model.items()},
        {k: changes.get(k, v) for k, v in settings.items()},
    )


COMPARED = (*(Row(name, name.lower()) for name in METHODS), ours("Ours"))
PACS = with_average(leave_one_out("PACS", LABELS["PACS"]))
WITHOUT_TTT = ours("Ours w/o TTT", adapter="source")

PAPER_TABLES: dict[str, Layout] = {
    "multi-source": Layout(
        "Multi-source domain generalization",
        COMPARED,
        tuple(Average(dataset, leave_one_out(dataset, labels)) for dataset, labels in LABELS.items()),
        ("Avg.", "Top5", "Score"),
    ),
    **{
        dataset.lower(): Layout(f"{dataset}, by target domain", COMPARED, with_average(leave_one_out(dataset, labels)))
        for dataset, labels in LABELS.items()
    },
    "single-source": Layout("Single-source domain generalization, PACS", COMPARED, with_average(one_to_one("PACS"))),
    "ttt": Layout(
        "Test-time training methods, PACS",
        (
            ours("Baseline", "consistency", "source"),
            Row("TTT", "ttt", "ttt"),
            Row("MT3", "mt3", "mt3"),
            ours("TENT", "consistency", "tent"),
            ours("Ours"),
        ),
        PACS,
    ),
    "ablation": Layout(
        "Test-time objectives, and parameters that move, PACS",
        (
            ours("Ours"),
            ours("Ours w/o f_w", "consistency", objective="plain"),
            ours("Ours w/ Ent.", "consistency", objective="entropy"),
            ours("Ours w/ Rot.", "ttt", objective="rotation"),
            WITHOUT_TTT,
            ours("Ours w/ All", scope="all"),
            ours("Ours w/ BN", scope="norm"),
        ),
        PACS,
    ),
    "alpha": Layout(
        "Weight α of the consistency loss, PACS",
        tuple(ours(f"α = {a:g}", alpha=a) for a in (0.1, 1.0, 10.0, 100.0)),
        PACS,
    ),
    "augmentation": Layout(
        "Noise on the features as the second view, PACS",
        (
            Row("ERM", "erm"),
            ours("Ours w/o f_w and TTT", "consistency", "source", view="noise"),
            ours("Ours w/o f_w", "consistency", view="noise", objective="plain"),
            ours("Ours w/o TTT", adapter="source", view="noise"),
            ours("Ours", view="noise"),
        ),
        PACS,
    ),
    "steps": Layout(
        "Steps at test time, PACS",
        (
            ours("1 step"),
            ours("2 steps", steps=2),
            ours("3 steps", steps=3),
            ours("episodic", episodic=True),
        ),
        PACS,
    ),
    "structures": Layout(
        "Layers of f_w and of f_Θ, PACS",
        (
            *(ours(f"f_w, {n} layer{'s' * (n > 1)}", fw_depth=n) for n in (1, 5, 10, 15)),
            *(ours(f"f_Θ, {n} layer{'s' * (n > 1)}", depth=n) for n in (1, 5, 10, 15)),
        ),
        PACS,
    ),
    "locations": Layout(
        "Place of the adaptive block, PACS",
        tuple(ours(f"after block {n}", blocks=(f"layer{n}",)) for n in (1, 2, 3, 4)),
        PACS,
    ),
    "learnable-loss": Layout(
        "Learnable losses, PACS",
        (
            Row("MetaReg", "metareg"),
            Row("Feature-Critic", "feature_critic"),
            Row("TTT++", "ttt++", "ttt++"),
            WITHOUT_TTT,
            ours("Ours"),
        ),
        PACS,
    ),
}
