"""Names, shapes and counts of torchvision's ResNets, written down here from their published architecture."""

import pytest

from itta.nn import make_backbone

FC = {"resnet18": 512 * 1000 + 1000, "resnet34": 512 * 1000 + 1000, "resnet50": 2048 * 1000 + 1000}
PUBLISHED = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032}  # with the 1000-class fc
DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}


def published_shapes(name: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def conv_bn(conv: str, bn: str, n_in: int, n_out: int, size: int) -> None:
        shapes[f"{conv}.weight"] = (n_out, n_in, size, size)
        for entry in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{bn}.{entry}"] = (n_out,)
        shapes[f"{bn}.num_batches_tracked"] = ()

    conv_bn("conv1", "bn1", 3, 64, 7)
    n_in, expansion = 64, 4 if name == "resnet50" else 1
    sizes = (1, 3, 1) if expansion == 4 else (3, 3)
    for i, depth in enumerate(DEPTHS[name]):
        width = 64 * 2**i
        for j in range(depth):
            unit = f"layer{i + 1}.{j}"
            widths = [n_in, *[width] * (len(sizes) - 1), width * expansion]
            for k, size in enumerate(sizes):
                conv_bn(f"{unit}.conv{k + 1}", f"{unit}.bn{k + 1}", widths[k], widths[k + 1], size)
            if j == 0 and n_in != width * expansion:
                conv_bn(f"{unit}.downsample.0", f"{unit}.downsample.1", n_in, width * expansion, 1)
            n_in = width * expansion
    return shapes


@pytest.mark.parametrize("name", FC)
def test_names_shapes_and_counts(name: str) -> None:
    backbone = make_backbone(name, "none")
    assert {k: tuple(v.shape) for k, v in backbone.state_dict().items()} == published_shapes(name)
    assert sum(p.numel() for p in backbone.parameters()) == PUBLISHED[name] - FC[name]
    assert backbone.dim == (2048 if name == "resnet50" else 512)


def test_resnet18_is_the_one_of_the_paper() -> None:
    assert sum(p.numel() for p in make_backbone("resnet18", "none").parameters()) == 11_176_512


def test_strides() -> None:
    """As in the published weights, a bottleneck has its stride on the 3×3 convolution."""
    fifty = make_backbone("resnet50", "none")
    unit = fifty.get_submodule("layer2.0")
    assert (unit.conv1.stride, unit.conv2.stride, unit.conv3.stride) == ((1, 1), (2, 2), (1, 1))
    assert unit.downsample[0].stride == (2, 2)
    assert fifty.get_submodule("layer1.0").conv2.stride == (1, 1)
    eighteen = make_backbone("resnet18", "none").get_submodule("layer3.0")
    assert (eighteen.conv1.stride, eighteen.conv2.stride) == ((2, 2), (1, 1))
