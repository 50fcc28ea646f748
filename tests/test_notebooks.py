"""The notebooks of examples/: their code cells run in order, and the last value of a cell can be shown."""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def run_cells(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run the code cells in one module, as a kernel does in __main__; return the last value of each cell."""
    module = ModuleType(f"notebook_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    shown = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(path), "exec"), vars(module))
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), str(path), "eval"), vars(module)))
    return shown


def test_there_is_one_for_model_data_and_method() -> None:
    assert [p.stem for p in NOTEBOOKS] == ["own_data", "own_method", "own_model"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_cells(path, monkeypatch)
    assert sum(hasattr(value, "_repr_html_") for value in shown) >= 1
    assert all(repr(value) for value in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_is_saved_without_output(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert sum(len(cell["source"]) for cell in code) <= 60
