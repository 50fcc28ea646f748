"""The shape of the code: names that are not shared, and pieces that fit on a screen."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import itta

ROOT = Path(itta.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LINES, FUNCTION_LINES, PARAMETERS = 300, 60, 6


def test_modules_are_short() -> None:
    assert {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > LINES} == {}


def functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def too_large(source: str) -> list[str]:
    """Functions with too many lines or parameters; self and cls do not count."""
    found = []
    for f in functions(source):
        every = [*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs]
        n = sum(a.arg not in ("self", "cls") for a in every)
        lines = (f.end_lineno or f.lineno) - f.lineno + 1
        if lines > FUNCTION_LINES or n > PARAMETERS:
            found.append(f"{f.name}: {lines} lines, {n} parameters")
    return found


def test_functions_are_short() -> None:
    library = [p for p in FILES if p.relative_to(ROOT).parts[0] != "cli"]
    assert {str(p.relative_to(ROOT)): large for p in library if (large := too_large(p.read_text()))} == {}


@pytest.mark.parametrize("source", ["def f(a, b, c, d, e, f, *, g): ...", "def f():\n" + "    x = 1\n" * 61])
def test_large_functions_are_seen(source: str) -> None:
    assert too_large(source)


def shared_stems(paths: list[Path]) -> dict[str, list[str]]:
    """Stems of several modules, except a method's two halves, a verb and the module it calls, and base classes."""
    by_stem: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        if path.stem not in ("__init__", "base") and path.parts[0] != "cli":
            by_stem[path.stem].append(path)
    found = {}
    for stem, same in by_stem.items():
        rooms = {p.parts[0] for p in same}
        if len(same) > 1 and rooms != {"algorithms", "adapters"}:
            found[stem] = [str(p) for p in same]
    return found


def test_no_two_modules_share_a_stem() -> None:
    assert shared_stems([p.relative_to(ROOT) for p in FILES]) == {}
    assert shared_stems([Path("run/story.py"), Path("report/story.py")]) == {
        "story": ["run/story.py", "report/story.py"]
    }


VAGUE = {
    "summarise",
    "tell",
    "told",
    "costs",
    "number",
    "found",
    "shown",
    "where",
    "plain",
    "fill",
    "present",
}


def test_no_function_has_a_name_that_says_nothing() -> None:
    """These names stood for several things each; a function is named after the thing that it does or returns."""
    found = {(path.stem, f.name) for path in FILES for f in functions(path.read_text()) if f.name in VAGUE}
    assert found == set()


def test_tests_mirror_the_rooms() -> None:
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").is_file()}
    folders = {p.name for p in TESTS.iterdir() if p.is_dir() and any(p.glob("test_*.py"))}
    assert folders == rooms
