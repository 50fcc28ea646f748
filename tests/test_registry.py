"""Names that a user types, and names that a file holds: one line of error for every wrong spelling."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from itta.errors import InputError
from itta.registry import OWN_CLASS, find_class, import_object, look_up

TABLE = {"yes": bool, "set": int}


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path; write modules into it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_registered_name_and_a_class_of_ones_own(own_modules: Path) -> None:
    (own_modules / "mine_a.py").write_text("class Mine(int):\n    class Inner(int): ...\n")
    assert find_class("number", "yes", TABLE, int) is bool
    assert find_class("number", "mine_a:Mine", TABLE, int)("3") == 3
    assert find_class("number", "mine_a:Mine.Inner", TABLE, int).__qualname__ == "Mine.Inner"


@pytest.mark.parametrize(
    "name", [":x", ".x:y", "a:b:c", "a.b:", ":", "a..b:c", "a b:c", "a/b.py:C", "a:b-c", "..:os", "a:<locals>.B"]
)
def test_wrong_spellings(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_class("number", name, TABLE, int)
    assert str(caught.value) == f"cannot import the number {name!r}: write it as {OWN_CLASS}."


@pytest.mark.parametrize(
    ("source", "name", "told"),
    [
        (None, "no_such_module:X", "No module named 'no_such_module'. .*PYTHONPATH"),
        ("import no_such_other", "mine_b:X", "No module named 'no_such_other'"),
        ("raise RuntimeError('first\\nsecond')", "mine_b:X", "its module raised RuntimeError: first[.]$"),
        ("def (", "mine_b:X", "its module raised SyntaxError"),
        ("import sys; sys.exit(3)", "mine_b:X", "its module raised SystemExit: 3"),
        ("X = 1", "mine_b:Y", "no attribute 'Y'. Write it as package.module:Class"),
        ("X = 1", "mine_b:X", "'mine_b:X' is not a subclass of builtins.int"),
        ("class X: ...", "mine_b:X", "is not a subclass of builtins.int"),
        ("class X: ...", "mine_b:X.y", "no attribute 'y'"),
    ],
)
def test_an_import_that_fails(own_modules: Path, source: str | None, name: str, told: str) -> None:
    if source is not None:
        (own_modules / "mine_b.py").write_text(source)
    with pytest.raises(InputError, match=told) as caught:
        find_class("number", name, TABLE, int)
    assert "\n" not in str(caught.value)


def test_a_file_never_imports(own_modules: Path) -> None:
    (own_modules / "trap.py").write_text("raise SystemError('imported')")
    assert find_class("number", "yes", TABLE, int, file=Path("model.json")) is bool
    with pytest.raises(InputError, match=r"model\.json names the number 'trap:Mine'.*number=YourClass.*--number") as e:
        find_class("number", "trap:Mine", TABLE, int, file=Path("model.json"))
    assert "\n" not in str(e.value)
    assert "trap" not in sys.modules


def test_unknown_names_list_the_choices_and_the_other_forms() -> None:
    with pytest.raises(InputError, match=r"unknown number 'yess'. Did you mean 'yes'\? Choices: yes, set, a:B\."):
        look_up("number", "yess", TABLE, "a:B")
    assert import_object("thing", "os:sep", "a:B") == "/"


def test_a_module_of_the_current_folder_is_found_after_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "network_of_mine.py").write_text("from part_of_mine import VALUE")
    (tmp_path / "part_of_mine.py").write_text("VALUE = 5")
    (tmp_path / "math.py").write_text("pi = 3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert import_object("number", "network_of_mine:VALUE", "package.module:Name") == 5
    assert import_object("number", "math:pi", "package.module:Name") > 3.1
    assert sys.path[-1] == str(tmp_path)


def test_a_failed_import_leaves_the_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with pytest.raises(InputError, match="Run the command in the folder of the module"):
        import_object("number", "no_such_module:X", "package.module:Name")
    assert sys.path == before
