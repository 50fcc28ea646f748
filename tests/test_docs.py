"""The generated pages say what the code says."""

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from itta.adapters import ADAPTERS
from itta.algorithms import ALGORITHMS
from itta.hparams import fields

ROOT = Path(__file__).parents[1]
PICTURE = "images/architecture.svg"


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    module = importlib.import_module("tools.build_docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "count_images", cache(module.count_images))  # the pages and a test count the same
        yield module


@pytest.fixture(scope="module")
def pages(tool: ModuleType) -> dict[str, str]:
    return tool.build()


@pytest.mark.slow
def test_pages_are_current(tool: ModuleType, pages: dict[str, str]) -> None:
    assert tool.stale(pages, ROOT / "docs") == [], "run `make docs`"


@pytest.mark.slow
def test_every_method_has_a_page_and_a_row(pages: dict[str, str]) -> None:
    rooms = {"algorithms": ALGORITHMS, "adapters": ADAPTERS}
    expected = {f"{room}/{name}.md" for room, methods in rooms.items() for name in ("README", *methods)}
    assert pages.keys() == expected | {PICTURE}
    for room, methods in rooms.items():
        for name, cls in methods.items():
            assert pages[f"{room}/README.md"].count(f"| [{name}]({name}.md) |") == 2
            page = pages[f"{room}/{name}.md"]
            assert cls.__doc__
            assert cls.__doc__.splitlines()[0] in page
            assert all(f"`{field.name}`" in page for field in fields(cls.Hparams))


@pytest.mark.slow
def test_stale_pages_are_named(tool: ModuleType, pages: dict[str, str], tmp_path: Path) -> None:
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert tool.stale(pages, tmp_path) == []
    (tmp_path / "algorithms/erm.md").write_text("old", encoding="utf-8")
    (tmp_path / "algorithms/irm.md").unlink()
    (tmp_path / "adapters/gone.md").write_text("of a method that is no more", encoding="utf-8")
    (tmp_path / PICTURE).write_text("old", encoding="utf-8")
    (tmp_path / PICTURE).with_name("photo.png").write_bytes(b"not generated")
    assert tool.stale(pages, tmp_path) == ["adapters/gone.md", "algorithms/erm.md", "algorithms/irm.md", PICTURE]


@pytest.mark.slow
def test_the_check_writes_nothing_and_fails(
    tool: ModuleType,
    pages: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tool, "build", lambda: pages)
    run = ["build_docs", "--out", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", [*run, "--check"])
    with pytest.raises(SystemExit) as stopped:
        tool.main()
    assert stopped.value.code == 1
    assert "erm.md: STALE" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(sys, "argv", run)
    tool.main()
    monkeypatch.setattr(sys, "argv", [*run, "--check"])
    with pytest.raises(SystemExit) as stopped:
        tool.main()
    assert stopped.value.code == 0


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("erm", 1, 1),
        ("mldg", 2 / 3, 2 / 3),  # one pair of the three domains: a pass and a gradient of both
        ("dann", 1, 1 / 2),  # every other step moves the discriminator alone
        ("sagnet", 2, 2),
        # Of three domains two are trained on: their pass, and its tangent, of which a convolution has two but the first
        # of four, which has one. The third runs twice. Gradients: two of the two domains, one of the third.
        ("feature_critic", 2 / 3 * (1 + 7 / 4) + 1 / 3 * 2, 2 / 3 * 2 + 1 / 3),
        # The views part after the first or the second of four layers. ITTA adds a tangent and a second gradient.
        ("consistency", (7 + 6) / 2 / 4, (7 + 6) / 2 / 4),
        ("itta", (7 + 6) / 2 / 4 + (13 + 11) / 2 / 4, 2 * (7 + 6) / 2 / 4),
    ],
)
@pytest.mark.slow
def test_images_are_counted(tool: ModuleType, name: str, forward: float, backward: float) -> None:
    layers, images = 4, tool.IMAGES * len(tool.DOMAINS) * tool.STEPS
    expected = {"forward": layers * images * forward, "backward": layers * images * backward}
    assert tool.count_images(ALGORITHMS[name]) == pytest.approx(Counter(expected))


@pytest.mark.slow
def test_parameters_are_those_of_a_real_network(tool: ModuleType) -> None:
    """A discriminator 512 → 256 → 256 → 3, and one row of the first convolution with a network of three."""
    erm = tool.count_parameters(ALGORITHMS["erm"])
    assert tool.count_parameters(ALGORITHMS["dann"]) - erm == 513 * 256 + 257 * 256 + 257 * 3
    context = 64 * (3 * 25 + 1) + 64 * (64 * 25 + 1) + (64 * 25 + 1) + 4 * 64
    assert tool.count_parameters(ALGORITHMS["arm"]) - erm == context + 64 * 49
