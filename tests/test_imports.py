"""Who may import whom: data goes one way, and whoever only reads records needs no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import itta

ROOT = Path(itta.__file__).parent

# each room and the rooms below it that it may use
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "seeds": set(),
    "hparams": {"errors", "seeds"},
    "functional": {"errors"},
    "trial": {"errors", "seeds", "hparams"},
    "records": {"errors", "seeds", "trial"},
    "sweep": {"errors", "hparams", "trial", "records"},
    "nn": {"errors", "seeds", "hparams", "functional"},
    "data": {"errors", "seeds", "functional"},
    "report": {"errors", "records", "trial"},
}
BELOW["algorithms"] = {"errors", "seeds", "hparams", "functional", "nn"}
BELOW["adapters"] = BELOW["algorithms"] | {"algorithms"}
BELOW["bench"] = set(BELOW)
BELOW["serve"] = set(BELOW)
BELOW["cli"] = set(BELOW)


def room_of(module: str) -> str:
    """itta.nn.resnet -> nn; itta itself -> itta"""
    return module.split(".")[1] if "." in module else module


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "itta")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name, not a relative import"
            if node.module == "itta":
                yield from (f"itta.{a.name}" if is_module(a.name) else "itta" for a in node.names)
            elif node.module is not None and node.module.startswith("itta."):
                yield node.module


def is_module(name: str) -> bool:
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()


FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in BELOW, f"{room} is not a room of the architecture"
    used = {room_of(module) for module in imports(path)} - {room, "itta"}
    assert used <= BELOW[room], f"{room} must not import {used - BELOW[room]}"


def test_the_test_sees_imports() -> None:
    """A guard that finds nothing would pass for the wrong reason."""
    found = {room_of(m) for m in imports(ROOT / "algorithms" / "itta.py")}
    assert found == {"algorithms", "functional", "hparams", "nn"}
    assert "itta.records" in set(imports(ROOT / "bench" / "train.py"))


def test_only_main_imports_cli() -> None:
    importers = [p.name for p in ROOT.rglob("*.py") if "itta.cli" in set(imports(p))]
    assert importers == ["__main__.py"]


def report_modules() -> list[str]:
    files = (ROOT / "report").rglob("*.py")
    parts = [p.relative_to(ROOT.parent).with_suffix("").parts for p in files]
    return sorted(".".join(p).removesuffix(".__init__") for p in parts)


READERS = ["itta", "itta.hparams", "itta.trial", "itta.records", "itta.sweep.standings", *report_modules()]
HEAVY = ("torch", "scipy", "matplotlib")


def heavy_after(module: str) -> list[str]:
    """What a fresh interpreter has imported of the heavy packages."""
    code = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("module", READERS)
def test_reading_records_needs_nothing_heavy(module: str) -> None:
    assert heavy_after(module) == []


def test_that_check_can_fail() -> None:
    assert heavy_after("itta.nn") == ["torch"]
    assert "matplotlib" in heavy_after("itta.report.plots; itta.report.plots.pyplot()")


def test_reading_records_is_imported_in_half_a_second() -> None:
    """All of it, the start of a fresh interpreter included; in CPU time, which does not wait for others. Best of 3."""
    code = f"import time, {', '.join(READERS)}; print(time.process_time())"
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True) for _ in range(3)]
    assert min(float(done.stdout) for done in runs) < 0.5


def test_timm_is_imported_on_demand() -> None:
    code = "import sys, itta.run.train; sys.exit('timm' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
