"""Who may import whom: the whole order, room by room. Data goes one way, and reading records needs no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import itta

ROOT = Path(itta.__file__).parent

# Each room and the rooms that it may import. A room is a folder of the package, or a module beside the folders.
ALLOWED: dict[str, set[str]] = {"errors": set(), "seeds": set(), "progress": set()}
ALLOWED["text"] = set()
ALLOWED["locks"] = {"errors"}
ALLOWED["registry"] = {"errors", "text"}
ALLOWED["files"] = {"errors", "locks"}
ALLOWED["schema"] = {"errors", "text", "files"}
ALLOWED["hparams"] = {"errors", "seeds"}
ALLOWED["settings"] = {"errors", "hparams", "schema"}
ALLOWED["trial"] = {"errors", "seeds", "hparams", "schema", "settings"}
ALLOWED["recipes"] = {"errors", "settings"}
FOUNDATION = set(ALLOWED)  # modules without torch, for everybody
ALLOWED["records"] = FOUNDATION
ALLOWED["metrics"] = FOUNDATION | {"records"}
ALLOWED["report"] = FOUNDATION | {"records", "metrics"}
ALLOWED["functional"] = FOUNDATION
ALLOWED["nn"] = FOUNDATION | {"functional"}
ALLOWED["data"] = FOUNDATION | {"functional"}
ALLOWED["models"] = FOUNDATION | {"functional", "nn"}
ALLOWED["algorithms"] = FOUNDATION | {"functional", "nn", "models"}
ALLOWED["adapters"] = FOUNDATION | {"functional", "nn", "models", "algorithms"}
METHODS = FOUNDATION | {"functional", "nn", "models", "algorithms", "adapters"}
ALLOWED["estimators"] = METHODS | {"metrics"}
ALLOWED["store"] = METHODS | {"data"}
METHODS |= {"estimators"}
ALLOWED["run"] = METHODS | {"data", "store", "records", "metrics"}
ALLOWED["sweep"] = METHODS | {"data", "store", "records", "metrics", "run"}
ALLOWED["explain"] = METHODS | {"data", "store", "records", "metrics", "report"}
ALLOWED["catalogue"] = METHODS | {"data"}
ALLOWED["demo"] = METHODS | {"data", "store", "records", "metrics", "report", "run", "sweep", "explain"}
ALLOWED["cli"] = set(ALLOWED)
# An adapter imports an algorithm only where one paper has both halves.
BOTH_HALVES = {"itta", "itta_plus", "ttt", "ttt_plus", "mt3", "consistency"}


def room_of(module: str) -> str:
    """itta.nn.resnet -> nn; itta itself -> itta"""
    return module.split(".")[1] if "." in module else module


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, inside functions too."""
    yield from imports_of(path.read_text(encoding="utf-8"), str(path))


def imports_of(source: str, name: str = "source") -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "itta")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: write the whole name, not a relative import"
            if node.module == "itta":
                yield from (f"itta.{a.name}" if is_module(a.name) else "itta" for a in node.names)
            elif node.module is not None and node.module.startswith("itta."):
                yield node.module


def is_module(name: str) -> bool:
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()


def broken_rules(room: str, modules: Iterator[str] | list[str]) -> set[str]:
    """The rooms that a room imports and must not."""
    used = {room_of(module) for module in modules} - {room, "itta"}
    return used - ALLOWED[room]


FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem not in ("__init__", "__main__"))


def test_every_room_stands_in_the_order() -> None:
    rooms = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == set(ALLOWED)
    for room, below in ALLOWED.items():  # nobody imports a room that imports him
        assert not any(room in ALLOWED[other] for other in below if room != "cli"), room


def test_imports_go_one_way() -> None:
    broken = {}
    for path in FILES:
        wrong = broken_rules(path.relative_to(ROOT).parts[0].removesuffix(".py"), imports(path))
        if wrong:
            broken[str(path.relative_to(ROOT))] = wrong
    assert broken == {}


@pytest.mark.parametrize(
    ("room", "line", "wrong"),
    [
        ("run", "from itta.report.tables import Table", "report"),
        ("run", "def f():\n    from itta.explain.gradcam import look", "explain"),
        ("run", "from itta import sweep", "sweep"),
        ("models", "import itta.algorithms.erm", "algorithms"),
        ("store", "from itta.run.train import train", "run"),
        ("explain", "from itta.run.evaluate import evaluate", "run"),
        ("report", "from itta.adapters import adapt", "adapters"),
        ("records", "from itta.metrics.selection import mean", "metrics"),
        ("data", "from itta.store.model import load", "store"),
        ("settings", "from itta.trial import Trial", "trial"),
        ("adapters", "from itta.data.streams import draw_order", "data"),
    ],
)
def test_a_broken_rule_is_seen(room: str, line: str, wrong: str) -> None:
    assert broken_rules(room, imports_of(line)) == {wrong}


def test_the_test_sees_imports() -> None:
    """A guard that finds nothing would pass for the wrong reason."""
    found = {room_of(m) for m in imports(ROOT / "algorithms" / "itta.py")}
    assert found == {"algorithms", "functional", "hparams", "nn"}
    assert "itta.records" in set(imports(ROOT / "run" / "train.py"))


def test_an_adapter_imports_an_algorithm_only_where_a_paper_has_both_halves() -> None:
    for path in (ROOT / "adapters").glob("*.py"):
        used = {m.removeprefix("itta.algorithms.") for m in imports(path) if m.startswith("itta.algorithms.")}
        assert used <= BOTH_HALVES, path.name


def test_only_main_imports_cli() -> None:
    importers = [p.name for p in ROOT.rglob("*.py") if "itta.cli" in set(imports(p))]
    assert importers == ["__main__.py"]


def modules_of(room: str) -> list[str]:
    parts = [p.relative_to(ROOT.parent).with_suffix("").parts for p in (ROOT / room).rglob("*.py")]
    return sorted(".".join(p).removesuffix(".__init__") for p in parts)


LIGHT = [f"itta.{name}" for name in sorted(FOUNDATION)]
LIGHT += [m for room in ("records", "metrics", "report") for m in modules_of(room)]
LIGHT += ["itta", "itta.run.status", "itta.sweep.plan", "itta.sweep.standings"]
HEAVY = ("torch", "scipy", "matplotlib")


def heavy_after(*modules: str) -> list[str]:
    """The heavy packages that a fresh interpreter has imported after these modules."""
    code = f"import sys, {', '.join(modules)}; print(*[name for name in {HEAVY} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_reading_records_needs_nothing_heavy() -> None:
    assert heavy_after(*LIGHT) == []


@pytest.mark.slow
def test_that_check_can_fail() -> None:
    assert heavy_after("itta.nn") == ["torch"]
    code = "import sys, itta.report.plots as p; p.pyplot(); print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "True"


def test_reading_records_is_imported_in_half_a_second() -> None:
    """All of it, the start of a fresh interpreter included; in CPU time, which does not wait for others. Best of 3."""
    code = f"import time, {', '.join(LIGHT)}; print(time.process_time())"
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True) for _ in range(3)]
    assert min(float(done.stdout) for done in runs) < 0.5


@pytest.mark.slow
def test_timm_is_imported_on_demand() -> None:
    code = "import sys, itta.run.train; sys.exit('timm' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
